"""One moment of a small world: the job, its pods, their agents, the leader, and what is under way between them.

Values only, so that any moment can be kept, compared and gone on from. `canonical` leaves out what no rule reads: two
moments with the same canonical form have the same future.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from support.core import T0
from trainjob.agent.attempts import course
from trainjob.agent.attempts.course import Course
from trainjob_api import contract
from trainjob_api.contract import Instruction
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.core.model import AgentView, Decision, Observed, PodView

FAR_S = 700.0
"""No rule tells moments apart that are farther away than this."""


@dataclass(frozen=True)
class Agent:
    """The agent of one pod, with one rank."""

    uid: str
    slot: int
    boot: int = 1
    seq: int = 0
    noted: int = 0
    """The newest attempt for which ranks were forked in this pod; outlives the process."""
    attempt: int = 0
    index: int = 0
    workers: int = 0
    phase: str = course.NEW
    forked: bool = False
    joined: bool = False
    complete: bool = False
    found: bool = False
    """A look found the end record."""
    rank: str = ""
    """"" (none), running, or how it ended."""
    communication: bool = False
    ended_at: float | None = None
    """When the rank ended, by the agent's clock; as it was first told."""
    checked: int | None = None
    draining: bool = False
    word: Instruction | None = None
    """The newest instruction."""
    due: bool = False
    """It is still to be carried out."""
    said: bool = False
    """The coordinator knows all this."""
    muted: bool = False
    inflight: Instruction | None = None
    """An answer that is on its way for long."""
    well: frozenset[int] = frozenset()
    """Rank 0's agent: members whose ranks ended well, as they told it."""
    seen: frozenset[int] = frozenset()
    """Rank 0's agent: members that have joined."""
    lost: frozenset[int] = frozenset()

    @property
    def course(self) -> Course:
        """The real machine, as far as this agent has come."""
        made = Course()
        made.phase, made.joined, made.complete, made._forked = self.phase, self.joined, self.complete, self.forked
        return made

    def after(self, made: Course, outputs: list[course.Output], **also: Any) -> Agent:
        """What the machine says now is done."""
        rank = self.rank
        for output in outputs:
            if isinstance(output, course.EndUnstarted | course.EndRanks):
                rank = output.kind
        fields = {"phase": made.phase, "joined": made.joined, "complete": made.complete, "forked": made._forked}
        return replace(self, **{**fields, "rank": rank, "said": False, **also})

    @property
    def runs(self) -> bool:
        """Its rank's process is there."""
        return self.rank == contract.RANK_RUNNING

    @property
    def linked(self) -> bool:
        """It has, or seeks, a connection to the others of its attempt."""
        return self.phase in (course.ASKING, course.STARTING, course.RUNNING) or (
            self.phase != course.NEW and self.forked
        )


@dataclass(frozen=True)
class Leader:
    """What one leader remembers: all of it is lost with it."""

    since: datetime
    committed: TrainJob | None = None
    pods: tuple[PodView, ...] = ()
    heard: tuple[tuple[tuple[int, int], AgentView], ...] = ()
    due: datetime | None = None
    """When it looks again by itself."""
    woken: bool = True


@dataclass(frozen=True)
class Turn:
    """A turn that is under way: the look is taken, and time may pass before the write, and before the actions."""

    seen: Observed
    version: int
    decision: Decision
    written: bool = False
    old: bool = False
    """Of a leader that leads no more."""


@dataclass(frozen=True)
class State:
    """All of it."""

    job: TrainJob | None
    version: int = 0
    now: datetime = T0
    pods: tuple[PodView, ...] = ()
    service: bool = False
    agents: tuple[Agent, ...] = ()
    leader: Leader = field(default_factory=lambda: Leader(since=T0))
    turns: tuple[Turn, ...] = ()
    faults: frozenset[str] = frozenset()
    """What may still befall it."""
    completed: bool = False
    """The end record is on storage."""
    trained: int = 0
    """The newest attempt of which all ranks ran at once."""
    started: frozenset[tuple[int, int]] = frozenset()
    """(attempt, index) of which a rank was started."""
    births: tuple[int, ...] = ()
    """Slots, once for each pod of theirs."""
    incidents: int = 0
    """What may be counted."""

    def pod(self, uid: str) -> PodView | None:
        return next((pod for pod in self.pods if pod.uid == uid), None)

    def agent(self, uid: str) -> Agent | None:
        return next((agent for agent in self.agents if agent.uid == uid), None)

    def with_agent(self, changed: Agent) -> State:
        return replace(self, agents=tuple(changed if a.uid == changed.uid else a for a in self.agents))

    def without_agent(self, uid: str) -> State:
        return replace(self, agents=tuple(a for a in self.agents if a.uid != uid))

    def with_pod(self, changed: PodView) -> State:
        return replace(self, pods=tuple(changed if p.uid == changed.uid else p for p in self.pods)).woken()

    def without_pod(self, uid: str) -> State:
        gone = replace(self, pods=tuple(p for p in self.pods if p.uid != uid))
        return gone.without_agent(uid).woken()

    def woken(self) -> State:
        """The watch names the job."""
        return self if self.leader.woken else replace(self, leader=replace(self.leader, woken=True))

    def group(self, attempt: int) -> dict[int, Agent]:
        """The agents of an attempt by index."""
        return {agent.index: agent for agent in self.agents if agent.attempt == attempt and attempt}

    def after_s(self, seconds: float) -> datetime:
        return self.now + timedelta(seconds=seconds)


def canonical(state: State) -> tuple[Any, ...]:
    """What decides the future: moments as distances, without texts for people."""
    now = state.now

    def ago(moment: datetime | None) -> float | None:
        if moment is None:
            return None
        return max(-FAR_S, min(FAR_S, round((moment - now).total_seconds(), 1)))

    attempt = state.job.status.attempt if state.job is not None else None
    ended_at = attempt.ended_at if attempt is not None else None

    def pod(view: PodView) -> tuple[Any, ...]:
        return (
            view.slot, view.uid, view.phase.value, view.make, view.deleting, view.exit_code, view.restarts,
            view.last_word is not None and view.last_word[:3], ago(view.finished_at), ago(view.gone_by),
            ago(view.scheduled_at),
        )  # fmt: skip

    def word(view: AgentView) -> tuple[Any, ...]:
        ranks = tuple((r.get("state"), r.get("kind"), r.get("ended_at") and ago_s(r["ended_at"])) for r in view.ranks)
        return (
            view.slot, view.pod_uid, view.boot, ago(view.heard_at), view.attempt, view.quiet, view.joined, ranks,
            view.lost_peers, view.draining, view.completed, view.checked, view.run,
            ended_at is not None and view.heard_at <= ended_at,
        )  # fmt: skip

    def ago_s(at: float) -> float:
        return max(-FAR_S, round(at - now.timestamp(), 1))

    def agent(a: Agent) -> tuple[Any, ...]:
        return (
            a.uid, a.boot, a.noted, a.attempt, a.index, a.workers, a.phase, a.forked, a.joined, a.complete, a.found,
            a.rank, a.communication, a.ended_at and ago_s(a.ended_at), a.checked, a.draining, instruction(a.word), a.due, a.said, a.muted,
            instruction(a.inflight), tuple(sorted(a.well)), tuple(sorted(a.seen)), tuple(sorted(a.lost)),
        )  # fmt: skip

    def book(job: TrainJob | None) -> tuple[Any, ...] | None:
        if job is None:
            return None
        status, spec, timing = job.status, job.spec, job.status.timing
        attempt, failures = status.attempt, status.failures
        return (
            job.metadata.deletion_timestamp is not None, job.metadata.generation, spec.workers, spec.suspend,
            spec.rendezvous.port, status.observed_generation, status.phase, status.slots, status.next_slot,
            status.spares, spec.runtime.spare_workers, ago(timing.spare_retry_at), timing.spare_tries,
            attempt and (
                attempt.number, attempt.state, attempt.members, attempt.members_digest, attempt.end_cause, attempt.run,
                attempt.make, attempt.succeeded, attempt.open_end, ago(attempt.started_at), ago(attempt.running_at), ago(attempt.ended_at),
            ),
            (failures.counted, failures.early_in_row, failures.since_progress, tuple(failures.strikes.items())),
            (ago(timing.scheduled_at), ago(timing.retry_at), ago(timing.gang_retry_at), ago(timing.finished_at)),
            status.verdict and (status.verdict.reason, ago(status.verdict.since)),
            tuple((c.type, c.status, c.reason) for c in status.conditions),
            (status.workers.ready, status.workers.desired, ago(status.workers.counted_at)),
            status.history[-1].ended_at and ago(status.history[-1].ended_at) if status.history else None,
            status.last_failure and (status.last_failure.attempt, status.last_failure.reason),
        )  # fmt: skip

    leader = state.leader
    return (
        book(state.job), tuple(map(pod, state.pods)), state.service, tuple(map(agent, state.agents)),
        (ago(leader.since), ago(leader.due), leader.woken, tuple((order[0], word(view)) for order, view in leader.heard)),
        leader.committed is state.job or book(leader.committed), tuple(p.uid for p in leader.pods),
        tuple(
            (turn.version == state.version, turn.written, turn.old, turn.decision.actions, book_of(turn, book))
            for turn in state.turns
        ),
        tuple(sorted(state.faults)), state.completed, state.trained, tuple(sorted(state.started)),
        state.births, state.incidents,
    )  # fmt: skip


def book_of(turn: Turn, book: Any) -> Any:
    """What the turn is to write, unless that is refused anyway or done."""
    if turn.written:
        return None
    return book(turn.seen.job.model_copy(update={"status": turn.decision.status}))


def instruction(word: Instruction | None) -> tuple[Any, ...] | None:
    """What of an instruction an agent acts by."""
    return None if word is None else (word["do"], word.get("attempt"), word.get("index"), word.get("exit_code"))
