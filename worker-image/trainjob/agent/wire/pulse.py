"""Whether who is connected still lives: a frozen process (SIGSTOP, a frozen cgroup, a machine that hangs) keeps its
connections, for the kernel answers for it.

Used at both ends of a member's link to rank 0's agent: by `peers.LeaderLink` and by `attempts.leader`. Each side says
something at least every BEAT_S, a beat where there was nothing else to say, and whoever has not been heard for SILENT_S
counts as not reached until it is heard again. The link stays: a process that goes on finds everything as it was.

Pure. Whoever watches may have been frozen itself: a tick that comes late says nothing of others, who get their time
anew.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from trainjob_api import wire

BEAT_S = 5.0
"""Something is said on each link at least so often."""
SILENT_S = 20.0
"""An agent is busy for seconds at most; only silence towards the coordinator too, for longer, makes it lost."""
BEAT = "beat"
FRAME = wire.encode({"op": BEAT})


class Beat(NamedTuple):
    """In both directions: nothing else was to be said, and the sender lives."""


class Pulse:
    """One side's watch over its links. Call `tick` every BEAT_S, by the clock that the links' `heard_at` goes by."""

    def __init__(self, now: float) -> None:
        self._ticked = now
        self._awake_since = now

    def tick(self, now: float) -> None:
        """We live."""
        if now - self._ticked > 2 * BEAT_S:
            self._awake_since = now
        self._ticked = now

    def silent_since(self, heard_at: float) -> Optional[float]:
        """Since when, if who was last heard then has been silent for too long."""
        since = max(heard_at, self._awake_since)
        return since if self._ticked - since >= SILENT_S else None
