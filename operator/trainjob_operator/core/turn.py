"""One turn's working state: what was observed, and the status as the rules so far want it.

Made by `decide.py`, handed from rule to rule; nothing of it outlives the turn. Rules change status (and add events and
wake-ups); the actions are derived from the final status, in `size/` and `lifecycle.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from trainjob_api.v1alpha1 import Attempt, Failure, TrainJob, TrainJobSpec, TrainJobStatus, Verdict
from trainjob_operator.core import kinds, make
from trainjob_operator.core.answers import Hold, Waker
from trainjob_operator.core.children import Children, sort_children
from trainjob_operator.core.clocks import settled
from trainjob_operator.core.kinds import Kind
from trainjob_operator.core.model import AgentView, Event, Observed, PodPhase
from trainjob_operator.core.moments import after, aware
from trainjob_operator.core.pods.naming import parse_slots

LISTEN_S = 30.0
"""A new leader gives agents this long to find it before their silence means anything."""
EVENT_LIMIT = 1000
"""Characters of an event's message; the API takes 1024."""


@dataclass(frozen=True)
class Outcome:
    """How the job ended in this turn."""

    condition: str
    """Complete | Failed"""
    reason: str
    message: str


class Mark(NamedTuple):
    """How far a turn had come."""

    status: TrainJobStatus
    blocked: tuple[str, str] | None
    gang: str | None
    spares_why: str | None
    events: int
    sentences: int
    wakes: int


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
    progress_due: datetime | None = None
    """There is progress that is not to be written before then."""
    blocked: tuple[str, str] | None = None
    """(reason, message): nothing new may be created or begun; what runs goes on."""
    gang: str | None = None
    """The pods of this start were given back in this turn: why."""
    spares_why: str | None = None
    """Why a spare worker was given up in this turn."""
    outcome: Outcome | None = None
    is_broken: bool = False
    """The running attempt is over, though not ended yet: its cause is waited for."""
    wishes_boundary: bool = False
    """A rule wants to end the running attempt at its next checkpoint."""
    held: list[Hold] = field(default_factory=list)
    """What rules wait for: while there is one that bars it, the job does not fail."""

    @classmethod
    def of(cls, observed: Observed, now: datetime) -> Turn:
        """A turn before its first rule."""
        status = settled(observed.job.status, now)
        return cls(
            observed=observed,
            now=aware(now),
            kids=sort_children(observed),
            status=status,
            make=make.of_job(observed.job),
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
    def storage(self) -> str | None:
        """Where the newest attempt's checkpoints go, whatever the spec says by now."""
        return make.storage_of(self.spec, self.status)

    @property
    def running(self) -> Attempt | None:
        """The attempt that is live after the rules so far."""
        attempt = self.status.attempt
        return attempt if attempt is not None and attempt.state == "Running" else None

    @property
    def is_suspended(self) -> bool:
        """Nothing may run: the wish alone does not suspend, while what has broken in an attempt is to be told first."""
        return self.spec.suspend and self.running is None

    @property
    def kind(self) -> Kind:
        """Of the running attempt's workers, else of those that are made now."""
        running = self.running
        return kinds.of(running.make if running is not None and running.make else self.make)

    @property
    def just_ended(self) -> int | None:
        """Number of the attempt that this very turn ended."""
        attempt = self.status.attempt
        return attempt.number if self.was_running and attempt is not None and attempt.state == "Ended" else None

    @property
    def failure_before(self) -> Failure | None:
        """The one that ended the attempt before the running one."""
        attempt, before = self.running, self.status.last_failure
        return before if attempt is not None and before is not None and before.attempt == attempt.number - 1 else None

    def members(self) -> tuple[int, ...]:
        """Slots of the running attempt in index order."""
        running = self.running
        return parse_slots(running.members) if running else ()

    def succeeded(self) -> frozenset[int]:
        """Members whose pods told that they ended with success, also those whose pods are gone by now."""
        return frozenset(slot for slot in self.members() if self.has_succeeded(slot))

    def has_succeeded(self, slot: int) -> bool:
        """The same of one member: asked for each of them, it costs no walk over all."""
        running = self.running
        return running is not None and self.kind.has_succeeded(running, self.kids, slot)

    def word(self, slot: int) -> AgentView | None:
        """What a member's agent says of the newest attempt; what it says of an older one is stale."""
        view, attempt = self.kids.speaking(slot), self.status.attempt
        return view if view is not None and attempt is not None and view.attempt == attempt.number else None

    def words(self) -> Iterator[AgentView]:
        """What the running attempt's members say of it, in index order; those left out that have said nothing."""
        return (view for slot in self.members() if (view := self.word(slot)) is not None)

    def complete_words(self) -> list[AgentView]:
        """What agents say, also of pods that are gone, who know that the run is complete."""
        attempt = self.status.attempt
        return [
            v
            for v in (*self.kids.agents.values(), *self.observed.parted.values())
            if attempt is not None and v.completed and (attempt.run is None or v.run is None or v.run == attempt.run)
        ]

    def leader_word(self) -> AgentView | None:
        """The word of rank 0's agent, which alone tells of progress."""
        members = self.members()
        return self.word(members[0]) if members else None

    @property
    def leader_last_word(self) -> AgentView | None:
        """The same, of a pod that is gone too: what it told of progress still counts."""
        return self.leader_word() or next(map(self.observed.parted.get, self.members()[:1]), None)

    @property
    def listens_until(self) -> datetime:
        """Until when silence towards this leader means nothing."""
        since = self.observed.listening_since
        return self.now if not self.kind.speaks or since is None else after(since, LISTEN_S)

    def unheard(self) -> list[int]:
        """Members of the newest attempt (before the first one: all workers) that live, and that this leader has not had
        the time to hear. They may know what no status tells: that training is over.
        """
        if self.now >= self.listens_until:
            return []
        up = {slot: pod for slot, pod in self.kids.live.items() if pod.phase is PodPhase.RUNNING}
        return [slot for slot in self.former or self.kids.listed if slot in up and self.kids.agent(up[slot]) is None]

    @property
    def heard_enough(self) -> bool:
        """Whether what this leader knows of the members suffices to declare the job failed."""
        return not self.unheard()

    def change(self, **fields: Any) -> None:
        """Set fields of status."""
        self.status = self.status.model_copy(update=fields)

    def judge_by(self, verdict: Verdict | None) -> None:
        """Set or drop what a worker is to look into; pods are made for that from now on, or no more."""
        self.change(verdict=verdict)
        self.make = make.of_job(self.job.model_copy(update={"status": self.status}))

    def say(self, sentence: str) -> None:
        """Why: the sentences of a turn are joined."""
        self.sentences.append(sentence)

    def tell(self, kind: str, reason: str, message: str) -> None:
        """Emit an event (Normal | Warning) once the status is written."""
        self.events.append(Event(kind, reason, message[:EVENT_LIMIT]))

    def wait(self, sentence: str, *, until: datetime | None = None, event: Waker | None = None) -> None:
        """Say what is waited for, and name who wakes the job then; the rules that follow decide freely."""
        hold = Hold(why=sentence, until=until, event=event)
        if hold.until is not None:
            self.wake(hold.until)
        self.say(hold.why)

    def mark(self) -> Mark:
        """Where the turn stands."""
        said = len(self.events), len(self.sentences), len(self.wakes)
        return Mark(self.status, self.blocked, self.gang, self.spares_why, *said)

    def go_back(self, mark: Mark) -> None:
        """Undo what was changed and said since then."""
        self.status, self.blocked, self.gang, self.spares_why = mark.status, mark.blocked, mark.gang, mark.spares_why
        del self.events[mark.events :], self.sentences[mark.sentences :], self.wakes[mark.wakes :]

    def wake(self, at: datetime) -> None:
        """Look again at that moment, if it is to come."""
        if aware(at) > self.now:
            self.wakes.append(aware(at))
