"""Kubernetes, etcd and their tools, built once as Go modules and kept outside the tree: `binary("kubectl")` is a path.

Called by the API server fixture of `make test` and by `make cluster`. A folder is named by everything that decides its
content, so that a changed version builds anew and nothing is ever stale.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KUBERNETES = "1.35.4"
ETCD = "3.6.6"
_KUBERNETES_COMMANDS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubeadm",
)
_ETCD_MAIN = """package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
"""


class BuildError(RuntimeError):
    """A binary could not be built; the message has the tool's last words."""


@dataclass(frozen=True)
class Tool:
    """One installable Go command."""

    module: str
    package: str
    version: str


TOOLS = {
    "kind": Tool("sigs.k8s.io/kind", "sigs.k8s.io/kind", "v0.33.0"),
    "helm": Tool("helm.sh/helm/v3", "helm.sh/helm/v3/cmd/helm", "v3.22.0"),
    "kwok": Tool("sigs.k8s.io/kwok", "sigs.k8s.io/kwok/cmd/kwok", "v0.8.0"),
    "coredns": Tool("github.com/coredns/coredns", "github.com/coredns/coredns", "v1.15.0"),
    "versitygw": Tool("github.com/versity/versitygw", "github.com/versity/versitygw/cmd/versitygw", "v1.8.0"),
}
PEERS = {
    "jobset": Tool("sigs.k8s.io/jobset", "sigs.k8s.io/jobset", "v0.12.0"),
    "trainer-controller-manager": Tool(
        "github.com/kubeflow/trainer/v2", "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager", "v2.3.0"
    ),
}
"""What the project is measured beside: each with the modules that its own release was built with."""


def cache_folder() -> Path:
    """What is built once: TRAINJOB_CACHE, else `trainjob` in the user's cache folder."""
    given = os.environ.get("TRAINJOB_CACHE")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainjob"


def binary(name: str) -> Path:
    """The path of a command, built if need be. Raises BuildError."""
    if name == "etcd":
        return _kept(f"etcd-{ETCD}", ETCD, _build_etcd) / "etcd"
    if name in TOOLS:
        tool = TOOLS[name]
        return _kept(f"{name}-{tool.version}", repr(tool), lambda folder: _install(tool, folder / name)) / name
    if name in PEERS:
        peer = PEERS[name]
        return _kept(f"{name}-{peer.version}", repr(peer), lambda folder: _build_released(peer, folder / name)) / name
    if name == "kubectl":
        return _kept(f"kubectl-{KUBERNETES}", KUBERNETES, lambda folder: _build_kubernetes(("kubectl",), folder)) / name
    if name in _KUBERNETES_COMMANDS[:2]:
        # What an API server alone needs comes first and by itself.
        return (
            _kept(
                f"server-{KUBERNETES}", KUBERNETES, lambda folder: _build_kubernetes(_KUBERNETES_COMMANDS[:2], folder)
            )
            / name
        )
    if name in _KUBERNETES_COMMANDS:
        return (
            _kept(f"node-{KUBERNETES}", KUBERNETES, lambda folder: _build_kubernetes(_KUBERNETES_COMMANDS[2:], folder))
            / name
        )
    raise KeyError(name)


def module_folder(tool: Tool) -> Path:
    """Where Go keeps the sources of a tool. Raises BuildError."""
    with tempfile.TemporaryDirectory() as name:
        return Path(json.loads(_go(["mod", "download", "-json", f"{tool.module}@{tool.version}"], Path(name)))["Dir"])


def have_go() -> bool:
    """Whether anything can be built here."""
    return shutil.which("go") is not None


def is_built(name: str) -> bool:
    """Whether `binary(name)` returns at once."""
    return any((folder / ".complete").exists() for folder in cache_folder().glob("bin/*") if (folder / name).exists())


@contextmanager
def locked(name: str) -> Iterator[None]:
    """One process at a time does this kind of work."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{name}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _kept(name: str, decides: str, build: Callable[[Path], None]) -> Path:
    digest = hashlib.sha256(f"{decides} {_go_version()}".encode()).hexdigest()[:8]
    folder = cache_folder() / "bin" / f"{name}-{digest}"
    if (folder / ".complete").exists():
        return folder
    with locked(name):
        if not (folder / ".complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            print(f"cluster: building {name} (once)", file=sys.stderr, flush=True)
            begun = time.monotonic()
            build(folder)
            (folder / ".complete").touch()
            print(f"cluster: {name} built in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return folder


def _go_version() -> str:
    """Part of what decides a build; a folder that was built with Go is good without it."""
    try:
        return subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        raise BuildError(
            "Go is not installed: Kubernetes' binaries cannot be built here (install Go 1.25 or newer)"
        ) from None


def _go(words: list[str], folder: Path, **environment: str) -> str:
    full = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=mod -buildvcs=false",
        "GOTOOLCHAIN": "local",
        **environment,
    }
    done = subprocess.run(["go", *words], cwd=folder, env=full, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"go {' '.join(words[:2])} failed: {done.stderr[-2000:]}")
    return done.stdout


def _install(tool: Tool, path: Path) -> None:
    with tempfile.TemporaryDirectory() as gobin:
        _go(["install", "-trimpath", "-ldflags=-s -w", f"{tool.package}@{tool.version}"], Path(gobin), GOBIN=gobin)
        shutil.move(str(Path(gobin) / tool.package.rsplit("/", 1)[-1]), path)


def _build_released(tool: Tool, path: Path) -> None:
    """In the module's own folder, so that its go.mod and go.sum decide what goes in, replacements included."""
    package = f".{tool.package.removeprefix(tool.module)}"
    words = ["build", "-trimpath", "-ldflags=-s -w", "-o", str(path), package]
    _go(words, module_folder(tool), GOFLAGS="-mod=readonly -buildvcs=false")


def _build_etcd(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        source = Path(name)
        (source / "go.mod").write_text(
            f"module trainjob.dev/etcd\n\ngo 1.24\n\nrequire go.etcd.io/etcd/server/v3 v{ETCD}\n"
        )
        (source / "main.go").write_text(_ETCD_MAIN)
        _go(["mod", "tidy"], source)
        _go(["build", "-trimpath", "-ldflags=-s -w", "-o", str(folder / "etcd"), "."], source)


def _build_kubernetes(commands: tuple[str, ...], folder: Path) -> None:
    """A module of ours that requires Kubernetes with its staging modules by their published versions."""
    with tempfile.TemporaryDirectory() as name:
        source = Path(name)
        described = json.loads(_go(["mod", "download", "-json", f"k8s.io/kubernetes@v{KUBERNETES}"], source))
        theirs = Path(described["GoMod"]).read_text()
        staging = re.findall(r"^\s*(k8s\.io/\S+) => \./staging/", theirs, re.MULTILINE)
        own = KUBERNETES.replace("1.", "0.", 1)
        go = re.search(r"^go (\S+)", theirs, re.MULTILINE)
        lines = [
            "module trainjob.dev/kubernetes",
            "",
            f"go {go.group(1) if go else '1.25'}",
            "",
            f"require k8s.io/kubernetes v{KUBERNETES}",
            "",
        ]
        lines += [f"replace {module} => {module} v{own}" for module in staging]
        (source / "go.mod").write_text("\n".join(lines) + "\n")
        packages = [f"k8s.io/kubernetes/cmd/{command}" for command in commands]
        (source / "tools.go").write_text(
            "package tools\n\nimport (\n" + "".join(f'\t_ "{package}"\n' for package in packages) + ")\n"
        )
        _go(["mod", "tidy", "-e"], source)
        version = " ".join(
            f"-X {package}.gitVersion=v{KUBERNETES}"
            for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        )
        _go(["build", "-trimpath", f"-ldflags=-s -w {version}", "-o", f"{folder}/", *packages], source)
