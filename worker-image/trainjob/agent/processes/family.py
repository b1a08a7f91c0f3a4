"""The processes below this agent, found from it downwards: a look at all of the machine's costs more the more others
there are.

Called by `trackers` and `strays`. The agent is the sub-reaper of what it starts (`adopt`), so that one that loses its
parent becomes the agent's child and not that of the machine's first process. Where the kernel refuses that, or lists no
children, all processes are looked at.
"""

from __future__ import annotations

import contextlib
import os
from typing import Callable, List

_PR_SET_CHILD_SUBREAPER = 36
_adopts = os.getpid() == 1


def adopt() -> None:
    """Become the parent of what loses its own."""
    import ctypes

    global _adopts
    _adopts = ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0 or _adopts


def below(goes_on: Callable[[int], bool] = lambda pid: True) -> List[int]:
    """All descendants of this process. `goes_on`: whether one of them counts, with what is below it."""
    if not _adopts or not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        return [pid for pid in _all() if pid != os.getpid() and goes_on(pid)]
    found: List[int] = []
    parents = [os.getpid()]
    while parents:
        children = [pid for pid in _children(parents.pop()) if goes_on(pid)]
        found += children
        parents += children
    return found


def _children(pid: int) -> List[int]:
    """Of all its threads; of one that ends meanwhile some may be missing."""
    found: List[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


def _all() -> List[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
