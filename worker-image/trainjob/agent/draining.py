"""How a worker whose pod was told to end (SIGTERM) uses the time until it is gone. Pure.

Used by `agent`. Its ranks train on for a moment, until the operator has said whether they may go on to the next
checkpoint. If it gives them the time they do, and the attempt's end is another word; if it says anything else, or
nothing, they stop. What they saved is stored in what is left.
"""

from __future__ import annotations

from typing import Optional

from trainjob_api import contract

DRAIN_S = 25.0
"""From SIGTERM to our end, unless the operator says when the pod is gone: below the 30 s that a pod has by default."""
RANKS_DRAIN_S = 15.0
"""Of it, what the ranks have for themselves."""
ANSWER_S = 2.0
"""How long ranks train on before the operator has said that they may."""
LAST_RANKS_S = 5.0
"""What ranks have for themselves after the time that the operator gave them: a handler of theirs may still save."""
LEAVE_S = 1.0
"""Before the pod is gone: for our own end, so that SIGKILL does not tell of it."""


class Drain:
    """Of one agent, from SIGTERM on; all times by the loop's clock."""

    def __init__(self, attempt: Optional[int], now: float) -> None:
        """`attempt`: whose ranks train; None: there are none."""
        self._attempt = attempt
        self._told_at = now
        self._until = now + ANSWER_S
        self._given = False
        self.end_by = now + DRAIN_S
        """When all must be stored."""

    @property
    def ranks_s(self) -> float:
        """What ranks that are told to stop have for themselves."""
        return LAST_RANKS_S if self._given else RANKS_DRAIN_S

    def trains_until(self, training: Optional[int], told: contract.Instruction, now: float) -> Optional[float]:
        """Until when ranks train on, as things stand; None: they stop now. `training`: the attempt that has ranks;
        `told`: the newest word.
        """
        if self._attempt is None or training != self._attempt or self._ends(told):
            return None
        if "drain_s" in told and not self._given:
            self._given = True
            self._until = self._told_at + float(told["drain_s"])
            self.end_by = self._told_at + float(told.get("gone_s") or 0) - LEAVE_S
        return self._until if now < self._until else None

    def _ends(self, told: contract.Instruction) -> bool:
        """An operator that has just started does not know yet: what runs goes on."""
        if told.get("do") == contract.DO_WAIT:
            return False
        if told.get("do") != contract.DO_RUN or told.get("attempt") != self._attempt:
            return True
        return self._given and "drain_s" not in told
