"""Arithmetic with moments that cannot fail, whatever a status, a spec or an agent says.

Called by the rules. Moments without a zone are read as UTC; durations and moments beyond the calendar are cut to it.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

LONGEST_S = 100.0 * 365 * 86400
"""Longer durations are cut to this."""


def aware(moment: datetime) -> datetime:
    """The moment with a zone, so that any two can be compared."""
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def elapsed(now: datetime, since: datetime) -> float:
    """Seconds from `since` to `now`; never negative: clocks of earlier leaders may have been ahead."""
    return max(0.0, (aware(now) - aware(since)).total_seconds())


def after(start: datetime, seconds: float) -> datetime:
    """`seconds` after `start`."""
    start = aware(start)
    try:
        return start + timedelta(seconds=min(seconds, LONGEST_S))
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def by_agent_clock(seconds: float | None, offset: timedelta) -> datetime | None:
    """A moment on an agent's clock, on ours; None if it is none."""
    if seconds is None or not math.isfinite(seconds):
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC) + offset
    except (OverflowError, ValueError, OSError):
        return None
