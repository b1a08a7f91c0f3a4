"""What the operator does in a small world: it looks, writes, acts. The rules, the fences and the waker are the real ones;
`resync`, the net below all wakers, is left out, so that who waits without a waker is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import support.model.broken as broken
from support.model.state import Leader, State, Turn
from trainjob_api.contract import Instruction
from trainjob_api.v1alpha1 import TrainJob, TrainJobStatus
from trainjob_operator.agents.last_words import with_last_words
from trainjob_operator.agents.roster import News, Roster
from trainjob_operator.core import decide as rules
from trainjob_operator.core import make
from trainjob_operator.core.model import (
    AgentView,
    CreatePod,
    DeleteJob,
    DeletePod,
    EnsureService,
    Observed,
    PodPhase,
    PodView,
    ServiceView,
)
from trainjob_operator.core.pods.naming import parse_slots

GRACE_S = 30.0
TICK = timedelta(milliseconds=1)
KEY = ("ml", "digits")
MASTER = b"model"


@dataclass(frozen=True)
class Said:
    """A report, as the roster reads one."""

    view: AgentView
    order: tuple[int, int]
    acknowledged: Instruction | None
    job_uid: str = "job-uid"
    key: tuple[str, str] = KEY
    last: bool = False

    @property
    def slot(self) -> int:
        return self.view.slot

    @property
    def pod_uid(self) -> str:
        return self.view.pod_uid


class _Report:
    """What `Roster.accept` asks for."""

    def __init__(self, said: Said) -> None:
        self.key, self.job_uid, self.pod_uid, self.order = said.key, said.job_uid, said.pod_uid, said.order
        self._view = said.view

    def view(self, now: datetime) -> AgentView:
        return replace(self._view, heard_at=now)


def roster_of(leader: Leader, now: datetime) -> Roster:
    """The real roster with what this leader remembers."""
    made = Roster(MASTER)
    for order, view in leader.heard:
        made.accept(_Report(Said(view, order, None)), view.heard_at)  # type: ignore[arg-type]
    if leader.committed is not None:
        made.commit(leader.committed, leader.pods, now)
    return made


def hear(state: State, said: Said) -> tuple[State, Instruction, News]:
    """The coordinator takes a report and answers. Two moments are never the same."""
    state = replace(state, now=state.now + TICK)
    leader = state.leader
    made = roster_of(leader, state.now)
    news = made.accept(_Report(said), state.now)  # type: ignore[arg-type]
    others = tuple(entry for entry in leader.heard if entry[1].pod_uid != said.pod_uid)
    heard = (*others, (said.order, replace(said.view, heard_at=state.now)))
    woken = leader.woken or news is News.MATTERS
    leader = replace(leader, heard=tuple(sorted(heard, key=lambda entry: entry[1].pod_uid)), woken=woken)
    return replace(state, leader=leader), made.instruction(said), news  # type: ignore[arg-type]


def observe(state: State) -> Observed:
    """As `observe.py` puts it together."""
    assert state.job is not None
    known = {(pod.slot, pod.uid) for pod in state.pods}
    heard = {view.slot: view for _, view in state.leader.heard if (view.slot, view.pod_uid) in known}
    return Observed(
        job=state.job,
        pods=state.pods,
        service=ServiceView(name="digits", owned=True) if state.service else None,
        agents=with_last_words(heard, state.pods),
        listening_since=state.leader.since,
        refusals=(),
    )


def looks_now(state: State) -> bool:
    """Whether the leader's next turn begins."""
    leader = state.leader
    is_due = leader.woken or (leader.due is not None and leader.due <= state.now)
    return is_due and not any(not turn.old for turn in state.turns)


def operator_steps(state: State) -> Iterator[tuple[str, State]]:
    for at, turn in enumerate(state.turns):
        rest = (*state.turns[:at], *state.turns[at + 1 :])
        who = "the old leader" if turn.old else "the operator"
        if not turn.written:
            written, committed = write(replace(state, turns=rest), turn)
            if committed is not None:
                written = replace(written, turns=(*rest, replace(turn, written=True)))
            yield f"{who} {'writes' if committed is not None else 'is refused: somebody wrote first'}", written
        else:
            yield f"{who} acts: {_told(turn)}", act(replace(state, turns=rest), turn, stale=True)
    if looks_now(state):
        yield from _look(state)


def _look(state: State) -> Iterator[tuple[str, State]]:
    leader = replace(state.leader, woken=False, due=None)
    if state.job is None:
        yield "the operator finds no job", replace(state, leader=leader)
        return
    seen = observe(state)
    leader = replace(leader, committed=state.job, pods=seen.pods)
    decision = rules.decide(seen, state.now)
    turn = Turn(seen, state.version, decision)
    state = replace(state, leader=leader)
    if state.faults & {"stale list", "leader change"}:
        slow = replace(state, turns=(*state.turns, turn), faults=state.faults - {"stale list"})
        yield f"the operator looks, and takes its time: {decision.why}", slow
    written, _ = write(state, turn)
    yield f"the operator's turn: {decision.why} [{_told(turn)}]", act(written, turn, stale=False)


def _told(turn: Turn) -> str:
    return ", ".join(_verb(action) for action in turn.decision.actions) or "nothing"


def _verb(action: Any) -> str:
    if isinstance(action, CreatePod):
        return f"create {action.slot}"
    if isinstance(action, DeletePod):
        return f"delete {action.name}"
    return type(action).__name__


def write(state: State, turn: Turn) -> tuple[State, TrainJob | None]:
    """The status write, fenced by the version that was looked at; None: refused."""
    job, decision = turn.seen.job, turn.decision
    if decision.status == job.status:
        return _note(state, turn, job), job
    if state.job is None or state.version != turn.version:
        return (state if turn.old else state.woken()), None
    broken.check_write(state, state.job.status, decision.status)
    new = state.job.model_copy(update={"status": decision.status})
    return _note(replace(state, job=new, version=state.version + 1).woken(), turn, new), new


def _note(state: State, turn: Turn, job: TrainJob) -> State:
    """Agents are answered from what was written, and the next look is asked for."""
    if turn.old:
        return state
    after = turn.decision.requeue_after
    due = state.now + after if after is not None else None
    return replace(state, leader=replace(state.leader, committed=job, due=due))


def act(state: State, turn: Turn, *, stale: bool) -> State:
    """The actions."""
    for action in turn.decision.actions:
        if isinstance(action, EnsureService):
            state = replace(state, service=True)
        elif isinstance(action, CreatePod):
            state = _create(state, turn, action, stale)
        elif isinstance(action, DeletePod):
            state = delete(state, action.uid)
        elif isinstance(action, DeleteJob):
            state = replace(state, job=None)
    return state


def _create(state: State, turn: Turn, action: CreatePod, stale: bool) -> State:
    there = next((pod for pod in state.pods if pod.slot == action.slot), None)
    if there is not None:
        broken.check(stale, f"slot {action.slot} is created while its pod is there")
        return state
    if state.job is None:
        return state  # its owner is gone: collected at once
    broken.check(
        stale or action.slot in parse_slots(state.job.status.slots), f"slot {action.slot} is created and not listed"
    )
    made = make.of(turn.seen.job.spec)
    broken.check_two_groups(state, action.slot, made)
    uid = f"uid-{action.slot}-{state.births.count(action.slot)}"
    pod = PodView(
        slot=action.slot, name=f"digits-{action.slot}", uid=uid, phase=PodPhase.PENDING, make=made,
        scheduled=False, ready=False, created_at=state.now, restarts=0,
    )  # fmt: skip
    pods = tuple(sorted((*state.pods, pod), key=lambda p: (p.slot, p.uid)))
    return replace(state, pods=pods, births=tuple(sorted((*state.births, action.slot)))).woken()


def delete(state: State, uid: str) -> State:
    """Somebody deletes a pod."""
    pod = state.pod(uid)
    if pod is None or pod.deleting:
        return state
    if pod.phase is not PodPhase.RUNNING:
        return state.without_pod(uid)
    state = state.with_pod(replace(pod, deleting=True, gone_by=state.after_s(GRACE_S), grace_s=GRACE_S))
    agent = state.agent(uid)
    return state if agent is None else state.with_agent(replace(agent, draining=True, said=False))


def finished(status: TrainJobStatus) -> str | None:
    return "Complete" if status.holds("Complete") else "Failed" if status.holds("Failed") else None


def is_at_rest(state: State) -> bool:
    """Nothing is to be done any more: finished and cleaned up, suspended without pods, or gone."""
    if state.job is None:
        return True
    status = state.job.status
    return finished(status) is not None or (state.job.spec.suspend and not state.pods)
