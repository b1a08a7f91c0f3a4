"""Whether a process does anything: what the kernel has counted of it by now. Linux.

Looked at by `member` when it is asked where ranks stand. A thread that waits for something that never comes uses no
time, and is woken by nobody; one that works, however long its call, uses processor time, or is woken again and again
(a slow disk, a slow network).
"""

from __future__ import annotations

import os
from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple

from trainjob.agent.processes import family

_SELF_ENDING = b"nanosleep"
"""Where the kernel says a thread waits whose sleep ends by itself."""
_TASKS_LIMIT = 20_000
"""Threads and processes that are looked at; more: nothing is said."""


class Vitals(NamedTuple):
    """What was counted so far. Times are in the kernel's ticks (10 ms)."""

    born: bytes
    """Of the process with this number: a later one is another."""
    main_ticks: int
    """Processor time of its main thread,"""
    all_ticks: int
    """and of all its threads and descendants."""
    wakes: int
    """How often the main thread has given up the processor by itself: it waits anew each time."""
    bytes: int
    """Read and written by calls, its descendants' included."""
    sleeps: bool
    """The main thread has asked for a sleep of a certain length."""


def vitals(pid: int) -> Optional[Vitals]:
    """Of a process; None: it is gone, or cannot be looked at."""
    try:
        own = _fields(f"/proc/{pid}/task/{pid}/stat")
        tree = _tree(pid)
        return Vitals(
            born=own[19],
            main_ticks=int(own[11]) + int(own[12]),
            all_ticks=sum(_ticks(f"/proc/{each}/stat") for each in tree),
            wakes=_number(f"/proc/{pid}/task/{pid}/status", b"voluntary_ctxt_switches:"),
            bytes=sum(_number(f"/proc/{each}/io", b"rchar:") + _number(f"/proc/{each}/io", b"wchar:") for each in tree),
            sleeps=_SELF_ENDING in _read(f"/proc/{pid}/wchan"),
        )
    except (OSError, ValueError, IndexError):
        return None


def _tree(pid: int) -> List[int]:
    """The process and its descendants. Raises OSError where the kernel does not tell, or one ends meanwhile."""
    found, at, tasks = [pid], 0, 0
    while at < len(found):
        for of_thread in family.children_by_thread(found[at], whole=True):
            tasks += 1
            if tasks > _TASKS_LIMIT:
                raise OSError("too many threads")
            found += of_thread
        at += 1
    return found


def _ticks(path: str) -> int:
    """With those of children that have ended and were waited for."""
    fields = _fields(path)
    return sum(int(fields[at]) for at in (11, 12, 13, 14))


def _fields(path: str) -> List[bytes]:
    return _read(path).rpartition(b")")[2].split()


def _number(path: str, name: bytes) -> int:
    for line in _read(path).splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise OSError(f"{path} has no {name.decode()}")


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


class Quiet(NamedTuple):
    """What two looks say of a process: for how many seconds its main thread used no time; 0: it did."""

    main_s: float
    all_s: float
    """The same, of all that the process has, and its main thread was woken by nobody."""
    sleeps: bool = False
    """All that time it was in one sleep, which ends by itself."""


NOT_QUIET = Quiet(0.0, 0.0)
_NOISE_TICKS = 1
"""A tick is counted whole, whatever part of it was used."""
_BESIDE_SHARE = 0.01
"""Of a processor, for threads that only keep a connection or a progress bar."""
_TICKS_S = os.sysconf("SC_CLK_TCK")
_BYTES = 64 * 1024
"""What such threads, and our own messages, read and write meanwhile."""


def quiet(before: Optional[Vitals], now: Optional[Vitals], seconds: float) -> Quiet:
    """`seconds`: what lies between the two. Pure."""
    if before is None or now is None or before.born != now.born or now.bytes - before.bytes > _BYTES:
        return NOT_QUIET
    if now.main_ticks - before.main_ticks > _NOISE_TICKS:
        return NOT_QUIET
    beside = now.all_ticks - before.all_ticks
    rests = 0 <= beside <= _NOISE_TICKS + _BESIDE_SHARE * seconds * _TICKS_S and before.wakes == now.wakes
    return Quiet(seconds, seconds if rests else 0.0, rests and now.sleeps)


class Stillness:
    """An agent's: between two looks at its ranks, which of them did nothing. `settle` ends a look, `since` begins the
    next; what a look itself costs a rank lies outside.
    """

    def __init__(self) -> None:
        self._seen: Dict[int, Tuple[Optional[Vitals], float]] = {}

    def since(self, now: float, pids: Mapping[int, int]) -> Dict[int, Quiet]:
        """Of each rank's process, since it was looked at last. `now`: any clock that is not set, in seconds."""
        said: Dict[int, Quiet] = {}
        for rank, pid in pids.items():
            if rank in self._seen:
                before, at = self._seen[rank]
                said[rank] = quiet(before, vitals(pid), now - at)
        return said

    def settle(self, now: float, pids: Mapping[int, int]) -> None:
        """They have been looked at."""
        self._seen.update({rank: (vitals(pid), now) for rank, pid in pids.items()})
