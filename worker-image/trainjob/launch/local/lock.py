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

FOLDER = "/tmp"
"""Of the lock files: this machine's, and the same in every shell. TMPDIR is not, and flock is not reliable on network
storage, on which the job's folder and the user's home may be.
"""
WAIT_S = 60.0
_POLL_S = 0.1


class JobRunning(LaunchError):
    """Another launcher runs a job in that folder."""

    def __init__(self, folder: str, pid: int) -> None:
        super().__init__(
            f"a job that stores in {folder} is running already (launcher pid {pid}): wait for it, stop it, or give "
            "this job another name"
        )


class JobLock:
    """Held from construction to `release()`."""

    def __init__(self, folder: str, *, wait_s: float = WAIT_S, on_wait: Callable[[str], None] | None = None) -> None:
        """Take the lock of the job whose folder on storage this is. Raises LaunchError when another launcher has it,
        or after `wait_s`.
        """
        self.path = lock_path(folder)
        self._descriptor = self._take(folder, wait_s, on_wait)
        with contextlib.suppress(OSError):  # a full disk: others are not told who has it
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
            descriptor = self._open()
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_current(descriptor, self.path):
                    return descriptor
            except BlockingIOError:
                owner = _owner(descriptor)
                if owner:
                    os.close(descriptor)
                    raise JobRunning(folder, owner) from None
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

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise LaunchError(
                f"the job's lock {self.path} cannot be made ({error.strerror or error}): free some space in "
                f"{os.path.dirname(self.path)}, or remove what is in its place"
            ) from error

    def __enter__(self) -> JobLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def lock_path(folder: str) -> str:
    """The lock file of a job's folder, which may be one in a bucket."""
    place = folder if "://" in folder else os.path.realpath(folder)
    digest = hashlib.sha256(place.encode()).hexdigest()[:16]
    above = FOLDER if os.access(FOLDER, os.W_OK | os.X_OK) else tempfile.gettempdir()
    return os.path.join(above, f"trainjob-{os.getuid()}-{digest}.lock")


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


def holds(pid: int, folder: str) -> bool:
    """Whether that process has the job's lock, wherever its file is: a service or a batch job may have a `/tmp` of its
    own, and old files in one are cleared away. Linux alone.
    """
    name, descriptors = os.path.basename(lock_path(folder)), f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for each in os.listdir(descriptors):
            with contextlib.suppress(OSError):  # it was closed just now
                if os.path.basename(os.readlink(f"{descriptors}/{each}").removesuffix(" (deleted)")) == name:
                    return True
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
    fields = _stat(pid)
    return "" if not fields or fields[0] == b"Z" else fields[19].decode()


def is_halted(pid: int) -> bool:
    """Whether a signal has stopped this process, as Ctrl-Z does: it does nothing until it is continued."""
    return _stat(pid)[:1] == [b"T"]


def _stat(pid: int) -> list[bytes]:
    """What the kernel says of a process, from its state on; empty for one that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []
