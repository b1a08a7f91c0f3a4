"""How an attempt begins on this agent, part by part: for the clock on every recovery (docs/recovery.md).

Made when the agent is told to `run`; the attempt notes its own parts, its ranks tell theirs once, with their first
step. All of it by the monotonic clock of this machine, which ranks and agent share. Pure but for reading that clock.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Dict, Optional

from trainjob.agent import steady
from trainjob_api.contract import BeginReport, EffortReport
from trainjob_api.rank_messages import Begun

if TYPE_CHECKING:
    from trainjob.agent.barriers.effort import Effort

STOPPED, JOINED, FORKED, GROUP, RESTORED, FIRST_STEP = (
    "stopped",
    "joined",
    "forked",
    "group",
    "restored",
    "first_step",
)


class Beginning:
    """One per attempt."""

    def __init__(self, told: Optional[float] = None) -> None:
        self._told = steady.now() if told is None else told
        self._at: Dict[str, float] = {}

    def note(self, part: str) -> None:
        """It is over now; only the first time counts."""
        self._at.setdefault(part, steady.now())

    def began(self, word: Begun) -> None:
        """A rank's own word. A group is up, and a checkpoint read, when the last rank says so; one rank that steps
        means that all can.
        """
        for part, moment in ((GROUP, word.group), (RESTORED, word.restored)):
            if moment is not None:
                self._at[part] = max(self._at.get(part, 0.0), steady.of_monotonic(moment))
        if word.first_step is not None:
            first = steady.of_monotonic(word.first_step)
            self._at[FIRST_STEP] = min(self._at.get(FIRST_STEP, first), first)

    def effort(self, effort: Effort) -> EffortReport:
        """What rank 0's agent reports of the attempt's work, in this clock's terms."""
        now, saved = time.monotonic(), effort.saved_at
        return {
            "saved": None if saved is None else max(0, round((steady.of_monotonic(saved) - self._told) * 1000)),
            "checkpoint": round(effort.checkpoint_s(now) * 1000),
            "stalled": round(effort.stalled_s(now) * 1000),
            "idle": round(effort.idle_s(now) * 1000),
        }

    def report(self) -> BeginReport:
        """As the coordinator gets it."""
        found: BeginReport = {"told": round(self._told, 3)}
        for part, moment in self._at.items():
            found[part] = max(0, round((moment - self._told) * 1000))  # type: ignore[literal-required]
        return found
