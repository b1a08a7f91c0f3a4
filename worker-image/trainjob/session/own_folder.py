"""A folder of user code's own with the files of a checkpoint, for `as_directory()`: what is done in it is done to it
alone.

New files, renames, removals and `os.replace` never reach beyond any folder of links. Writing into a file does, so what
is small is copied, and what is large is reflinked where the file system can. The rest are links to files that are kept
read-only; for a worker's checkpoints the agent has seen to it that none of them is the only one (`gathering`). Made by
`contents`. Reading is as lazy as ever: nothing large is touched.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import weakref
from typing import Dict, List, Sequence, Tuple

COPIED_BYTES = 64 << 20
"""Of a folder's smallest files so many bytes are copied: some hundredths of a second, and what most loops save."""
COPIED_FILES = 1000
ROOM_LEFT = 1 << 30
"""Bytes that copying leaves free on a disk."""
OLDER_NS = 60 * 10**9
"""So much older than it is looks what was copied. A file that is written to has the time of the kernel's last tick: up
to ten milliseconds before Linux 6.13, within which a copy and a write look alike.
"""
PREFIX = "trainjob-checkpoint-"
Look = Tuple[int, int, int]
"""Of an entry itself: (inode, ctime, mtime)."""


class OwnFolder:
    """Made whole by its constructor. Raises OSError."""

    def __init__(self, owner: object, source: str, paths: Sequence[str], expendable: bool) -> None:
        """`expendable`: someone else has what lies in `source`, so that a link will do even if its target could be
        written to. `owner`: the folder stays at least as long as this does.
        """
        self.links: Dict[str, Look] = {}
        """Paths that lead to files of `source`, and how those looked."""
        _remove_abandoned()
        self.path = tempfile.mkdtemp(prefix=PREFIX)
        _made.append((weakref.ref(owner), self.path, os.getpid()))
        self._source = source
        self._expendable = expendable
        self._reflinks = True
        sizes = sorted((os.stat(os.path.join(source, path)).st_size, path) for path in paths)
        left = COPIED_BYTES
        for number, (size, path) in enumerate(sizes):
            left -= size
            os.makedirs(os.path.dirname(os.path.join(self.path, path)), exist_ok=True)
            self._put(path, size, small=left >= 0 and number < COPIED_FILES)
        self._looks = _looks(self.path)

    def is_as_it_was(self) -> bool:
        """Whether nobody changed anything in it, nor wrote through one of its links."""
        try:
            return _looks(self.path) == self._looks and all(
                _look(os.path.join(self._source, path), follow=True) == look for path, look in self.links.items()
            )
        except OSError:
            return False

    def wrote_through(self, path: str) -> bool:
        """Whether the file behind this link is another than it was."""
        try:
            return path in self.links and _look(os.path.join(self._source, path), follow=True) != self.links[path]
        except OSError:
            return True

    def _put(self, path: str, size: int, small: bool) -> None:
        source, target = os.path.join(self._source, path), os.path.join(self.path, path)
        if small or self._reflinked(source, target) or self._must_be_copied(source, size):
            if not os.path.lexists(target):
                shutil.copyfile(source, target)
            made = os.stat(target)
            os.utime(target, ns=(made.st_atime_ns, made.st_mtime_ns - OLDER_NS))
            return
        os.symlink(os.path.realpath(source), target)
        self.links[path] = _look(source, follow=True)

    def _reflinked(self, source: str, target: str) -> bool:
        """Also of a file that was written a moment ago, as long as the disk need not be waited for."""
        from trainjob.checkpoint.staging import cloning  # few ranks come here

        if not self._reflinks:
            return False
        with open(source, "rb", buffering=0) as kept, open(target, "xb", buffering=0) as copy:
            if not cloning.copy_is_sooner(kept.fileno()):
                if cloning.reflink(kept.fileno(), copy.fileno()):
                    return True
                self._reflinks = False
        os.unlink(target)
        return False

    def _must_be_copied(self, source: str, size: int) -> bool:
        """It can be written to, since it is not protected or we are root; and there is room."""
        if self._expendable or not os.access(source, os.W_OK):
            return False
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize - size > ROOM_LEFT


_made: List[Tuple[weakref.ref[object], str, int]] = []
"""(owner, folder, the process that made it: a forked child's exit removes nothing)."""


def _remove_abandoned() -> None:
    """Folders whose checkpoint handles are gone. Not sooner: `torch.load(get_checkpoint().path + ...)` keeps none."""
    for made in [made for made in _made if made[0]() is None]:
        _made.remove(made)
        _remove(made)


def forget() -> None:
    """Remove every folder: at the end of this process."""
    while _made:
        _remove(_made.pop())


def _remove(made: Tuple[weakref.ref[object], str, int]) -> None:
    if made[2] == os.getpid():
        shutil.rmtree(made[1], ignore_errors=True)


atexit.register(forget)


def _looks(folder: str) -> Dict[str, Look]:
    found: Dict[str, Look] = {}
    for here, folders, files in os.walk(folder):
        for name in (*folders, *files):
            look = _look(os.path.join(here, name), follow=False)
            # A folder changes with what is in it, which is looked at.
            found[os.path.relpath(os.path.join(here, name), folder)] = look if name in files else (look[0], 0, 0)
    return found


def _look(path: str, follow: bool) -> Look:
    found = os.stat(path) if follow else os.lstat(path)
    return (found.st_ino, found.st_ctime_ns, found.st_mtime_ns)
