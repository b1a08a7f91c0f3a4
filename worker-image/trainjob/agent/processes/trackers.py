"""Python's resource trackers, and torch's managers of shared memory: who kills processes spares them for a moment.

multiprocessing gives each program that spawns processes, or shares memory, a tracker: it takes away what has a name in
/dev/shm once all others of the program are gone, and then ends by itself. Where torch shares tensors by names (the
sharing strategy `file_system`) its `torch_shm_manager` does. Killed with them it could not, and the names would stay
until the machine starts anew. Called by `reaper`, `strays` and the local backend's `leftovers`. That one is
spared is no promise: what calls itself so and stays is killed when SPARED_S are over.
"""

from __future__ import annotations

import os
import signal
from typing import Set

from trainjob.agent.processes import family

SPARED_S = 2.0
_MARK = b"resource_tracker import main"
"""In the command line; joblib's own has the same words."""
_MANAGER = b"torch_shm_manager"
"""The name of its program."""
_PASSES = 5


def is_tracker(pid: int) -> bool:
    """Whether this process is one."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read()
    except OSError:
        return False
    return _MARK in line or os.path.basename(line.partition(b"\0")[0]) == _MANAGER


def kill_others(group: int) -> bool:
    """SIGKILL to all of a process group but its trackers; False, and nothing was done, if it has none."""
    killed: Set[int] = set()
    for _ in range(_PASSES):
        # One that has left the group may have children that are in it.
        living = [pid for pid in family.below() if _is_in(pid, group)]
        others = [pid for pid in living if not is_tracker(pid)]
        if not killed and len(others) == len(living):
            return False
        if killed.issuperset(others):
            return True
        # Once more: one of them may have forked before it was struck.
        for pid in others:
            _kill(pid)
        killed.update(others)
    return True


def _is_in(pid: int, group: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return False
    return len(fields) > 2 and fields[0] not in (b"Z", b"X") and int(fields[2]) == group


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
