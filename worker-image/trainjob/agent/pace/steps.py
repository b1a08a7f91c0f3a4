"""How long a step takes, as rank 0's agent tells it for people. Pure.

Fed by `barriers/progress.py` with each report() and row of log(). Nothing is decided from it: when a job hangs is
`hangs/silence.py`'s to say.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Optional, Tuple

WINDOW_S = 60.0
"""The steps of the last minute count, so that a change of speed shows within one."""
EVERY_S = 1.0
"""A moment is kept at most so often: a loop that reports a thousand times a second fills no memory."""


class Steps:
    """One attempt's: time that a restart takes is no slow step."""

    def __init__(self) -> None:
        self._kept: Deque[Tuple[float, int]] = deque()
        """(time, step), steps strictly rising."""
        self._last: Optional[Tuple[float, int]] = None

    def seen(self, at: float, step: Optional[int]) -> None:
        """The step that was told of then."""
        if step is None or (self._last is not None and step == self._last[1]):
            return
        if self._last is not None and (step < self._last[1] or at < self._last[0]):  # other steps, or another clock
            self._kept.clear()
        self._last = (at, step)
        if not self._kept or at - self._kept[-1][0] >= EVERY_S:
            self._kept.append(self._last)
        while len(self._kept) > 1 and at - self._kept[0][0] > WINDOW_S:
            self._kept.popleft()

    @property
    def seconds_per_step(self) -> Optional[float]:
        """None before there are two moments."""
        if self._last is None or not self._kept or self._last[1] == self._kept[0][1]:
            return None
        (begin, first), (end, last) = self._kept[0], self._last
        return (end - begin) / (last - first)
