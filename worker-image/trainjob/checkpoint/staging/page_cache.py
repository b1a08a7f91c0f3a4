"""What the kernel holds in memory of a file and has not written to its disk yet.

Used by `cloning`. Linux alone; asks, and changes nothing. Sources: cachestat(2) (since Linux 6.5), /proc/vmstat, the
kernel's mm/page-writeback.c for when writers are held up.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from typing import Optional

_CACHESTAT = 451
"""The same number on every architecture."""
_VMSTAT = "/proc/vmstat"
_COUNTS = re.compile(
    rb"^(nr_dirty|nr_writeback|nr_dirty_threshold|nr_dirty_background_threshold) ([0-9]+)$", re.MULTILINE
)
"""Asked for each file that is staged, of which there may be many: the other 180 lines are passed over."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_PAGE = os.sysconf("SC_PAGE_SIZE")
WRITTEN_AFTER_S = 35.0
"""By then the kernel has begun to write what nobody asked it to (vm.dirty_expire_centisecs: 30 s, looked at every 5
s).
"""


class _Range(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _Stat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")]


def unwritten(file: int) -> int:
    """Bytes of an open file that are not on its disk yet. A kernel that cannot say: all of them, if it was written
    lately, else none.
    """
    found = _cachestat(file)
    if found is not None and found.cached:
        return int(found.dirty + found.writeback) * _PAGE
    # Nothing cached: an overlay, whose pages belong to the file below it, says that too.
    now = os.fstat(file)
    return now.st_size if abs(time.time() - now.st_mtime) < WRITTEN_AFTER_S else 0


def room() -> int:
    """Bytes that may be written to files before the kernel makes writers wait for disks; 0 where it does not say."""
    try:
        with open(_VMSTAT, "rb", buffering=0) as file:
            pages = {name: int(value) for name, value in _COUNTS.findall(file.read())}
        limit = (pages[b"nr_dirty_threshold"] + pages[b"nr_dirty_background_threshold"]) // 2
        return max(0, limit - pages[b"nr_dirty"] - pages[b"nr_writeback"]) * _PAGE
    except (OSError, KeyError):
        return 0


def _cachestat(file: int) -> Optional[_Stat]:
    whole, found = _Range(0, 0), _Stat()
    try:
        answer = _LIBC.syscall(_CACHESTAT, file, ctypes.byref(whole), ctypes.byref(found), 0)
    except (OSError, AttributeError):
        return None
    return found if answer == 0 else None
