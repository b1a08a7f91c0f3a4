"""Base images for the project's Dockerfiles: published ones where a registry answers, else our own from Debian
packages.

Called by `images.py`. Local images exist on this machine only; nothing made on them is meant to be published.
"""

from __future__ import annotations

import hashlib
import inspect
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cluster import archive, packages, places, rootfs
from cluster.binaries import locked
from cluster.engine import Engine
from cluster.process import ToolError, run, say

VENV_SITE = "/opt/venv-site"
"""Where the nodes show the host's Python packages to every container; the local base image has it on its path."""
PYTHON = sys.version_info[:2]
_PACKAGES = ("python3", "python3-pip", "python3-venv", "ca-certificates", "procps")
_SHELL_COMMANDS = (
    "cat",
    "chmod",
    "chown",
    "cp",
    "du",
    "echo",
    "env",
    "find",
    "id",
    "ln",
    "ls",
    "mkdir",
    "mv",
    "rm",
    "sh",
    "sleep",
    "sync",
    "tar",
    "test",
    "touch",
    "true",
)
_HOST_AUTHORITIES = Path("/usr/local/share/ca-certificates")
_TORCH = """FROM {python}
RUN pip install --no-cache-dir numpy scikit-learn && pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu
"""


@dataclass(frozen=True)
class Bases:
    """Names of base images that the engine has or can get."""

    python: str
    """Python as on the host, with pip."""
    torch: str
    """The same; torch, numpy and scikit-learn can be imported in pods of the test cluster."""
    shell: str
    """A POSIX shell with cp, and little else."""


def ensure(engine: Engine, *, registry: bool) -> Bases:
    """The base images, made if need be. Raises ToolError."""
    if registry:
        python = f"python:{PYTHON[0]}.{PYTHON[1]}-slim"
        torch = f"trainjob-torch-base:{PYTHON[0]}.{PYTHON[1]}"
        if not engine.has_image(torch):
            say(f"building {torch} (once)")
            engine.docker("build", "-t", torch, "-", timeout_s=1200, stdin=_TORCH.format(python=python).encode())
        return Bases(python=python, torch=torch, shell="busybox:1.37-musl")
    python = _python(engine)
    return Bases(python=python, torch=python, shell=_shell(engine))


def _python(engine: Engine) -> str:
    suite = rootfs.SUITES.get(PYTHON)
    if suite is None:
        known = " or ".join(f"{major}.{minor}" for major, minor in rootfs.SUITES)
        raise ToolError(
            f"no Debian release has Python {PYTHON[0]}.{PYTHON[1]}: make the virtual environment with Python {known} "
            "(make setup PYTHON=...)"
        )
    authorities = sorted(_HOST_AUTHORITIES.glob("*.crt"))
    key = _key(inspect.getsource(_fill_python), suite, *_PACKAGES, *(path.read_text() for path in authorities))
    name = f"trainjob-python-base:{PYTHON[0]}.{PYTHON[1]}-{key}"
    return _kept(
        engine,
        name,
        lambda tree: _fill_python(tree, rootfs.debian(suite, _PACKAGES), authorities),
        {"Cmd": ["python3"]},
    )


def _fill_python(tree: Path, debian: Path, authorities: list[Path]) -> None:
    """Looks like the published Python images: `python` and `pip` on PATH, and pip may install."""
    run(["tar", "--numeric-owner", "-C", tree, "-xpf", debian], timeout_s=300)
    (tree / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    for path in tree.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        path.unlink()
    (tree / "usr/lib/python3/dist-packages/venv-site.pth").write_text(f"{VENV_SITE}\n")
    # What this machine trusts, so that pip reaches its index during a build.
    for path in authorities:
        shutil.copy(path, tree / "usr/local/share/ca-certificates" / path.name)
    run(["chroot", tree, "update-ca-certificates"], timeout_s=60)


def _shell(engine: Engine) -> str:
    name = f"trainjob-shell-base:{_key(inspect.getsource(_fill_shell), *_SHELL_COMMANDS)}"
    return _kept(engine, name, _fill_shell, {"Cmd": ["sh"]})


def _fill_shell(tree: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        try:
            run(["sh", "-c", f"cd {folder} && apt-get download busybox-static"], timeout_s=120)
        except ToolError:
            run(["apt-get", "update", "-q"], timeout_s=300)
            run(["sh", "-c", f"cd {folder} && apt-get download busybox-static"], timeout_s=120)
        run(["dpkg-deb", "-x", next(folder.glob("*.deb")), folder / "tree"], timeout_s=60)
        (tree / "bin").mkdir()
        shutil.copy(folder / "tree/bin/busybox", tree / "bin/busybox")
    for command in _SHELL_COMMANDS:
        (tree / "bin" / command).symlink_to("busybox")
    (tree / "tmp").mkdir()
    (tree / "tmp").chmod(0o1777)
    (tree / "etc").mkdir()
    (tree / "etc/passwd").write_text("root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")
    (tree / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")


def _key(*decides: str) -> str:
    """Of everything that decides an image's content: what is put in, and the code that does it."""
    return hashlib.sha256("\n".join(decides).encode()).hexdigest()[:8]


def _kept(engine: Engine, name: str, fill: object, config: dict[str, object]) -> str:
    """Load an image into the engine, from the cache or made by `fill(tree)`."""
    if engine.has_image(name):
        return name
    path = places.image_folder() / f"{name.replace(':', '-')}.tar"
    with locked(path.stem):
        if not path.exists():
            packages.need(packages.IMAGES)
            say(f"making {name} (once)")
            with tempfile.TemporaryDirectory(dir=places.image_folder(), prefix="base-") as folder:
                tree = Path(folder) / "tree"
                tree.mkdir(mode=0o755)
                fill(tree)  # type: ignore[operator]
                archive.write(tree, path, [name], config)
            for old in places.image_folder().glob(f"{path.stem.rsplit('-', 1)[0]}-*.tar"):
                if old != path:
                    old.unlink()
    engine.docker("load", "--input", path, timeout_s=300)
    return name
