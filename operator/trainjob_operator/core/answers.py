"""What a rule of `decide.py` answers with: go on (None), wait, or end the job.

An answer is a value; what it means is carried out in one place, `decide.decide`. There a `Hold` bars every `End` that
fails the job, unless it says otherwise: nobody declares a job failed while its completion is being confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from trainjob_api.v1alpha1 import Failure


class Waker(Enum):
    """Events that ask for a turn by themselves."""

    AGENT = "an agent says something that matters"
    POD = "a pod changes"
    EDIT = "the TrainJob is edited"


@dataclass(frozen=True, kw_only=True)
class Hold:
    """Something is waited for, and who waits names who wakes it: a moment, an event, or both."""

    why: str
    until: datetime | None = None
    event: Waker | None = None
    alone: bool = False
    """Nothing else is decided in this turn."""
    bars_failure: bool = True
    """The job does not fail meanwhile; False: what is waited for is only a wish."""

    def __post_init__(self) -> None:
        if self.until is None and self.event is None:
            raise ValueError(f"nobody wakes who waits so: {self.why}")


@dataclass(frozen=True, kw_only=True)
class End:
    """The job is over."""

    failed: bool
    reason: str
    message: str
    cause: Failure | None = None
    """The first cause of a failure; None: the verdict itself is."""


Answer = Hold | End | None
"""None: go on with the next rule."""
