"""What of a status is only shown to people, and how often that is written. Called by the reconciler.

Nothing here is read by a rule that acts: left out for a while, it costs nothing but its age. So an agent that changes
its words at every sync cannot make the operator write at every sync.
"""

from __future__ import annotations

from trainjob_api.v1alpha1 import TrainJobStatus
from trainjob_operator.agents.rate_limit import RateLimit
from trainjob_operator.cluster import JobKey
from trainjob_operator.core.model import Decision

AT_ONCE, EVERY_S = 6, 10.0
"""Writes of a job that no decision needs: at once, and one more after so long."""

_SHOWN = ("conditions", "reason", "phase", "progress", "checkpoint", "workers", "goodput")


def only_progress(old: TrainJobStatus, decision: Decision) -> bool:
    """Whether nothing is to be done but to write progress and checkpoints, if even that."""
    if decision.actions or decision.events:
        return False
    new = decision.status
    same = {name: getattr(new, name) for name in ("progress", "checkpoint", "goodput")} | _shown_of_attempt(old, new)
    return old.model_copy(update=same) == new


def is_only_shown(old: TrainJobStatus, decision: Decision) -> bool:
    """Whether the new status differs in what is shown alone."""
    new = decision.status
    if decision.actions or new.finished or old == new or not old.conditions:
        return False
    same = {name: getattr(new, name) for name in _SHOWN}
    if old.attempt is not None and new.attempt is not None:
        same |= _shown_of_attempt(old, new, "resumed_from")
    return old.model_copy(update=same) == new


class ShownLimit(RateLimit[JobKey]):
    """The allowance of each job."""

    def __init__(self) -> None:
        super().__init__(1.0 / EVERY_S, AT_ONCE)


def _shown_of_attempt(old: TrainJobStatus, new: TrainJobStatus, *more: str) -> dict[str, object]:
    if old.attempt is None or new.attempt is None:
        return {}
    names = ("parts_ms", "forks", *more)
    return {"attempt": old.attempt.model_copy(update={name: getattr(new.attempt, name) for name in names})}
