"""What a display tells of a running job: what is new since the last status, and which lines are held back; for all
displays.

`changes.py` finds what is new; here is what has to be remembered for it. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trainjob.checkpoint.records.identity import CheckpointId
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
        self._checkpoint: CheckpointId | None = None
        """The last one that had a line of its own."""

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
        if not self.due(change.kind):
            return None
        latest = self.job.status.checkpoint.latest if self.job is not None else None
        if change.kind is not Kind.CHECKPOINT or latest is None:
            return change.text
        last, newest = self._checkpoint, CheckpointId.parse(latest.id)
        self._checkpoint = newest
        same = last is not None and last[:2] == newest[:2]
        between = newest.index - (last.index if same and last is not None else 0) - 1
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
