"""One turn's working state: what was observed, and the status as the rules so far want it.

Made by `decide.py`, handed from rule to rule; nothing of it outlives the turn. Rules change status (and add events and
wake-ups); the actions are derived from the final status, in `size/` and `lifecycle.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from trainjob_api.v1alpha1 import Attempt, TrainJob, TrainJobSpec, TrainJobStatus
from trainjob_operator.core import make
from trainjob_operator.core.children import Children, sort_children
from trainjob_operator.core.model import AgentView, Event, Observed
from trainjob_operator.core.moments import aware
from trainjob_operator.core.pods.naming import parse_slots

EVENT_LIMIT = 1000
"""Characters of an event's message; the API takes 1024."""


class Waker(Enum):
    """Events that ask for a turn by themselves."""

    AGENT = "an agent says something that matters"
    POD = "a pod changes"
    EDIT = "the TrainJob is edited"


@dataclass(frozen=True)
class Outcome:
    """How the job ended in this turn."""

    condition: str
    """Complete | Failed"""
    reason: str
    message: str


@dataclass
class Turn:
    """Mutable, for the length of one call of `decide`."""

    observed: Observed
    now: datetime
    kids: Children
    status: TrainJobStatus
    make: str
    """What pods are made of now."""
    former: tuple[int, ...]
    """Members of the newest attempt as it was observed, running or ended."""
    was_running: bool
    """The newest attempt ran when this turn began."""
    events: list[Event] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    wakes: list[datetime] = field(default_factory=list)
    blocked: tuple[str, str] | None = None
    """(reason, message): nothing new may be created or begun; what runs goes on."""
    gang: str | None = None
    """The pods of this start were given back in this turn: why."""
    outcome: Outcome | None = None

    @classmethod
    def of(cls, observed: Observed, now: datetime) -> Turn:
        """A turn before its first rule."""
        status = observed.job.status
        return cls(
            observed=observed,
            now=aware(now),
            kids=sort_children(observed),
            status=status,
            make=make.of(observed.job.spec),
            former=parse_slots(status.attempt.members) if status.attempt else (),
            was_running=status.attempt is not None and status.attempt.state == "Running",
        )

    @property
    def job(self) -> TrainJob:
        """The object as it was read."""
        return self.observed.job

    @property
    def spec(self) -> TrainJobSpec:
        """What is wished."""
        return self.observed.job.spec

    @property
    def running(self) -> Attempt | None:
        """The attempt that is live after the rules so far."""
        attempt = self.status.attempt
        return attempt if attempt is not None and attempt.state == "Running" else None

    @property
    def plain(self) -> bool:
        """No agent runs in the pods: those of the running attempt, else those that are made now."""
        running = self.running
        return make.is_plain(running.make if running is not None and running.make else self.make)

    @property
    def just_ended(self) -> int | None:
        """Number of the attempt that this very turn ended."""
        attempt = self.status.attempt
        return attempt.number if self.was_running and attempt is not None and attempt.state == "Ended" else None

    def members(self) -> tuple[int, ...]:
        """Slots of the running attempt in index order."""
        running = self.running
        return parse_slots(running.members) if running else ()

    def word(self, slot: int) -> AgentView | None:
        """What a member's agent says of the newest attempt; what it says of an older one is stale."""
        view, attempt = self.kids.speaking(slot), self.status.attempt
        return view if view is not None and attempt is not None and view.attempt == attempt.number else None

    def change(self, **fields: Any) -> None:
        """Set fields of status."""
        self.status = self.status.model_copy(update=fields)

    def say(self, sentence: str) -> None:
        """Why: the sentences of a turn are joined."""
        self.sentences.append(sentence)

    def wait(self, sentence: str, *, until: datetime | None = None, event: Waker | None = None) -> None:
        """Say what is waited for, and name who wakes the job then: a moment, or an event that asks for a turn."""
        if until is None and event is None:
            raise ValueError(f"nobody wakes who waits so: {sentence}")
        if until is not None:
            self.wake(until)
        self.say(sentence)

    def tell(self, kind: str, reason: str, message: str) -> None:
        """Emit an event (Normal | Warning) once the status is written."""
        self.events.append(Event(kind, reason, message[:EVENT_LIMIT]))

    def wake(self, at: datetime) -> None:
        """Look again at that moment, if it is to come."""
        if aware(at) > self.now:
            self.wakes.append(aware(at))
