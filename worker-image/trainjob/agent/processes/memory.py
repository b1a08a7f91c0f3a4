"""Whether the kernel killed something in this container for its memory: the counters of its memory cgroup, v1 and v2.

Asked by `ranks` when a process ends by SIGKILL that nobody here has sent. With cgroup v2 Kubernetes mostly has the
whole container killed, and the kubelet tells; with v1, or where one process goes alone, nobody else does. A container
sees its own group at the mount's root, or below it by the path in /proc/self/cgroup. `tj doctor` asks for the limit.
"""

from __future__ import annotations

import os
from typing import Iterator, List, NamedTuple, Optional, Tuple

ROOT = "/"
"""Where proc and sys lie; tests have another."""
UNLIMITED = 1 << 60
"""Larger limits are v1's way to say that there is none."""
WAY_OUT = "Give the worker more of it (resources.limits.memory), or use less: smaller batches, fewer loader processes."
ERROR_TYPE = "OutOfMemory"


class _Group(NamedTuple):
    counter: str
    """The file with a line `oom_kill <count>`."""
    limit: str


class OomKills:
    """Since it was made. Each kill explains one end."""

    def __init__(self) -> None:
        self._group = next((group for group in _groups() if _count(group) is not None), None)
        self._claimed = self._now()

    def claim(self) -> Optional[str]:
        """What to say of a process that was killed just now; None: it was not for memory, or nobody can tell."""
        if self._group is None or self._now() <= self._claimed:
            return None
        self._claimed += 1
        most = _limit(self._group)
        if most is None:
            return f"The kernel killed it because its node, or its pod, had no memory left. {WAY_OUT}"
        return f"The kernel killed it because its container reached its memory limit of {_size(most)}. {WAY_OUT}"

    def _now(self) -> int:
        return 0 if self._group is None else _count(self._group) or 0


def limit() -> Optional[int]:
    """What this container may take in all, in bytes; None: it has no limit, or nobody can tell."""
    return min((found for found in map(_limit, _groups()) if found is not None), default=None)


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
