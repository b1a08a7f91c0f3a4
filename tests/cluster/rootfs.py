"""Debian root file systems from the Debian archive (debootstrap), kept as tar files keyed by what is in them.

Used by `base_images.py` and `node_image.py`; they change an unpacked copy and make an image of it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cluster import places
from cluster.binaries import locked
from cluster.process import ToolError, run, say

MIRROR = os.environ.get("TRAINJOB_DEBIAN_MIRROR")
"""Absent: debootstrap's own default."""
SUITES = {(3, 11): "bookworm", (3, 13): "trixie"}
"""Debian's release by the version of its python3."""


def debian(suite: str, packages: Sequence[str]) -> Path:
    """A tar of a minimal Debian with these packages; debootstrap runs the first time only. Raises ToolError."""
    key = hashlib.sha256(f"{suite} {' '.join(sorted(packages))}".encode()).hexdigest()[:12]
    path = places.image_folder() / f"debian-{suite}-{key}.tar"
    with locked(path.stem):
        if not path.exists():
            if os.geteuid() != 0:
                raise ToolError(
                    f"debootstrap of {suite} needs root: run as root, or use a machine with Docker and a registry"
                )
            _debootstrap(suite, packages, path)
    return path


def _debootstrap(suite: str, packages: Sequence[str], path: Path) -> None:
    say(f"debootstrap of {suite} with {len(packages)} packages (once)")
    begun = time.monotonic()
    places.image_folder().mkdir(parents=True, exist_ok=True)
    log = places.image_folder() / f"{path.stem}.log"
    with tempfile.TemporaryDirectory(dir=places.image_folder(), prefix="rootfs-") as folder:
        root = Path(folder) / "root"
        run(
            [
                "debootstrap",
                "--variant=minbase",
                f"--include={','.join(packages)}",
                suite,
                root,
                *([MIRROR] if MIRROR else []),
            ],
            timeout_s=900,
            log=log,
        )
        for waste in (
            "var/cache/apt/archives",
            "var/lib/apt/lists",
            "var/log",
            "usr/share/doc",
            "usr/share/man",
            "usr/share/locale",
            "usr/share/info",
        ):
            shutil.rmtree(root / waste, ignore_errors=True)
            (root / waste).mkdir(parents=True)
        pack(root, path)
    say(f"debootstrap of {suite} took {time.monotonic() - begun:.0f} s")


def pack(root: Path, path: Path) -> None:
    """Make a tar of a tree, as root's, whole or not at all."""
    part = path.with_suffix(".part")
    run(
        [
            "tar",
            "--numeric-owner",
            "--exclude=./proc/*",
            "--exclude=./sys/*",
            "--exclude=./dev/*",
            "-C",
            root,
            "-cf",
            part,
            ".",
        ],
        timeout_s=300,
    )
    part.rename(path)


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """A copy of the tree that may be changed; gone afterwards."""
    with tempfile.TemporaryDirectory(dir=places.image_folder(), prefix="rootfs-") as folder:
        root = Path(folder) / "root"
        root.mkdir()
        run(["tar", "--numeric-owner", "-C", root, "-xpf", path], timeout_s=300)
        yield root
