"""What of an attempt's time went into saving checkpoints, and what passed without a step, as rank 0's agent sees it.
Pure.

Fed by `collectives`; all moments are the loop's.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Deque, Optional

LEAST_S = 60.0
"""No shorter pause between two steps is a stall,"""
USUAL_TIMES = 10.0
"""nor one that is not so many times the usual one."""
INTERVALS, ENOUGH = 32, 5
"""How many intervals are known, and from how many on there is a usual one."""


class Effort:
    """One attempt's."""

    def __init__(self) -> None:
        self.saved_at: Optional[float] = None
        """When the newest checkpoint was released."""
        self._idle_then = 0.0
        """What had passed without work by then."""
        self._saving_since: Optional[float] = None
        self._saving_s = 0.0
        self._stalled_s = 0.0
        self._stepped_at: Optional[float] = None
        self._saving_then = 0.0
        """What had gone into checkpoints at the last step."""
        self._intervals: Deque[float] = deque(maxlen=INTERVALS)

    def saving(self, now: float) -> None:
        """All ranks have called report(), and wait for a checkpoint."""
        if self._saving_since is None:
            self._saving_since = now

    def answered(self, now: float, saved: bool) -> None:
        """The ranks go on, or are refused."""
        if self._saving_since is not None:
            self._saving_s += now - self._saving_since
            self._saving_since = None
        if saved:
            self.saved_at, self._idle_then = now, self.checkpoint_s(now) + self.stalled_s(now)

    def stepped(self, now: float) -> None:
        """A report() was released, or rows of log() came."""
        interval = self._interval(now)
        if interval is not None:
            beyond = self._beyond(interval)
            self._stalled_s += beyond
            if not beyond:
                self._intervals.append(interval)
        self._stepped_at, self._saving_then = now, self._saving_s

    def checkpoint_s(self, now: float) -> float:
        """For how long ranks waited for checkpoints, the one under way included."""
        return self._saving_s + (0.0 if self._saving_since is None else now - self._saving_since)

    def stalled_s(self, now: float) -> float:
        """For how long no step came beyond the usual, up to now."""
        interval = self._interval(now)
        return self._stalled_s + (0.0 if interval is None else self._beyond(interval))

    def idle_s(self, now: float) -> float:
        """For how long, of both, since the newest checkpoint: what was not worked cannot be lost."""
        return max(0.0, self.checkpoint_s(now) + self.stalled_s(now) - self._idle_then)

    def _interval(self, now: float) -> Optional[float]:
        """Since the last step, without what went into checkpoints."""
        if self._stepped_at is None:
            return None
        return max(0.0, now - self._stepped_at - (self.checkpoint_s(now) - self._saving_then))

    def _beyond(self, interval: float) -> float:
        if interval <= LEAST_S or len(self._intervals) < ENOUGH:
            return 0.0
        usual = median(self._intervals)
        return interval - usual if interval > USUAL_TIMES * usual else 0.0
