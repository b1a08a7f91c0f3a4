"""How many cores this process and its children may use: what `OMP_NUM_THREADS` is divided from.

Asked by the agent for its ranks, and by the launcher and `tj doctor` on one's own machine.
"""

from __future__ import annotations

import os
from typing import List, Tuple

ROOT = "/"
"""Where sys lies; tests have another."""
_GROUPS = "sys/fs/cgroup"


def cores() -> float:
    """By affinity and by the quota of this container's cgroup (v2, else v1), which may be a part of a core."""
    found = float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else float(os.cpu_count() or 1)
    quota, period = _quota()
    return min(found, round(quota / period, 1)) if quota > 0 and period > 0 else found


def _quota() -> Tuple[int, int]:
    """Microseconds of each so many; (0, 0): there is no limit."""
    try:
        if words := _words("cpu.max"):
            return (0, 0) if words[0] == "max" else (int(words[0]), int(words[1]))
        v1 = [_words("cpu", f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        return (int(v1[0][0]), int(v1[1][0]))  # -1: no limit
    except (IndexError, ValueError):
        return 0, 0


def _words(*path: str) -> List[str]:
    try:
        with open(os.path.join(ROOT, _GROUPS, *path), encoding="ascii") as file:
            return file.read().split()
    except (OSError, ValueError):
        return []


def share(processes: int) -> int:
    """Threads of each of so many processes, at least one."""
    return max(1, int(cores()) // processes)
