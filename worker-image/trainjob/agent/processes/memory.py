"""Whether the kernel killed something in this container for its memory: the counters of its memory cgroup, v1 and v2.

Asked when a process ends by SIGKILL that nobody here has sent: a rank, a warm parent, the storage child. With cgroup v2
Kubernetes mostly has the whole container killed, and the kubelet tells; with v1, or where one process goes alone,
nobody else does. A container sees its own group at the mount's root, or below it by the path in /proc/self/cgroup.
`tj doctor` asks for the room.
"""

from __future__ import annotations

import os
import re
from typing import Iterator, List, NamedTuple, Optional, Tuple

from trainjob_api.contract import RankError

ROOT = "/"
"""Where proc and sys lie; tests have another."""
UNLIMITED = 1 << 60
"""Larger limits are v1's way to say that there is none."""
WAY_OUT = "Give the worker more of it (resources.limits.memory), or use less: smaller batches, fewer loader processes."
ERROR_TYPE = "OutOfMemory"
_TOLD = re.compile(
    r"DataLoader worker \(pid \d+\) is killed by signal: Killed|BrokenProcessPool|died with <Signals\.SIGKILL: 9>"
    r"|terminated with signal SIGKILL"
)
"""What torch and the standard library say of a process of theirs that SIGKILL ended."""


class _Group(NamedTuple):
    counter: str
    """The file with a line `oom_kill <count>`."""
    limit: str


def tells_of_a_kill(error: Optional[RankError]) -> bool:
    """Whether this exception comes of a process of the rank's (a loader's worker) that was killed."""
    if error is None:
        return False
    return any(_TOLD.search(text) for text in (error.get("message") or "", error.get("traceback") or ""))


class OomKills:
    """Since it was made. One for all children of an agent, as each kill explains one end."""

    def __init__(self) -> None:
        self._group = next((group for group in _groups() if _count(group) is not None), None)
        self.forget()

    def forget(self) -> None:
        """Those until now explain nothing that comes."""
        self._claimed = self._now()

    def claim(self, whom: str = "it") -> Optional[str]:
        """What to say of a process that was killed just now; None: it was not for memory, or nobody can tell."""
        if self._group is None or self._now() <= self._claimed:
            return None
        self._claimed += 1
        most = _limit(self._group)
        if most is None:
            return f"The kernel killed {whom} because its node, or its pod, had no memory left. {WAY_OUT}"
        return f"The kernel killed {whom} because its container reached its memory limit of {_size(most)}. {WAY_OUT}"

    def _now(self) -> int:
        return 0 if self._group is None else _count(self._group) or 0


def ends_one_alone() -> bool:
    """Whether the kernel, where this container is out of memory, ends one process of it; else all of them, or nobody
    can tell.
    """
    for group in _groups():
        if _count(group) is not None:
            one = _read(os.path.join(os.path.dirname(group.limit), "memory.oom.group")).strip() == "0"
            return one or group.counter.endswith("memory.oom_control")
    return False


def room() -> Optional[int]:
    """What processes of this container can still get, in bytes, files that are read again left out; None: nobody can
    tell.
    """
    found = [most - _used(group) for group in _groups() for most in (_limit(group),) if most is not None]
    for line in _read(os.path.join(ROOT, "proc/meminfo")).splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            found.append(int(value.split()[0]) * 1024)
    return max(0, min(found)) if found else None


def _used(group: _Group) -> int:
    folder = os.path.dirname(group.limit)
    used = _read(os.path.join(folder, "memory.current")) or _read(os.path.join(folder, "memory.usage_in_bytes"))
    stat = dict(line.partition(" ")[::2] for line in _read(os.path.join(folder, "memory.stat")).splitlines())
    cached = stat.get("total_inactive_file") or stat.get("inactive_file") or "0"
    return max(0, int(used.strip() or 0) - int(cached))


def _groups() -> Iterator[_Group]:
    """Where the counters may lie, the most fitting first."""
    mounts = os.path.join(ROOT, "sys/fs/cgroup")
    for version, path in _own_groups():
        name, counter, limit = (
            ("", "memory.events", "memory.max")
            if version == 2
            else ("memory", "memory.oom_control", "memory.limit_in_bytes")
        )
        # Mounted whole, the group lies below by its path; a container that sees its own alone has it at the mount.
        for below in (path, ""):
            folder = os.path.join(mounts, name, below)
            yield _Group(os.path.join(folder, counter), os.path.join(folder, limit))


def _own_groups() -> List[Tuple[int, str]]:
    """(version, path): v1's controller first, for where it is mounted v2 has no counters."""
    found = []
    for line in _read(os.path.join(ROOT, "proc/self/cgroup")).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            found.append((2, path.strip("/")))
        elif "memory" in controllers.split(","):
            found.insert(0, (1, path.strip("/")))
    return found


def _count(group: _Group) -> Optional[int]:
    for line in _read(group.counter).splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.isdigit():
            return int(value)
    return None


def _limit(group: _Group) -> Optional[int]:
    text = _read(group.limit).strip()
    return int(text) if text.isdigit() and int(text) < UNLIMITED else None


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:g} {unit}" if unit == "bytes" else f"{count:.1f} {unit}".replace(".0 ", " ")
        count /= 1024
    return f"{count:.1f} GiB".replace(".0 ", " ")
