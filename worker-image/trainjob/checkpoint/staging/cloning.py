"""A second file of the same contents, as soon as it can be had: blocks shared with the first (a reflink) or copied,
never a hard link.

Used by staging, while ranks wait. A reflink takes no space and, of what is on the disk, no time; but the file system
writes to the disk first what is not there yet, and of a checkpoint that was saved a moment ago that is everything. A
copy in memory is many times sooner then.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Callable

from trainjob.checkpoint.staging import page_cache
from trainjob.checkpoint.stores import transfer

_FICLONE = 0x40049409
_WRITE_FAILURES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_CHUNK = 64 << 20
"""After so many bytes it is asked whether to go on: a tenth of a second, even on a slow disk."""
GoOn = Callable[[], None]
"""Raises once nobody wants the copy any more."""
MEMORY_PER_DISK = 16
"""How many times as much a copy in memory moves as a disk writes in the same time; not measured here, since every
disk has its own figure.
"""


def nothing() -> None:
    """It goes on."""


def clone(source: int, target: int, go_on: GoOn = nothing) -> int:
    """Fill an empty file from another that nobody reads or writes meanwhile; the bytes written. Raises OSError, and
    what `go_on` raises.
    """
    if copy_is_sooner(source):
        try:
            return _copy(source, target, go_on)
        except OSError as error:
            # What does not fit twice may fit once.
            if error.errno not in _WRITE_FAILURES or not _reflink_anew(source, target):
                raise
            return os.fstat(target).st_size
    if reflink(source, target):
        return os.fstat(target).st_size
    return _copy_or_share(source, target, go_on)


def copy_is_sooner(source: int) -> bool:
    size = os.fstat(source).st_size
    return page_cache.unwritten(source) * MEMORY_PER_DISK > size and size < page_cache.room()


def reflink(source: int, target: int) -> bool:
    """Let an empty file share another's blocks; False where the file system cannot."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def _reflink_anew(source: int, target: int) -> bool:
    os.ftruncate(target, 0)
    return reflink(source, target)


def _copy(source: int, target: int, go_on: GoOn) -> int:
    """By sendfile: copy_file_range would share blocks where it can."""
    return _fill(source, target, lambda done: os.sendfile(target, source, done, _CHUNK), go_on)


def _copy_or_share(source: int, target: int, go_on: GoOn) -> int:
    return _fill(source, target, lambda _: os.copy_file_range(source, target, _CHUNK), go_on)


def _fill(source: int, target: int, move: Callable[[int], int], go_on: GoOn) -> int:
    """`move` takes what is done and returns how much it added."""
    done = 0
    try:
        while True:
            count = move(done)
            if not count:
                break
            done += count
            go_on()
    except OSError as error:
        # Some file systems cannot copy in the kernel; running out of space must surface.
        if done or error.errno in _WRITE_FAILURES:
            raise
    # The kernel's ways answer 0 for some pseudo files that do have bytes: the plain loop has the last word.
    os.lseek(source, done, os.SEEK_SET)
    return done + transfer.copy(source, target, lambda _count: go_on())[0]
