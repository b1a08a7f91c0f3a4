"""Whether a report() that has just saved a checkpoint is the end of the attempt: a planned change waits for one. Pure.

Used by `collectives`. The coordinator tells rank 0's agent that an end is wished (a token that names the wish). At the
next saved checkpoint the ranks are kept in report() while the operator is told that they are there; it ends the
attempt, and no step is lost. If it does not answer soon, training goes on, and later checkpoints ask again, ever more
rarely.
"""

from __future__ import annotations

from typing import Optional

HOLD_S = 2.0
"""So long ranks are kept in report() for the operator's answer."""
AGAIN_S = 10.0
"""After a wait in vain the next one comes so much later at the earliest, and twice as late each further time."""


class Boundary:
    """One per attempt."""

    def __init__(self) -> None:
        self.wanted: Optional[str] = None
        """The wish, as the coordinator says it."""
        self.reached: Optional[str] = None
        """The wish for which ranks are kept now."""
        self._again_at = 0.0
        self._pause_s = AGAIN_S

    def want(self, token: Optional[str]) -> bool:
        """The coordinator's newest word; whether ranks that are kept may go on."""
        if token != self.wanted:
            self.wanted, self._again_at, self._pause_s = token, 0.0, AGAIN_S
        return self.reached is not None and self.reached != token

    def reach(self, now: float) -> bool:
        """A checkpoint is saved; whether its ranks are kept."""
        if self.wanted is None or now < self._again_at:
            return False
        self.reached = self.wanted
        return True

    def leave(self, now: float) -> None:
        """Training goes on."""
        if self.reached == self.wanted:
            self._again_at, self._pause_s = now + self._pause_s, 2 * self._pause_s
        self.reached = None
