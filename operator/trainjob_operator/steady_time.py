"""A wall clock that never steps: what the rules are given as `now`.

Used by `clock.SystemClock`, and by the simulator. A machine's clock may be put forward or back by an hour (a daylight
mistake, a late NTP, a virtual machine that was resumed); silence, pauses and deadlines must not notice. So it is read
once, and time goes on from there by a clock that nobody sets. What the two differ by is made good slowly: displayed
times become right again in days, and half a minute is never wrong by more than the share of a second.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

SLEW = 0.01
"""Of each second that passes so much may go into making a difference good: an hour takes four days."""


class SteadyTime:
    """`wall` is the machine's clock, `elapsed` seconds that nobody sets, suspension included."""

    def __init__(self, wall: Callable[[], datetime], elapsed: Callable[[], float], slew: float = SLEW) -> None:
        self._wall, self._elapsed, self._slew = wall, elapsed, slew
        self._looked_at = elapsed()
        self._then = wall()

    def now(self) -> datetime:
        """Never goes back."""
        at = self._elapsed()
        passed_s = max(0.0, at - self._looked_at)
        even = self._then + timedelta(seconds=passed_s)
        off_s = (self._wall() - even).total_seconds()
        most_s = self._slew * passed_s
        self._looked_at, self._then = at, even + timedelta(seconds=min(max(off_s, -most_s), most_s))
        return self._then
