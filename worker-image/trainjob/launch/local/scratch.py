"""The private folder of one local job: payload, token, and a folder for each pod.

Made by `local.py`, removed at the job's end by the launcher, or by the last orphaned agent (`pod.py`) when the launcher
was killed; where that had no agent yet, by the process of which they were to be started (`kept.shared`), which becomes
`python -m` this module. Whether anyone still lives in it is told by a file lock that launcher and agents share.
Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterable

PREFIX = "trainjob-run-"
_LOCK = "lock"
_SOCKETS = "/tmp/trainjob-{uid}-"
"""How the short folder begins in which an agent keeps its sockets where `pod_folder` has too long a path for them."""
_NEWBORN_S = 60.0
"""A folder without its lock file may be one that is just being made."""


class Scratch:
    """A new folder, readable by this user alone, held by `descriptor` until `remove()`."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix=PREFIX)
        # Locked before it bears its name: a sweep must never find it there and free.
        newborn = os.path.join(self.path, _LOCK + ".new")
        self.descriptor = os.open(newborn, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        os.rename(newborn, os.path.join(self.path, _LOCK))
        os.mkdir(os.path.join(self.path, "pods"))
        self.tmp = os.path.join(self.path, "tmp")
        """TMPDIR of all ranks."""
        os.mkdir(self.tmp, 0o700)

    def pod_folder(self, uid: str) -> str:
        """The folder of one pod, made if absent. Its name is short: sockets live below it."""
        path = os.path.join(self.path, "pods", uid[:8])
        os.makedirs(path, mode=0o700, exist_ok=True)
        return path

    def remove(self) -> None:
        """Everything goes; call it when no pod is left."""
        if self.descriptor >= 0:
            _remove(self.path)
            os.close(self.descriptor)
            self.descriptor = -1


def places(files: Iterable[str]) -> tuple[str, ...]:
    """How the paths begin of all that belongs to the jobs whose launcher has these files open."""
    found: list[str] = []
    for path in (os.path.dirname(file) for file in files if os.path.basename(file) == _LOCK):
        if os.path.basename(path).startswith(PREFIX):
            found.append(os.path.join(path, ""))
            with contextlib.suppress(OSError):  # it has just been removed
                found += [_SOCKETS.format(uid=uid) for uid in os.listdir(os.path.join(path, "pods"))]
    return tuple(found)


def remove_sockets(uid: str) -> None:
    """A killed agent could not remove the short folder in which it kept its socket when `pod_folder` has too long a
    path for one.
    """
    for path in glob.glob(_SOCKETS.format(uid=uid[:8]) + "*"):
        if _owned(path):
            shutil.rmtree(path, ignore_errors=True)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        for uid in os.listdir(os.path.join(path, "pods")):
            remove_sockets(uid)
    shutil.rmtree(path, ignore_errors=True)


def remove_if_last(path: str, descriptor: int) -> bool:
    """For a process that inherited `descriptor`: let go, and remove the folder if nobody else holds it. Whether it
    did.
    """
    os.close(descriptor)
    return _remove_abandoned(path)


def sweep() -> list[str]:
    """Remove the folders of jobs whose processes were all killed; returns their paths."""
    mine = [path for path in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), PREFIX + "*")) if _owned(path)]
    return [path for path in mine if _remove_abandoned(path)]


def _owned(path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return found.st_uid == os.getuid()


def _is_old_folder(path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:  # its job has just ended
        return False
    return stat.S_ISDIR(found.st_mode) and time.time() - found.st_mtime >= _NEWBORN_S


def _remove_abandoned(path: str) -> bool:
    try:
        descriptor = os.open(os.path.join(path, _LOCK), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        if not _is_old_folder(path):
            return False
        shutil.rmtree(path, ignore_errors=True)
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        _remove(path)
        return True
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    _remove_abandoned(sys.argv[1])
