"""Images of what kubeadm starts as pods (API server, etcd, CoreDNS, kube-proxy, pause), made of our own static
binaries.

Called by `node_image.py`. Their names come from kubeadm itself, so that they always are the ones it asks for.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from cluster import archive
from cluster.binaries import KUBERNETES, binary
from cluster.process import ToolError, run

_FILES = Path(__file__).parent / "node_files"


def archives(root: Path, folder: Path) -> list[Path]:
    """Write one archive an image into `folder`; `root` is the node's tree, which lends kube-proxy its iptables.
    Raises ToolError.
    """
    made = []
    for name in _names(root):
        part = name.rsplit("/", 1)[-1].split(":")[0]
        tree = folder / part
        shutil.rmtree(tree, ignore_errors=True)
        (tree / "tmp").mkdir(parents=True)
        (tree / "tmp").chmod(0o1777)
        program = _pause(tree) if part == "pause" else _program(tree, part)
        if part == "kube-proxy":
            _iptables(root, tree)
        path = folder / f"{name.replace('/', '_').replace(':', '_')}.tar"
        archive.write(tree, path, [name], {"Entrypoint": [program]})
        made.append(path)
        shutil.rmtree(tree)
    return made


def _names(root: Path) -> list[str]:
    asked = run(
        [binary("kubeadm"), "config", "images", "list", f"--kubernetes-version=v{KUBERNETES}"], timeout_s=60
    ).split()
    sandbox = re.search(r'sandbox_image = "([^"]+)"', (root / "etc/containerd/config.toml").read_text())
    if sandbox is None:
        raise ToolError("no sandbox_image in kind's containerd configuration")
    return sorted({*asked, sandbox.group(1)})


def _program(tree: Path, name: str) -> str:
    path = "coredns" if name == "coredns" else f"usr/local/bin/{name}"
    (tree / path).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(binary(name), tree / path)
    return f"/{path}"


def _pause(tree: Path) -> str:
    run(["gcc", "-static", "-O2", "-s", "-o", tree / "pause", _FILES / "pause.c"], timeout_s=60)
    return "/pause"


def _iptables(root: Path, tree: Path) -> None:
    """kube-proxy calls iptables, conntrack and nft: copies them with the libraries they are linked to."""
    programs = ["/usr/sbin/xtables-nft-multi", "/usr/sbin/nft", "/usr/sbin/conntrack", "/usr/bin/kmod"]
    programs += [f"/{path.relative_to(root)}" for path in sorted(root.glob("usr/lib/*/xtables/*.so"))]
    linked = run(["chroot", root, "ldd", *programs], timeout_s=60)
    needed = set(programs) | {
        word for line in linked.splitlines() for word in line.split() if word.startswith("/") and not word.endswith(":")
    }
    for name in sorted(needed):
        target = tree / name[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(_inside(root, name), target)
    for family in ("iptables", "ip6tables"):
        for action in ("", "-save", "-restore"):
            for kind in ("", "-nft"):
                (tree / f"usr/sbin/{family}{kind}{action}").symlink_to("xtables-nft-multi")


def _inside(root: Path, name: str) -> Path:
    """A link's target, absolute ones read inside the tree."""
    path = root / name[1:]
    while path.is_symlink():
        target = path.readlink()
        path = root / str(target)[1:] if target.is_absolute() else path.parent / target
    return path
