"""What a display tells of a running job: what is new since the last status, and which lines are held back; for all
displays.

`changes.py` finds what is new; here is what has to be remembered for it. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trainjob.screen.changes import Change, Kind, changes, freshest
from trainjob.screen.pace import Pace

if TYPE_CHECKING:
    from trainjob_api.v1alpha1 import TrainJob

RATION_S = 2.0
"""Plain output shows progress and checkpoints at most this often; other lines are never held back."""

Clock = Callable[[], float]
"""Seconds since the epoch, as the times in a status are."""


class Story:
    """The state that every display keeps: the last job seen, its pace, and what was said last of the rationed kinds."""

    def __init__(self, clock: Clock) -> None:
        self.job: TrainJob | None = None
        self.pace = Pace()
        self._clock = clock
        self._said: dict[Kind, float] = {}
        self._held = 0
        """Checkpoints without a line of their own since the last that had one."""
        self._count: int | None = None
        """How many the run had then; what was before the first look is not new."""

    def goes_on(self, job: TrainJob) -> list[Change]:
        """Take in a status; what is new in it."""
        job = freshest(self.job, job)
        now, progress, attempt = self._clock(), job.status.progress, job.status.attempt
        reported = progress.last_report_time
        if attempt is not None:
            self.pace = self.pace.seen(attempt.number, reported.timestamp() if reported else now, progress.step)
        found = changes(self.job, job, self.pace, now)
        self.job = job
        return found

    def line(self, change: Change) -> str | None:
        """The line to be shown now; None: it is held back. That of a checkpoint counts those before it without one."""
        due = self.due(change.kind)
        if change.kind is Kind.CHECKPOINT and not due:
            self._held += 1
        if not due:
            return None
        if change.kind is not Kind.CHECKPOINT or self.job is None:
            return change.text
        # The number in an id counts reports, of which not every one has a checkpoint. A status may tell of several at
        # once; where old ones are removed, their count does not.
        count = self.job.status.checkpoint.count
        between = max(self._held, 0 if self._count is None else count - self._count - 1)
        self._held, self._count = 0, count
        others = "1 other" if between == 1 else f"{between} others"
        return change.text + (f" ({others} before it not shown)" if between > 0 else "")

    def due(self, kind: Kind) -> bool:
        """Whether a line of a rationed kind may be shown now; counts it as shown."""
        if kind not in (Kind.PROGRESS, Kind.CHECKPOINT):
            return True
        now = self._clock()
        if now - self._said.get(kind, float("-inf")) < RATION_S:
            return False
        self._said[kind] = now
        return True
