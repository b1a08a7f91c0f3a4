"""How many files this agent may open. Rank 0's agent has a connection of each worker, and many container runtimes begin
at 1024: so the limit is raised at the agent's start. Its ranks get the one that the agent was given: programs that call
select() rely on small numbers.

Called by `__main__` (once, at its start), by `starter` in the child that is about to become a rank, and by who says
that a job is too large for the limit.
"""

from __future__ import annotations

import resource
from typing import Optional, Tuple

WANTED = 65536
"""Enough for the most workers that a job may have; more would cost what goes through all numbers (closerange)."""
OWN = 128
"""Listening sockets, logs, pipes, the storage child, copies in flight."""
OF_A_RANK = 4
"""Its pipe, its socket, its log, and one more while it starts."""
OF_WORKERS = 4 / 3
"""Files for each connection of a worker: beside them, a quarter of the limit may be taken by who is not known yet."""

_given: Optional[Tuple[int, int]] = None
"""The limits that this process began with, if it has others now."""


def raise_limit() -> Optional[str]:
    """Raise this process's soft limit to the hard one, or to WANTED; what was refused, as a sentence."""
    global _given
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _most(hard)
    if 0 <= soft < most:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (ValueError, OSError) as error:  # a sandbox, or fs.nr_open was lowered
            return f"this agent may open {soft} files; raising that to {most} was refused: {error}"
        _given = soft, hard
    return None


def give_back() -> None:
    """In a child between fork and exec: the limits that the agent was given."""
    if _given is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, _given)


def is_raised() -> bool:
    """Whether there is something to give back."""
    return _given is not None


def within_reach() -> int:
    """As many files as an agent on this machine may open; WANTED where nothing limits it."""
    return _most(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def workers_for(files: int, processes: int) -> int:
    """The most workers whose rank 0's agent, with so many ranks of its own, can do with so many open files."""
    return max(0, int((files - OWN - OF_A_RANK * processes) / OF_WORKERS))


def too_few(workers: int, processes: int) -> Optional[str]:
    """That rank 0's agent of a job of this size may open too few files, as a sentence; None: they are enough."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = workers_for(files, processes) if files >= 0 else workers
    if workers <= enough:
        return None
    return (
        f"worker 0 may open {files} files, which is enough for about {enough} workers, and this job has {workers}: "
        "raise the hard limit of open files of its container (RLIMIT_NOFILE, set by the node's container runtime)"
    )


def _most(hard: int) -> int:
    return WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
