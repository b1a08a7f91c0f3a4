"""Files that were opened to be read while the warm parent imported, and are open: forks have one place in each
together, and what one rank has read the others would not read. Each fork opens them anew, at the place where they are.

Called by `becoming` at the gate. A file that is written is not shared at all (`fitness`).
"""

from __future__ import annotations

import fcntl
import os
import stat


def have_own() -> None:
    """Of all such files of this process but the standard streams. Raises OSError: one cannot be opened again."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and _is_read(fd):
            _reopen(fd)


def _is_read(fd: int) -> bool:
    try:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        return not flags & (os.O_ACCMODE | os.O_PATH) and stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        return False  # the listing's own


def _reopen(fd: int) -> None:
    # What it is opened by is a link, whatever it was opened by before.
    flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_NOFOLLOW
    new = os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)
    try:
        os.lseek(new, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(new, fd, inheritable=os.get_inheritable(fd))
    finally:
        os.close(new)
