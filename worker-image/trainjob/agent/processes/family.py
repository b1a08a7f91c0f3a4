"""The processes below this agent, found from it downwards: a look at all of the machine's costs more the more others
there are.

Called by `trackers` and `strays`; `vitals` looks at what a rank has started. The agent is the sub-reaper of what it
starts (`adopt`), so that one that loses its parent becomes the agent's child and not that of the machine's first
process. Where the kernel refuses that, or lists no children, all processes are looked at.
"""

from __future__ import annotations

import os
from typing import Iterator, List

_PR_SET_CHILD_SUBREAPER = 36
_adopts = os.getpid() == 1


def adopt() -> None:
    """Become the parent of what loses its own."""
    import ctypes

    global _adopts
    _adopts = ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0 or _adopts


def is_known() -> bool:
    """Whether `below` gives descendants alone."""
    return _adopts and os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def below() -> List[int]:
    """All descendants of this process."""
    return below_of(os.getpid()) if is_known() else [pid for pid in _all() if pid != os.getpid()]


def below_of(pid: int) -> List[int]:
    """Those of another; none where the kernel lists no children."""
    found: List[int] = []
    parents = [pid]
    while parents:
        children = [pid for of_thread in children_by_thread(parents.pop(), whole=False) for pid in of_thread]
        found += children
        parents += children
    return found


def children_by_thread(pid: int, whole: bool) -> Iterator[List[int]]:
    """What each thread of a process has started. Of one that ends meanwhile some may be missing; `whole`: raises
    OSError then.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        if whole:
            raise
        return
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children = [int(child) for child in file.read().split()]
        except OSError:
            if whole:
                raise
            continue
        yield children


def _all() -> List[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
