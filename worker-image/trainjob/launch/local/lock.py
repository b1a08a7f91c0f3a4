"""One job of a name at a time on this machine: a file lock that outlives a killed launcher in its orphaned agents.

The launcher takes it before anything else touches the job's folder, and agents inherit the descriptor: while the last
of them still stores a checkpoint, the next launcher of that name waits. The lock is on the open file description
(flock), so it goes with the last process that holds it, however that process ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from types import TracebackType

from trainjob.launch.errors import LaunchError

WAIT_S = 60.0
_POLL_S = 0.1


class JobRunning(LaunchError):
    """Another launcher runs a job in that folder."""


class JobLock:
    """Held from construction to `release()`."""

    def __init__(self, folder: str, *, wait_s: float = WAIT_S, on_wait: Callable[[str], None] | None = None) -> None:
        """Take the lock of the job whose folder on storage this is. Raises LaunchError when another launcher has it,
        or after `wait_s`.
        """
        self.path = lock_path(folder)
        self._descriptor = self._take(folder, wait_s, on_wait)
        os.truncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()} {started(os.getpid())}".encode(), 0)

    @property
    def descriptor(self) -> int:
        """To be inherited by the agents."""
        return self._descriptor

    def release(self) -> None:
        """Remove the file, then let go: whoever opened the removed file notices that it is not the one under the
        name.
        """
        if self._descriptor >= 0:
            remove(self.path)
            os.close(self._descriptor)
            self._descriptor = -1

    def _take(self, folder: str, wait_s: float, on_wait: Callable[[str], None] | None) -> int:
        deadline = time.monotonic() + wait_s
        told = False
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_current(descriptor, self.path):
                    return descriptor
            except BlockingIOError:
                owner = _owner(descriptor)
                if owner:
                    os.close(descriptor)
                    raise JobRunning(
                        f"a job that stores in {folder} is running already (launcher pid {owner}): wait for it, stop "
                        "it, or give this job another name"
                    ) from None
                if on_wait and not told:
                    told = True
                    on_wait(
                        "waiting for the workers of an earlier launcher that was killed: they still store a "
                        f"checkpoint in {folder}"
                    )
            os.close(descriptor)
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"the workers of an earlier launcher still hold {folder} after {wait_s:.0f} s (lock "
                    f"{self.path}): look for `trainjob.launch.local.pod` processes"
                )
            time.sleep(_POLL_S)

    def __enter__(self) -> JobLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def lock_path(folder: str) -> str:
    """The lock file of a job's folder: in the temporary directory, because flock is not reliable on network storage."""
    digest = hashlib.sha256(os.path.realpath(folder).encode()).hexdigest()[:16]
    return os.path.join(tempfile.gettempdir(), f"trainjob-{os.getuid()}-{digest}.lock")


def held(folder: str) -> bool:
    """Whether a job of this machine that stores in `folder` is running, or its agents still store something. Takes
    nothing.
    """
    try:
        descriptor = os.open(lock_path(folder), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def remove(path: str) -> None:
    """Unlink a lock file that the caller holds."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _is_current(descriptor: int, path: str) -> bool:
    """Whether the name still stands for the file that was locked; its last holder may have removed it in between."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _owner(descriptor: int) -> int | None:
    """Pid of the launcher that took the lock, while it lives; None when only its agents are left."""
    words = os.pread(descriptor, 64, 0).decode(errors="replace").split()
    if len(words) != 2 or not words[0].isdigit():
        return None
    pid = int(words[0])
    return pid if started(pid) == words[1] else None


def started(pid: int) -> str:
    """When the kernel started this process, so that a pid that was used again is told apart; empty for one that is
    gone or a zombie.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == b"Z" else fields[19].decode()
