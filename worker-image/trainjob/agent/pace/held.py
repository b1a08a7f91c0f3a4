"""What the kernel says kept a rank's main thread from running though it had work: no processor was free, its process
was stopped, or it waited for a disk. Linux; elsewhere nothing is said.

Looked at by `hangs.stopped` each second, asked by `telling` when a rank tells of its pace.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Dict, Mapping, NamedTuple, Optional


class Shares(NamedTuple):
    """Of the time since it was asked last: 0 to 1 each."""

    queued: float = 0.0
    """Ready, and no processor was given to it: other processes had them, or a limit of its container held it back."""
    stopped: float = 0.0
    disk: float = 0.0
    """It waited in the kernel where no signal wakes it: a disk, a network file system, memory that comes from swap."""
    noise: float = 0.0
    """The standard error of these: they rest on some looks."""


@dataclass
class _Seen:
    pid: int
    delay_ns: int
    """For how long its main thread had been kept from a processor, in all,"""
    at: float
    """when it was asked last."""
    looks: int = 0
    stopped: int = 0
    disk: int = 0


class Held:
    """An attempt's ranks on this agent."""

    def __init__(self) -> None:
        self._seen: Dict[int, _Seen] = {}

    def look(self, now: float, pids: Mapping[int, int], states: Mapping[int, Optional[str]]) -> None:
        """`states`: the kernel's letter for each rank's process."""
        for rank, pid in pids.items():
            seen = self._seen.get(rank)
            if seen is None or seen.pid != pid:
                seen = self._seen[rank] = _Seen(pid, delay_ns(pid) or 0, now)
            seen.looks += 1
            seen.stopped += states.get(rank) == "T"
            seen.disk += states.get(rank) == "D"

    def take(self, now: float, rank: int) -> Shares:
        """Since it was asked last."""
        seen = self._seen.get(rank)
        if seen is None:
            return Shares()
        delay, passed = delay_ns(seen.pid), now - seen.at
        found = shares(seen, delay, passed)
        self._seen[rank] = _Seen(seen.pid, seen.delay_ns if delay is None else delay, now)
        return found


def shares(seen: _Seen, delay: Optional[int], passed_s: float) -> Shares:
    """Pure."""
    queued = 0.0 if delay is None or passed_s <= 0 else (delay - seen.delay_ns) / 1e9 / passed_s
    looks = max(1, seen.looks)
    stopped, disk = seen.stopped / looks, seen.disk / looks
    noise = sqrt((stopped * (1 - stopped) + disk * (1 - disk)) / looks)
    return Shares(min(1.0, max(0.0, queued)), stopped, disk, noise)


def delay_ns(pid: int) -> Optional[int]:
    """Documentation/scheduler/sched-stats.rst: time spent waiting on a run queue, of the main thread."""
    try:
        with open(f"/proc/{pid}/task/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return None
