"""What is known of the parent that is kept: a file in the user's state folder, beside its socket and its log.

There is one at most, of each machine that shares that folder. The folder is the user's alone; one that is not is not
used.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
import typing
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from trainjob.launch.local import lock
from trainjob.launch.local.kept.door import Door
from trainjob.launch.local.registry import records

LOG, LEARNED = "log", "learned.json"
_NOTE, _LOCK = "kept.json", "lock"
_LOCK_S, _POLL_S = 30.0, 0.05
"""Longer than anybody who is well holds it."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """Of one."""

    id: str
    pid: int
    born: str
    """When the kernel started it, so that its number is told apart when it is used again."""
    until: float
    """Seconds since the epoch: it ends by itself."""
    working_dir: str
    script: str
    """What was learned is of this one alone."""
    modules: tuple[str, ...]
    learned: tuple[str, ...]
    imports: tuple[str, ...]
    """What the script's text imported then."""
    place: Mapping[str, str]
    salt: str
    environ: Mapping[str, str]
    """Hashes of the values."""

    @property
    def lives(self) -> bool:
        """It is there."""
        return bool(self.born) and lock.started(self.pid) == self.born

    @property
    def age_s(self) -> float:
        """Since its start."""
        ticks = float(self.born) if self.born.isdigit() else 0.0
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def folder(*, make: bool = False) -> str:
    """Where it lies. Raises OSError: also where others could reach it. `make`: if absent."""
    path = os.path.join(records.state_folder(), "warm", os.uname().nodename)
    if make:
        os.makedirs(path, mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{path} is not this user's alone (mode 0700)")
    return path


def socket_of(id_: str) -> str:
    """Its name in the folder."""
    return f"{id_}.sock"


def door(note: Note) -> Door:
    """Where it is reached. Raises OSError."""
    return Door(folder(), socket_of(note.id))


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Nobody else puts one in its place, or renews it, meanwhile. Raises OSError."""
    descriptor = os.open(os.path.join(path, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    deadline = time.monotonic() + _LOCK_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError("another `tj` is about to change that, and does not come to an end") from None
            time.sleep(_POLL_S)


def find() -> Note | None:
    """The one that is there and lives."""
    note = _read()
    return note if note is not None and note.lives else None


def why_gone() -> str | None:
    """The last word of one that should be there by now, and is not; None: there is none that should."""
    note = _read()
    return None if note is None or note.lives or time.time() > note.until else last_word()


def last_word(log: str | None = None) -> str:
    """Of one that is going, or gone. `log`: its path; None: of the one that is kept."""
    try:
        with open(os.path.join(folder(), LOG) if log is None else log, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
    except OSError:
        lines = []
    return lines[-1] if lines else "it is gone"


def forget() -> None:
    """Of one that was ended."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder(), _NOTE))


def _read() -> Note | None:
    try:
        with open(os.path.join(folder(), _NOTE), encoding="utf-8") as file:
            found: dict[str, typing.Any] = json.load(file)
        values: dict[str, typing.Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in found.items()
        }
        note = Note(**values)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    return note if all(_is(getattr(note, name), kind) for name, kind in _KINDS.items()) else None


_KINDS = typing.get_type_hints(Note)


def _is(value: object, kind: object) -> bool:
    """As far as it matters: a file may be damaged."""
    origin = typing.get_origin(kind)
    if origin is tuple:
        return isinstance(value, tuple) and all(isinstance(each, str) for each in value)
    if origin is not None:
        return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
    return isinstance(value, (int, float) if kind is float else typing.cast(type, kind))


def write(note: Note) -> None:
    """Whole, or not at all. Raises OSError."""
    path = os.path.join(folder(make=True), _NOTE)
    with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(asdict(note), file)
    os.replace(path + ".new", path)
