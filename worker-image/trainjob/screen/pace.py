"""How fast training goes and when it will be done, from the progress that was seen; pure.

A pace belongs to one attempt: time that a restart took does not count as slow steps.
"""

from __future__ import annotations

from dataclasses import dataclass

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
