"""A small file system that can reflink (XFS in a file, by a loop device), and which blocks its files share. Needs
root and xfsprogs.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from support.patience import HANG_S

SIZE = 320 << 20
"""mkfs.xfs makes none below 300 MiB; the file that holds it is sparse."""
_BLOCK = 4096
_FIEMAP = 0xC020660B
_SYNC, _SHARED = 0x1, 0x2000
_HEAD, _EXTENT = struct.Struct("=QQLLLL"), struct.Struct("=QQQ16xL12x")


class Extent(NamedTuple):
    """A run of a file's bytes and where the device has them."""

    logical: int
    physical: int
    length: int
    shared: bool
    """Another file (or another part of this one) has the same blocks."""


@contextmanager
def mounted(folder: Path, size: int = SIZE) -> Iterator[Path]:
    """An empty one below `folder`, gone afterwards. Skips the test, with the reason, where this machine does not let
    us.
    """
    mkfs = shutil.which("mkfs.xfs", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if os.geteuid() != 0:
        pytest.skip("mounting a file system that can reflink needs root")
    if mkfs is None:
        pytest.skip("a file system that can reflink needs mkfs.xfs (Debian package xfsprogs)")
    image, root = folder / "xfs.img", folder / "xfs ü"
    root.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run([mkfs, "-q", "-m", "reflink=1", str(image)], check=True, timeout=HANG_S)
    done = subprocess.run(
        ["mount", "-t", "xfs", "-o", "loop", str(image), str(root)],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    image.unlink()  # the loop device keeps it as long as it is mounted
    if done.returncode:
        pytest.skip(f"a file system that can reflink cannot be mounted here: {done.stderr.strip().splitlines()[0]}")
    try:
        yield root
    finally:
        # Lazily: a process of a test that failed may take a moment to end. The device goes with the last of them.
        subprocess.run(["umount", "--lazy", str(root)], check=True, timeout=HANG_S)


def extents(path: Path) -> list[Extent]:
    """Where a file's bytes lie, once they are written out (ioctl FIEMAP); not what is kept behind its end for what
    may come.
    """
    room = 4096
    buffer = bytearray(_HEAD.pack(0, (1 << 64) - 1, _SYNC, 0, room, 0)) + bytearray(_EXTENT.size * room)
    with path.open("rb") as file:
        fcntl.ioctl(file, _FIEMAP, buffer)
    end = -(-path.stat().st_size // _BLOCK) * _BLOCK
    count = _HEAD.unpack_from(buffer)[3]
    assert count < room, f"{path} lies in too many pieces"
    found = (_EXTENT.unpack_from(buffer, _HEAD.size + _EXTENT.size * number) for number in range(count))
    return [
        Extent(logical, physical, min(length, end - logical), bool(flags & _SHARED))
        for logical, physical, length, flags in found
        if logical < end
    ]


def is_reflink(one: Path, other: Path) -> bool:
    """Whether these are two files with the very same blocks."""
    first, second = extents(one), extents(other)
    return (
        bool(first)
        and first == second
        and all(extent.shared for extent in first)
        and one.stat().st_ino != other.stat().st_ino
    )


def fill(root: Path, leave: int) -> None:
    """Take all space but about `leave` bytes."""
    handle = os.open(root / "filling", os.O_CREAT | os.O_WRONLY)
    try:
        size, step = 0, 1 << 26
        while step >= _BLOCK:
            try:
                os.posix_fallocate(handle, size, step)
                size += step
            except OSError:
                step //= 2
        os.ftruncate(handle, size - leave)
        os.fsync(handle)
    finally:
        os.close(handle)
