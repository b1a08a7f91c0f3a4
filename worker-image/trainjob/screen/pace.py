"""How fast training goes, when it will be done, and how long ago the last step was; pure.

A pace belongs to one attempt: time that a restart took does not count as slow steps.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainjob.screen import wording

if TYPE_CHECKING:
    from trainjob_api.v1alpha1 import Attempt, TrainJobStatus

WINDOW_S = 60.0
"""Samples older than this leave the window, so that a change of speed shows within a minute."""


@dataclass(frozen=True)
class Pace:
    """Steps over time in the newest attempt."""

    attempt: int = 0
    samples: tuple[tuple[float, int], ...] = ()
    """(seconds, step), oldest first, steps strictly rising."""
    behind: int | None = None
    """The step that was known when the attempt began, or that it resumed from: it was reached before, so it starts
    no count.
    """

    @classmethod
    def told(cls, status: TrainJobStatus) -> Pace:
        """As rank 0's agent measured it, for who looks once; none while the newest attempt has told of no step."""
        attempt, progress = status.attempt, status.progress
        if attempt is None:
            return cls()
        rate, step, reported = progress.seconds_per_step, progress.step, progress.last_report_time
        if rate is None or step is None or reported is None or reported < attempt.started_at:
            return cls(attempt.number)
        at = reported.timestamp()
        return cls(attempt.number, ((at - rate, step - 1), (at, step)))

    def seen(self, attempt: int, at: float, step: int | None) -> Pace:
        """The pace after the step was seen at that time; the same object when it says nothing new."""
        if attempt != self.attempt:
            return Pace(attempt, behind=step)
        if step is None or step == self.behind or (self.samples and step == self.samples[-1][1]):
            return self
        went_back = (
            step < self.samples[-1][1] or at <= self.samples[-1][0]
            if self.samples
            else self.behind is not None and step < self.behind
        )
        if went_back:
            return Pace(attempt, behind=step)
        kept = tuple(sample for sample in self.samples if at - sample[0] <= WINDOW_S) or self.samples[-1:]
        return Pace(attempt, (*kept, (at, step)))

    @property
    def seconds_per_step(self) -> float | None:
        """None before two samples."""
        if len(self.samples) < 2:
            return None
        (start, first), (end, last) = self.samples[0], self.samples[-1]
        return (end - start) / (last - first)

    def seconds_left(self, total_steps: int | None, now: float) -> float | None:
        """Until `total_steps` at this pace, counted from `now`; None while it cannot be told."""
        rate = self.seconds_per_step
        if rate is None or total_steps is None:
            return None
        at, step = self.samples[-1]
        return max(0.0, (total_steps - step) * rate - (now - at))


QUIET_S, QUIET_STEPS = 30.0, 5.0
"""A running job whose last step is longer ago, and by so many usual steps, stands still for all that one can see."""


def last_step(status: TrainJobStatus, pace: Pace, now: float) -> str:
    """`last step 3s ago`, `no step for 45s, since 12:03:04`; empty where nothing trains."""
    attempt, progress = status.attempt, status.progress
    if status.finished or attempt is None or attempt.state != "Running":
        return ""
    noun, reported = "report" if progress.step is None else "step", progress.last_report_time
    if reported is None or reported < attempt.started_at:
        return f"no step in attempt {attempt.number} yet, for {wording.age(_begun(attempt), now)}"
    at = reported.timestamp()
    if is_quiet(status, pace, now):
        return f"no {noun} for {wording.age(at, now)}, since {time.strftime('%H:%M:%S', time.localtime(at))}"
    return f"last {noun} {wording.age(at, now)} ago"


def is_quiet(status: TrainJobStatus, pace: Pace, now: float) -> bool:
    """Whether the last step is longer ago than is usual."""
    reported = status.progress.last_report_time
    usual = QUIET_STEPS * (pace.seconds_per_step or 0.0)
    return reported is not None and now - reported.timestamp() > max(QUIET_S, usual)


STILL_S = 60.0
"""For so long a person waits for a step before looking where the ranks are."""


def stands_still(status: TrainJobStatus, now: float) -> bool:
    """Whether a running attempt has taken no step for a minute, and that is unusual. A hang may not be proven yet."""
    attempt, reported = status.attempt, status.progress.last_report_time
    if status.finished or attempt is None or attempt.state != "Running":
        return False
    if reported is None or reported < attempt.started_at:
        return now - _begun(attempt) > STILL_S
    return now - reported.timestamp() > STILL_S and is_quiet(status, Pace.told(status), now)


def _begun(attempt: Attempt) -> float:
    """Since when its ranks run, as far as that is known."""
    return (attempt.running_at or attempt.started_at).timestamp()
