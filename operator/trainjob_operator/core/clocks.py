"""Moments in a status that cannot be: an earlier leader's clock was ahead, or ours was put back.

Called once a turn, before the first rule. What lies in the past by its nature (a begin, an end, a write) is now at the
latest, and a pause ends after its longest length at the latest. It is written with the next write, so that it is mended
once; a wrong clock then costs one pause instead of an hour.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from trainjob_api.v1alpha1 import Boundary, TrainJobStatus
from trainjob_operator.core.moments import after, aware

TOLERANCE_S = 10.0
"""The clocks of two leaders may differ by this; nothing waits that closely."""
LONGEST_RETRY_S = 60.0
"""The longest pause after early ends (`ends/budget.py`)."""
LONGEST_GANG_S = 450.0
"""The longest pause between two tries to get all nodes, jitter included (`size/gang.py`), or for spare workers
(`size/spares.py`).
"""


def settled(status: TrainJobStatus, now: datetime) -> TrainJobStatus:
    """The same status if all its moments can be. A finished job's is left as it is."""
    if status.finished:
        return status

    def past(moment: datetime | None, longest_s: float = 0.0) -> datetime | None:
        if moment is None or aware(moment) <= after(now, longest_s + TOLERANCE_S):
            return moment
        return after(now, longest_s)

    books = status.goodput
    timing, attempt, history = status.timing, status.attempt, status.history
    fields = {
        "timing": timing.model_copy(
            update={
                "active_since": past(timing.active_since),
                "scheduled_at": past(timing.scheduled_at),
                "retry_at": past(timing.retry_at, LONGEST_RETRY_S),
                "gang_retry_at": past(timing.gang_retry_at, LONGEST_GANG_S),
                "spare_retry_at": past(timing.spare_retry_at, LONGEST_GANG_S),
            }
        ),
        "goodput": books and books.model_copy(update={"at": past(books.at), "settled_at": past(books.settled_at)}),
        "progress": status.progress.model_copy(update={"written_at": past(status.progress.written_at)}),
        "boundary": _boundary(status.boundary, past),
        "gave_way": status.gave_way and status.gave_way.model_copy(update={"since": past(status.gave_way.since)}),
        "gave_way_in_vain": {uid: past(at) for uid, at in status.gave_way_in_vain.items()},
        "verdict": status.verdict
        and status.verdict.model_copy(
            update={name: past(getattr(status.verdict, name)) for name in ("since", "nothing_found_at")}
        ),
        "last_failure": status.last_failure
        and status.last_failure.model_copy(update={"time": past(status.last_failure.time)}),
        "suspects": [each.model_copy(update={"time": past(each.time)}) for each in status.suspects],
        "stragglers": status.stragglers
        and status.stragglers.model_copy(update={"since": past(status.stragglers.since)}),
        "growth": status.growth and status.growth.model_copy(update={"since": past(status.growth.since)}),
        "workers": status.workers.model_copy(update={"counted_at": past(status.workers.counted_at)}),
        "attempt": attempt
        and attempt.model_copy(
            update={name: past(getattr(attempt, name)) for name in ("started_at", "running_at", "ended_at")}
        ),
        "history": [
            *history[:-1],
            *(entry.model_copy(update={"ended_at": past(entry.ended_at)}) for entry in history[-1:]),
        ],
    }
    return status.model_copy(update=fields)


def _boundary(boundary: Boundary | None, past: Callable[..., datetime | None]) -> Boundary | None:
    """Who goes away is gone after its grace period."""
    if boundary is None:
        return None
    gone_by = past(boundary.gone_by, boundary.grace_seconds or 0.0)
    return boundary.model_copy(update={"since": past(boundary.since), "gone_by": gone_by})
