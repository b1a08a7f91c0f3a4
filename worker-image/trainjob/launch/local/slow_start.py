"""What is said of a start that takes long, once an attempt: what the workers or the ranks do, and how to look. Pure.

Told by what the agents have told of the start's parts. Called by `drive`, for whoever looks on.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.core import parts
from trainjob_operator.core.model import AgentView
from trainjob_operator.core.moments import elapsed

AFTER_S = 5.0
"""Who waits longer than that wants to know for what."""


WAITS_FOR_KEPT = (
    "the workers start from one process, which first imports torch, or what else their ranks need, once for all"
)
"""Before the first attempt, of a job whose agents wait for a warm process (`kept`)."""


def sentence(job: TrainJob, views: Sequence[AgentView], now: datetime, *, printed: bool = False) -> str | None:
    """None: nothing is to be said (yet). What a start without an attempt waits for stands in its conditions.
    `printed`: a rank has printed a line since the job began.
    """
    attempt = job.status.attempt
    if attempt is None or attempt.state != "Running":
        return None
    took_s = elapsed(now, attempt.started_at)
    known = parts.merged(attempt, views, attempt.workers)
    if took_s < AFTER_S or known.first_step is not None:
        return None
    if known.forked is None and any(view.warning for view in views):
        return None  # it waits for storage: that is said as a warning
    ready = known.group is not None or known.restored is not None
    if ready and (printed or attempt.number > 1):
        return None  # it trains towards its first report: a long epoch is no alarm
    look = f"`tj stack {job.metadata.name}` shows where they are"
    return f"attempt {attempt.number} began {took_s:.0f} s ago: " + (
        f"its ranks are ready, and none has called report() yet; {look}"
        if ready
        else f"its ranks run, and import modules or prepare their data; {look}"
        if known.forked is not None
        else "its workers import torch, then its ranks start"
        if any(view.warming for view in views)
        else "its workers prepare the start of its ranks"
    )
