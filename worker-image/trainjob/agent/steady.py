"""The agent's clock for what is compared: when ranks ended, and what time it was when that was said.

The machine's clock is read once; from there a clock goes on that nobody sets. The operator corrects an end by what the
clock says in the same report, so a step between the two would make a rank the first to end that was not. For moments
that are only shown there is `time.time()`.
"""

from __future__ import annotations

import time

_AHEAD_S = time.time() - time.monotonic()


def of_monotonic(moment: float) -> float:
    """A moment of the machine's monotonic clock, by this one."""
    return moment + _AHEAD_S


def now() -> float:
    """Seconds since the epoch; never steps while the process lives."""
    return of_monotonic(time.monotonic())
