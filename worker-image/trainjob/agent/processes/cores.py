"""How many cores this process and its children may use: what `OMP_NUM_THREADS` is divided from.

Asked by the agent for its ranks, and by the launcher and `tj doctor` on one's own machine.
"""

from __future__ import annotations

import os

ROOT = "/"
"""Where sys lies; tests have another."""
_QUOTA = "sys/fs/cgroup/cpu.max"


def cores() -> float:
    """By affinity and by the quota of this container's cgroup (v2), which may be a part of a core."""
    found = float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else float(os.cpu_count() or 1)
    try:
        with open(os.path.join(ROOT, _QUOTA), encoding="ascii") as file:
            quota, period = file.read().split()
        return found if quota == "max" else min(found, round(int(quota) / int(period), 1))
    except (OSError, ValueError):
        return found


def share(processes: int) -> int:
    """Threads of each of so many processes, at least one."""
    return max(1, int(cores()) // processes)
