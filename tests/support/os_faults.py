"""Calls of the operating system that fail in an agent, as they do on a full disk, at a limit, on a broken volume.

plan = OsFaults("open", "ENOSPC", path="/attempt.new", times=1)
with Rig(tmp_path, entry=os_faults.AGENT, env=plan.environment()) as rig: ...

In the process `python -m support.os_faults -- <command>` is an agent whose calls of the standard library (`open`,
`os.*`, `socket.*`, the fork under `subprocess.Popen`, selectors) go through a counter: those whose path (or, for calls
without one, whose nearest caller of ours) has `path` in it fail, from the `after`-th on, `times` times. Ranks and the
storage child are other processes, and whole, unless a plan's `module` is theirs. Each failure is written to `faults.log` beside the work dir.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import json
import os
import selectors
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from support.agent_rig import ROOT
from trainjob_api import contract

AGENT_MODULE = "support.os_faults"
AGENT = ("-m", AGENT_MODULE)
STORAGE_CHILD = "trainjob.checkpoint.storage_child.child"
FOR_EVER = 0
RECORD = -1
"""Nothing fails; what could is written to the log."""
_ENV = "TRAINJOB_TEST_OS_FAULTS"
LOG = "faults.log"


@dataclass(frozen=True)
class OsFaults:
    """One kind of call that fails."""

    call: str
    """`open`, `os.<name>` by its name, `write` (into files, by whatever call, and to the console), `read` (of files that
    are open), `close` (of files that are written: it is closed all the same), `fork`, `socket`, `accept`, `pipe`,
    `epoll`, `thread`.
    """
    error: str
    """Name of the errno."""
    path: str = ""
    after: int = 0
    times: int = 1
    module: str = AGENT_MODULE
    """Where: an agent's, or what it starts."""

    @property
    def entry(self) -> tuple[str, ...]:
        """A Rig's."""
        return AGENT if self.module == AGENT_MODULE else ("-m", "trainjob.agent")

    def environment(self) -> dict[str, str]:
        """For an agent."""
        roots = [str(ROOT / name) for name in ("operator", "worker-image", "tests")]
        if self.module != AGENT_MODULE:
            roots.append(str(ROOT / "tests/support/at_start"))
        return {_ENV: json.dumps(asdict(self)), "PYTHONPATH": os.pathsep.join(roots)}


class _Injector:
    def __init__(self, plan: OsFaults, log: str) -> None:
        self._plan = plan
        self._log = log
        self._seen = 0
        self._lock = threading.Lock()
        self._write = os.write
        self._fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.set_inheritable(self._fd, False)

    def check(self, what: object) -> None:
        text = os.fsdecode(what) if isinstance(what, (str, bytes, os.PathLike)) else str(what)
        plan = self._plan
        if plan.path not in text:
            return
        with self._lock:
            self._seen += 1
            if self._seen <= plan.after or (plan.times > 0 and self._seen > plan.after + plan.times):
                return
        self._write(self._fd, f"{text}\n".encode())
        if plan.times == RECORD:
            return
        if plan.call == "thread":
            raise RuntimeError("can't start new thread")  # Python's own words
        number = getattr(errno, plan.error)
        raise OSError(number, os.strerror(number), text)

    def wrapped(self, real: Callable[..., Any], what: Callable[..., object]) -> Callable[..., Any]:
        def call(*arguments: Any, **fields: Any) -> Any:
            self.check(what(*arguments, **fields))
            return real(*arguments, **fields)

        return call


def _name(file: Any, *arguments: Any, **fields: Any) -> object:
    """Of a path or a descriptor."""
    return os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else file


def _ours() -> str:
    """The nearest caller that is the agent's: file and function."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if "/trainjob/" in name:
            return f"{name}:{frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _arm(plan: OsFaults, log: str) -> None:
    injector = _Injector(plan, log)
    nearest = lambda *a, **k: _ours()  # noqa: E731
    first = lambda path=".", *a, **k: path  # noqa: E731
    if plan.call == "open":
        builtins.open = io.open = injector.wrapped(io.open, first)  # type: ignore[assignment]
        os.open = injector.wrapped(os.open, first)
    elif plan.call == "write":
        _arm_writes(injector)
    elif plan.call == "fork":
        fork: Any = subprocess.Popen
        fork._execute_child = injector.wrapped(fork._execute_child, nearest)
    elif plan.call == "socket":
        real = socket.socket.__init__

        def made(self: socket.socket, *a: Any, **k: Any) -> None:
            if "fileno" not in k and len(a) < 4:  # else one that is there already
                injector.check(_ours())
            real(self, *a, **k)

        socket.socket.__init__ = made  # type: ignore[method-assign]
    elif plan.call == "pipe":
        os.pipe = injector.wrapped(os.pipe, nearest)
    elif plan.call == "epoll":
        poll: Any = selectors.EpollSelector
        poll.register = injector.wrapped(poll.register, nearest)
    elif plan.call == "thread":
        thread: Any = threading.Thread
        thread.start = injector.wrapped(thread.start, nearest)
    elif plan.call in ("rename", "replace", "link"):
        setattr(os, plan.call, injector.wrapped(getattr(os, plan.call), lambda a, b, *r, **k: os.fspath(b)))
    elif plan.call == "accept":
        accepting: Any = socket.socket
        accepting.accept = injector.wrapped(accepting.accept, nearest)
    elif plan.call in ("memfd_create", "kill", "killpg"):
        setattr(os, plan.call, injector.wrapped(getattr(os, plan.call), nearest))
    elif plan.call in ("fsync", "fstat", "pread", "preadv", "pwrite", "ftruncate", "fchmod", "statvfs"):
        setattr(os, plan.call, injector.wrapped(getattr(os, plan.call), _name))
    elif plan.call == "symlink":
        os.symlink = injector.wrapped(os.symlink, lambda a, b, *r, **k: os.fspath(b))
    elif plan.call == "read":
        _arm_files(injector, "r")
    elif plan.call == "close":
        _arm_closes(injector)
    else:
        setattr(os, plan.call, injector.wrapped(getattr(os, plan.call), first))


class _File:
    """A file whose reads and writes go through the counter."""

    def __init__(self, file: Any, path: object, injector: _Injector) -> None:
        self._file = file
        self._path = path
        self._injector = injector

    def write(self, data: Any) -> int:
        self._injector.check(self._path)
        written: int = self._file.write(data)
        return written

    def read(self, *count: int) -> Any:
        self._injector.check(self._path)
        return self._file.read(*count)

    def readline(self, *count: int) -> Any:
        self._injector.check(self._path)
        return self._file.readline(*count)

    def readinto(self, buffer: Any) -> Any:
        self._injector.check(self._path)
        return self._file.readinto(buffer)

    def __iter__(self) -> Any:
        self._injector.check(self._path)
        return iter(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        self._file.__enter__()
        return self

    def __exit__(self, *how: Any) -> None:
        self._file.__exit__(*how)


class _Closing:
    """A file that is written, whose close goes through the counter: it is closed whatever comes of that."""

    def __init__(self, file: Any, path: object, injector: _Injector) -> None:
        self._file = file
        self._path = path
        self._injector = injector

    def close(self) -> None:
        if not self._file.closed:
            self._file.close()
            self._injector.check(self._path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __iter__(self) -> Any:
        return iter(self._file)

    def __enter__(self) -> _Closing:
        return self

    def __exit__(self, *how: object) -> None:
        self.close()


def _arm_files(injector: _Injector, modes: str) -> None:
    real = io.open

    def opened(path: Any, mode: str = "r", *arguments: Any, **fields: Any) -> Any:
        file = real(path, mode, *arguments, **fields)
        return _File(file, path, injector) if set(mode) & set(modes) else file

    builtins.open = io.open = opened  # type: ignore[assignment]


def _arm_closes(injector: _Injector) -> None:
    opens, close = io.open, os.close

    def opened(path: Any, mode: str = "r", *arguments: Any, **fields: Any) -> Any:
        file = opens(path, mode, *arguments, **fields)
        return _Closing(file, _name(path), injector) if set(mode) & set("wax+") else file

    def closed(fd: int) -> None:
        name = _written(fd)
        close(fd)
        if name is not None:
            injector.check(name)

    builtins.open = io.open = opened  # type: ignore[assignment]
    os.close = closed


def _written(fd: int) -> str | None:
    """The file's name behind a descriptor; None: no file, or one that is only read."""
    try:
        name = os.readlink(f"/proc/self/fd/{fd}")
        written = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
        return name if written and stat.S_ISREG(os.fstat(fd).st_mode) else None
    except OSError:
        return None


def _arm_writes(injector: _Injector) -> None:
    def target(fd: int, *arguments: Any) -> str:
        """A file's name, or who writes to what has none."""
        name = os.readlink(f"/proc/self/fd/{fd}")
        return name if name.startswith("/") and os.path.isfile(name) else _ours()

    _arm_files(injector, "wax+")
    os.write = injector.wrapped(os.write, target)
    os.sendfile = injector.wrapped(os.sendfile, lambda out, *rest: target(out))
    os.copy_file_range = injector.wrapped(os.copy_file_range, lambda source, out, *rest: target(out))


def arm_here(argv: list[str]) -> None:
    """If this process is the one that the plan in its environment is for."""
    plan = json.loads(os.environ.get(_ENV, "null"))
    if plan is not None and plan["module"] in argv:
        # Its working folder is the pod's volume.
        _arm(OsFaults(**plan), os.path.join(os.path.dirname(os.getcwd()), LOG))


def _main() -> None:
    plan = json.loads(os.environ.pop(_ENV, "null"))
    from trainjob.agent.__main__ import main

    if plan is not None:
        work = os.environ[contract.ENV_WORK_DIR]
        _arm(OsFaults(**plan), os.path.join(os.path.dirname(work), LOG))
    code = main()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        pass
    os._exit(code)


if __name__ == "__main__":
    _main()
