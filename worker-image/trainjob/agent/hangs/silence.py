"""When a job that took steps has taken none for too long. Pure: all moments are the loop's.

Fed by `collectives`, on the way of each report() and log(); asked by `watch` each second. The limit is learned from the
job's own pace, or given (spec.hang.afterSeconds). What is no hang costs nothing: time in which ranks waited for a
checkpoint, time that nobody saw (the agent was frozen, the machine slept), and all before the job has a pace.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Deque, Optional

FLOOR_S = 300.0
"""Without a given limit no shorter silence is a hang: an evaluation, a compile, a slow disk take minutes."""
USUAL_TIMES = 12.0
"""Nor one that is not so many times the usual pause between two steps,"""
LONGEST_TIMES = 3.0
"""nor so many times the longest that there was: what happens each epoch is known after the first."""
EARLY_S = 13.5
"""What is proven (`evidence`) is told sooner: after so long, so that it is said within fifteen seconds,"""
EARLY_TIMES = 5.0
"""and not before so many times the usual pause;"""
ALONE_TIMES = 1.5
"""of a rank that waits for something of its own, nor so many times the longest pause there was: it may come back."""
UNPACED_S = 60.0
"""The same while there is no usual pause yet, from the attempt's begin or its last step on; of a rank that waits for
something of its own FLOOR_S."""
UNPACED_LIMIT_S = 1200.0
"""Without a usual pause, after a first step: so long a silence is told, and ends nothing; nor is one told that is not
LONGEST_TIMES as long as what a step took at most, the first one counted from the start."""
INTERVALS, ENOUGH = 64, 5
"""How many pauses are known, and from how many on there is a usual one."""
LATE_S = 2.5
"""Between two looks; more: nobody knows what was meanwhile."""


class Silence:
    """One attempt's."""

    def __init__(self, now: float) -> None:
        """`now`: the ranks are about to start."""
        self.after_s: Optional[float] = None
        """The limit that is given; None: it is learned; 0: there are no hangs."""
        self._stepped_at: Optional[float] = None
        self._since = self._began = now
        self._first = 0.0
        """How long the first step took, with the start."""
        self._excused_then = 0.0
        self._looked: Optional[float] = None
        self._intervals: Deque[float] = deque(maxlen=INTERVALS)
        self._longest = 0.0

    def step(self, now: float, excused_s: float) -> None:
        """A report() was released, or rows of log() came. `excused_s`: what went into checkpoints so far, all of it."""
        if self._stepped_at is not None:
            interval = max(0.0, now - self._stepped_at - (excused_s - self._excused_then))
            self._intervals.append(interval)
            self._longest = max(self._longest, interval)
        else:
            self._first = max(0.0, now - self._began - excused_s)
        self._stepped_at = self._since = now
        self._excused_then = excused_s

    def sign(self, now: float) -> None:
        """The ranks got through something else together (a barrier): they live, and it is no step."""
        self._since = max(self._since, now)

    def pardon(self, now: float) -> None:
        """Whatever was until now: something else is known to be the cause."""
        self.sign(now)

    def look(self, now: float, excused_s: float) -> bool:
        """Whether the silence is a hang."""
        late = self._looked is not None and now - self._looked > LATE_S
        self._looked = now
        if late:
            self.pardon(now)
        limit = self.limit
        return limit is not None and self.silent_s(now, excused_s) > limit

    @property
    def limit(self) -> Optional[float]:
        """Seconds; None: none yet, or none at all."""
        if self.after_s == 0 or self._stepped_at is None:
            return None
        if self.after_s is not None:
            return self.after_s
        if not self.has_pace:
            return max(UNPACED_LIMIT_S, LONGEST_TIMES * max(self._longest, self._first))
        return max(FLOOR_S, USUAL_TIMES * median(self._intervals), LONGEST_TIMES * self._longest)

    @property
    def is_sure(self) -> bool:
        """Whether who passes the limit may be ended for it: it is given, or the job's own."""
        return self.after_s is not None or self.has_pace

    @property
    def has_pace(self) -> bool:
        """Whether there is a usual pause."""
        return len(self._intervals) >= ENOUGH

    @property
    def early(self) -> Optional[float]:
        """Seconds from which on what is proven is told; None: not before the limit. A limit that is given is meant, as
        soon as it counts: from the first step on.
        """
        if self.after_s is not None:
            return None if self.after_s == 0 or self._stepped_at is not None else max(UNPACED_S, self.after_s)
        if not self.has_pace:
            return max(UNPACED_S, EARLY_TIMES * self._longest)
        return max(EARLY_S, EARLY_TIMES * median(self._intervals))

    @property
    def alone(self) -> Optional[float]:
        """The same, of ranks that wait for something of their own."""
        early = self.early
        if early is None:
            return None
        return max(early, ALONE_TIMES * self._longest, 0.0 if self.has_pace else FLOOR_S)

    @property
    def since(self) -> float:
        """The last step, or what else was seen of the ranks, or their start."""
        return self._since

    def silent_s(self, now: float, excused_s: float) -> float:
        """For how long nothing has been seen of the ranks."""
        return now - self._since - (excused_s - self._excused_then)
