"""What a rank tells of its collectives, as torch's flight recorder has them: asked for where a job hangs.

Made by `trainjob.session.flight_recorder`, told in `standing`, compared by rank 0's agent. Standard library only,
Python 3.9.
"""

from __future__ import annotations

from typing import NamedTuple

GROUPS_LIMIT = 8
CALLS_EACH = 8
"""The last ones of each process group."""
DEFAULT_GROUP = "default_pg"
"""torch's name of the group of all ranks."""
TEXT_LIMIT = 120
"""Characters of a group's or a call's name."""


class Call(NamedTuple):
    """One collective of a process group."""

    group: str
    """Its name, the same on all its ranks and on no others."""
    number: int
    """It is the how manieth of its group on this rank, from 1 on; 0: this rank has called none, for sure."""
    what: str
    """The operation: all_reduce."""
    sizes: str
    """The tensors', where all ranks must have the same: `[1000] float`; else empty."""
    ended: bool
