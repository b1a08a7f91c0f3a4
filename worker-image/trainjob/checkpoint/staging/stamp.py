"""By what a kept file is known to be as it was: nobody writes to a file without changing its times.

Taken when a file is kept, once it is read-only, and compared wherever it is believed: by staging, by who serves it to
peers, by who stores it. That costs a stat, which is made for the size anyway. Times and inodes say nothing once the
kernel was started anew (what it had not written is lost, whatever the file's size): `boot` tells.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple, Optional

_BOOT = "/proc/sys/kernel/random/boot_id"


class Stamp(NamedTuple):
    """How a file looked. A user can set `mtime_ns`, but nobody sets `ctime_ns`."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, found: os.stat_result) -> Stamp:
        """From a stat or fstat."""
        return cls(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)

    @classmethod
    def at(cls, path: str) -> Optional[Stamp]:
        """As the file looks now; None when there is none."""
        try:
            return cls.of(os.stat(path))
        except OSError:
            return None

    @classmethod
    def from_json(cls, row: Any) -> Stamp:
        """Raises TypeError, ValueError."""
        return cls(*map(int, row))


def boot() -> str:
    """This start of the kernel; "" where it does not say."""
    try:
        with open(_BOOT, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
