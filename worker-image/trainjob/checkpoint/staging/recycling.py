"""What stays of a checkpoint that leaves the staging area, for the next one to be written over.

A step that saves waits for the memory of new files longer than for their bytes: it has to be found and cleared. So the
files that ranks save under the same names each time (`from_dict`, `save_sharded`) stay until a rank takes them
(`session.recycled`), those of one checkpoint at a time, and only what nobody else has: a rank may have mapped what it
resumed from. Called by `area`, from its thread. Nothing of it is needed: whatever fails, the file goes, as ever.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
from typing import Callable, Iterator, List, Optional, Tuple

from trainjob.checkpoint.stores import mounts
from trainjob_api import contract

LEAST = 1 << 20
"""Of smaller files nothing is gained."""
SPARE = 2
"""For so many times what waits there must be room beside it: then a volume that holds two of a job's largest
checkpoints, as users are told to give, takes the next one whatever its files and its size. What waits is about as large
as the newest: four of that size fit, or the largest is at least twice as large.
"""
_MAPPED_IS_OPEN = ("tmpfs", "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs")
"""Where a mapping counts as an open file, as a lease has it. On others it may be one of another file: overlayfs maps
that of the layer below.
"""
Room = Callable[[], Optional[int]]
"""Bytes of memory that can still be had; None: nobody can tell."""


class Recycling:
    """One for a staging area, on its volume."""

    def __init__(self, folder: str, room: Room) -> None:
        self._folder = folder
        self._room = room

    def keep(self, removed: str) -> None:
        """Take out of the folder of a removed checkpoint, of which nobody knows any more, what may be written over."""
        self.clear()
        with contextlib.suppress(OSError):
            found = list(_fitting(removed))
            if not found or mounts.kind_of(removed) not in _MAPPED_IS_OPEN:
                return
            if SPARE * sum(size for _, size in found) > self._room_left():
                return
            os.makedirs(self._folder, exist_ok=True)
            for name, _ in found:
                path = os.path.join(removed, name)
                if _is_nobodys(path):
                    os.chmod(path, stat.S_IMODE(os.lstat(path).st_mode) | stat.S_IWUSR)
                    os.rename(path, os.path.join(self._folder, name))

    def clear(self) -> None:
        """What nobody has taken goes."""
        for name in _listed(self._folder):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._folder, name))

    def _room_left(self) -> int:
        """In which a checkpoint of other files must find its place."""
        volume = os.statvfs(os.path.dirname(self._folder))
        return min(volume.f_bavail * volume.f_frsize, self._room() or 0)


def _listed(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _fitting(folder: str) -> Iterator[Tuple[str, int]]:
    for name in _listed(folder):
        if name == contract.DICT_FILE or name.endswith(contract.SHARD_SUFFIX):
            size = os.lstat(os.path.join(folder, name)).st_size
            if size >= LEAST:
                yield name, size


def _is_nobodys(path: str) -> bool:
    """Whether no process has it open or mapped, and it has no other name. Raises OSError.

    The kernel grants a lease for writing only then (fcntl(2), F_SETLEASE; a mapping counts as an open file), where it
    grants one at all.
    """
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            return False
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)  # who opens it now: the usual signal would end us
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except BlockingIOError:
            return False
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return True
    finally:
        os.close(file)
