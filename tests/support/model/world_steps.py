"""What everything but the operator does in a small world: pods come up and go, agents speak and obey, ranks run, time
passes, and what befalls them. The agents' course and join are the real machines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from support.core import seconds
from support.model import broken
from support.model.operator_steps import Said, delete, finished, hear, looks_now, roster_of
from support.model.state import Agent, Leader, State
from trainjob.agent.attempts import course
from trainjob.agent.attempts.course import Course
from trainjob.agent.attempts.join import Answer, Join, Refuse, Request, Settle
from trainjob.agent.control.farewell import farewell
from trainjob_api import contract, last_word
from trainjob_api.contract import AgentReport, RankReport
from trainjob_operator.agents.roster import News
from trainjob_operator.core import make
from trainjob_operator.core.ends.silence import SILENT_S
from trainjob_operator.core.model import AgentView, PodPhase, PodView
from trainjob_operator.core.pods.naming import parse_slots

Step = tuple[str, State]
GOOD = ("", contract.RANK_RUNNING, contract.END_OK)
SLOW = ("ends well", "is heard again", "gets a late answer", "starts its rank", "misses")
SLACK_S = 0.1


def view(state: State, agent: Agent) -> AgentView:
    """What it reports, whole."""
    return AgentView(
        slot=agent.slot,
        pod_uid=agent.uid,
        boot=agent.boot,
        heard_at=state.now,
        address=f"10.0.0.{agent.slot}:7000",
        attempt=agent.attempt,
        quiet=not agent.runs,
        joined=agent.joined,
        ranks=_ranks(state, agent),
        lost_peers=tuple(sorted(agent.lost)),
        draining=agent.draining,
        completed=agent.complete or agent.found,
        checked=agent.checked,
        run=1 if agent.joined or agent.checked is not None else None,
    )


def _ranks(state: State, agent: Agent) -> tuple[RankReport, ...]:
    if not agent.rank:
        return ()
    report: RankReport = {"rank": agent.index, "local_rank": 0, "pid": 100, "state": contract.RANK_RUNNING}
    if not agent.runs:
        report.update(state=contract.RANK_ENDED, kind=agent.rank, exit_code=int(agent.rank != contract.END_OK))
        report["ended_at"] = agent.ended_at
    if agent.communication:
        report["error"] = {"type": "RuntimeError", "message": "Connection closed by peer", "communication": True}
    return (report,)


def world_steps(state: State) -> Iterator[Step]:
    """Everything that may happen next by itself. Time passes where nobody is about to do something: what takes long
    is a pod on its way, training, and what a fault holds up.
    """
    at_once = [step for agent in state.agents for step in _agent_steps(state, agent)] + list(_group_steps(state))
    yield from at_once
    for pod in state.pods:
        yield from _pod_steps(state, pod)
    if state.job is not None and state.job.metadata.deletion_timestamp is not None:
        if not state.pods:
            yield "the TrainJob is gone", replace(state, job=None).woken()
        for pod in state.pods:
            if not pod.deleting:
                yield f"the collector deletes {pod.name}", delete(state, pod.uid)
    if all(any(slow in label for slow in SLOW) for label, _ in at_once):
        yield from _time(state)


# --- Pods ---


def _pod_steps(state: State, pod: PodView) -> Iterator[Step]:
    plain = make.is_plain(pod.make)
    if pod.phase is PodPhase.PENDING:
        up = replace(
            pod, phase=PodPhase.RUNNING, scheduled=True, ready=True, scheduled_at=state.now, node=f"node-{pod.slot}"
        )
        after = state.with_pod(up)
        if not plain:
            after = replace(
                after, agents=tuple(sorted((*after.agents, Agent(pod.uid, pod.slot)), key=lambda a: a.slot))
            )
        yield f"{pod.name} is up", after
    if pod.deleting:
        yield f"{pod.name} is gone", state.without_pod(pod.uid)
    if plain and pod.phase is PodPhase.RUNNING and _plain_group_runs(state, pod) and not pod.deleting:
        yield f"{pod.name} succeeds", _ended(replace(state, completed=_all_well(state, pod)), pod, 0)


def _plain_group_runs(state: State, pod: PodView) -> bool:
    """Its ranks find each other: all members run, or have run and ended well."""
    attempt = state.job.status.attempt if state.job is not None else None
    if attempt is None or pod.slot not in parse_slots(attempt.members):
        return False
    well = {p.slot for p in state.pods if p.phase is PodPhase.SUCCEEDED} | set(parse_slots(attempt.succeeded))
    running = {p.slot for p in state.pods if p.phase is PodPhase.RUNNING}
    return set(parse_slots(attempt.members)) <= well | running


def _all_well(state: State, last: PodView) -> bool:
    attempt = state.job.status.attempt if state.job is not None else None
    if attempt is None:
        return False
    well = {p.slot for p in state.pods if p.phase is PodPhase.SUCCEEDED} | set(parse_slots(attempt.succeeded))
    return set(parse_slots(attempt.members)) <= well | {last.slot}


def _ended(state: State, pod: PodView, code: int, message: str | None = None) -> State:
    """The trainer container ends for good."""
    phase = PodPhase.SUCCEEDED if code == 0 else PodPhase.FAILED
    word = last_word.from_text(message) if message is not None else None
    ended = replace(pod, phase=phase, ready=False, exit_code=code, finished_at=state.now, last_word=word)
    return state.with_pod(ended).without_agent(pod.uid)


# --- Agents ---


def _agent_steps(state: State, agent: Agent) -> Iterator[Step]:
    name = f"agent {agent.slot}"
    if agent.inflight is not None:
        word = agent.inflight
        yield f"{name} gets a late answer: {word['do']}", state.with_agent(_told(replace(agent, inflight=None), word))
    if agent.due and not agent.draining:
        yield f"{name} obeys: {agent.word and agent.word['do']}", obey(state, agent)
    if not agent.muted and not agent.due:
        speaking = poll(state, agent, late=False)
        if speaking is not None:
            yield f"{name} speaks", speaking
            if "delayed word" in state.faults:
                late = poll(state, agent, late=True)
                assert late is not None
                yield f"{name} speaks, and its answer takes long", replace(late, faults=late.faults - {"delayed word"})
    if agent.muted:
        yield f"{name} is heard again", state.with_agent(replace(agent, muted=False, said=False))
    if agent.draining and agent.runs:
        yield f"{name} ends its rank: its pod goes", state.with_agent(_stop(agent))
    if agent.phase == course.STARTING and not agent.draining:
        yield f"{name} starts its rank", fork(state, agent)
    yield from _rank_steps(state, agent, name)


def _told(agent: Agent, word: contract.Instruction) -> Agent:
    """As `Agent._instructed`: the same word again is nothing new."""
    if word["do"] == contract.DO_WAIT or (agent.word is not None and _same(agent.word, word)):
        return agent
    return replace(agent, word=word, due=True, said=False)


def _same(one: contract.Instruction, other: contract.Instruction) -> bool:
    return all(one.get(key) == other.get(key) for key in ("do", "attempt", "index", "workers", "exit_code"))


def poll(state: State, agent: Agent, *, late: bool) -> State | None:
    """It says all it knows; the answer comes at once if it is another than the one it follows. None: nothing would
    be said and nothing heard.
    """
    if agent.said:
        made = roster_of(state.leader, state.now)
        silent = Said(view(state, agent), (agent.boot, agent.seq), agent.word)
        word = made.instruction(silent)  # type: ignore[arg-type]
        if word["do"] == contract.DO_WAIT or (agent.word is not None and _same(agent.word, word)):
            return None
        return _answer(state, agent, word, late)
    agent = _timed(state, replace(agent, seq=agent.seq + 1, said=True, inflight=None))
    state, word, news = hear(state.with_agent(agent), Said(view(state, agent), (agent.boot, agent.seq), agent.word))
    state = _answer(state, agent, word, late)
    return _ask(state, agent) if news is News.MATTERS else state


def _answer(state: State, agent: Agent, word: contract.Instruction, late: bool) -> State:
    """What takes no time is done at once: with no rank to be ended first."""
    if late:
        return state.with_agent(replace(agent, inflight=word))
    told = _told(agent, word)
    state = state.with_agent(told)
    return obey(state, told) if told.due and not told.runs and not told.draining else state


def _timed(state: State, agent: Agent) -> Agent:
    """A rank's end has a moment, told the same each time."""
    if not agent.rank or agent.runs or agent.ended_at is not None:
        return agent
    return replace(agent, ended_at=state.now.timestamp())


def _ask(state: State, agent: Agent) -> State:
    """As the coordinator does: whom a peer cannot reach, and rank 0's agent where a rank broke, are to speak."""
    group = state.group(agent.attempt)
    asked = {index for index in agent.lost if index in group}
    if agent.rank not in (*GOOD, contract.END_STOPPED) and agent.index != 0 and 0 in group:
        asked.add(0)
    for index in asked:
        if group[index].uid != agent.uid and not group[index].muted:
            spoken = replace(state.agent(group[index].uid) or group[index], said=False)
            state = state.with_agent(spoken)
    return replace(state, leader=replace(state.leader, woken=state.leader.woken or bool(asked)))


def obey(state: State, agent: Agent) -> State:
    """As `Agent._follow`, in one go."""
    word = agent.word
    assert word is not None
    agent = replace(agent, due=False)
    what = word["do"]
    if what == contract.DO_RUN:
        return state.with_agent(_run(agent, word["attempt"], word["index"], word["workers"]))
    agent = _stop(agent)
    if what == contract.DO_CHECK:
        agent = replace(agent, checked=word["attempt"], found=agent.found or state.completed, said=False)
    elif what == contract.DO_EXIT:
        return _leave(state, agent, word["exit_code"])
    return state.with_agent(agent)


def _run(agent: Agent, number: int, index: int, workers: int) -> Agent:
    if number < agent.attempt or (number == agent.attempt and not agent.course.unused):
        return agent
    fresh = replace(
        agent, attempt=number, index=index, workers=workers, rank="", communication=False, ended_at=None,
        well=frozenset(), seen=frozenset(), lost=frozenset(),
    )  # fmt: skip
    made = Course()
    return fresh.after(made, made.begun(number <= agent.noted))


def _stop(agent: Agent) -> Agent:
    """`Attempt.stop`: what runs is killed."""
    made = agent.course
    outputs = made.stopped()
    changed = agent.runs or made.phase != agent.phase
    stopped = agent.after(made, outputs) if agent.attempt else agent
    if stopped.runs:
        stopped = replace(stopped, rank=contract.END_STOPPED)
    return replace(stopped, said=agent.said and not changed)


def _leave(state: State, agent: Agent, code: int) -> State:
    pod = state.pod(agent.uid)
    assert pod is not None
    told = view(state, _timed(state, agent))
    report: AgentReport = {
        "attempt": told.attempt, "completed": told.completed, "run": told.run, "ranks": list(told.ranks),
    }  # fmt: skip
    return _ended(state, pod, code, farewell(report, code, ""))


# --- Attempts ---


def _group_steps(state: State) -> Iterator[Step]:
    for leader in state.agents:
        if leader.index != 0 or not leader.attempt:
            continue
        group = state.group(leader.attempt)
        settled = _settle(state, leader, group)
        if settled is not None:
            yield f"attempt {leader.attempt} is joined, or cannot be", settled
        if (
            len(leader.well) == leader.workers
            and leader.phase in (course.RUNNING, course.STOPPED)
            and not leader.complete
        ):
            if not state.completed and leader.checked == leader.attempt:
                continue  # it has ended what was under way, and looked
            if not state.completed:
                yield f"attempt {leader.attempt}: the end record is written", replace(state, completed=True)
            else:
                yield f"attempt {leader.attempt}: its agents hear that it is complete", _tell_complete(state, leader)
        members = [group.get(index) for index in range(leader.workers)]
        if state.trained < leader.attempt and all(agent is not None and agent.runs for agent in members):
            yield f"attempt {leader.attempt} trains", replace(state, trained=leader.attempt)


def _settle(state: State, leader: Agent, group: dict[int, Agent]) -> State | None:
    """The real join, fed with those who ask."""
    if leader.joined:
        return _answer_again(state, leader, group)
    if leader.phase != course.ASKING:
        return None
    join, outputs = Join(leader.workers), []
    for agent in group.values():
        if agent.phase == course.ASKING:
            outputs += join.asked(Request(agent.index, f"10.0.0.{agent.slot}:7000"))
        elif agent.joined and agent.linked:
            outputs += join.began()
    for output in outputs:
        if isinstance(output, Refuse):
            made = leader.course
            return state.with_agent(leader.after(made, made.failed(output.kind, output.message)))
    if not any(isinstance(output, Settle) for output in outputs):
        return None
    for answer in join.settled({"completed": state.completed}):
        assert isinstance(answer, Answer)
        for index in answer.indices:
            agent = group[index]
            made = agent.course
            answered = agent.after(made, made.answered(state.completed))
            if index == 0:
                answered = replace(answered, seen=frozenset(answer.indices))
            state = state.with_agent(answered)
    return state


def _answer_again(state: State, leader: Agent, group: dict[int, Agent]) -> State | None:
    """A member that was started anew before it had forked asks once more."""
    asking = [agent for agent in group.values() if agent.phase == course.ASKING]
    for agent in asking:
        made = agent.course
        state = state.with_agent(agent.after(made, made.answered(leader.complete and not leader.forked)))
    return state if asking else None


def fork(state: State, agent: Agent) -> State:
    place = agent.attempt, agent.index
    broken.check(place not in state.started, f"index {place[1]} of attempt {place[0]} is started twice")
    made = agent.course
    made.forking()
    running = agent.after(made, [], noted=agent.attempt)
    state = state.with_agent(replace(running, rank=contract.RANK_RUNNING))
    return replace(state, started=state.started | {place})


def _tell_complete(state: State, leader: Agent) -> State:
    for agent in state.group(leader.attempt).values():
        if agent.linked or agent.uid == leader.uid:
            made = agent.course
            made.completed()
            state = state.with_agent(agent.after(made, []))
    return state


def _rank_steps(state: State, agent: Agent, name: str) -> Iterator[Step]:
    if not agent.attempt:
        return
    group = state.group(agent.attempt)
    if agent.runs:
        gone = [index for index in range(agent.workers) if not _is_well(group.get(index))]
        if gone and agent.workers > 1:
            ended = replace(agent, rank=contract.END_EXCEPTION, communication=True, said=False)
            yield f"the rank of {name} misses its peers", state.with_agent(ended)
        if state.trained == agent.attempt and not gone:
            yield f"the rank of {name} ends well", _well(state, agent, group)
    lost = _lost(agent, group)
    if lost != agent.lost:
        yield f"{name} misses {sorted(lost)}", state.with_agent(replace(agent, lost=lost, said=False))


def _is_well(agent: Agent | None) -> bool:
    return agent is not None and agent.linked and agent.rank in GOOD


def _well(state: State, agent: Agent, group: dict[int, Agent]) -> State:
    state = state.with_agent(replace(agent, rank=contract.END_OK, said=False))
    leader = state.agent(group[0].uid) if 0 in group else None
    if leader is None or not leader.linked:
        return state
    return state.with_agent(replace(leader, well=leader.well | {agent.index}))


def _lost(agent: Agent, group: dict[int, Agent]) -> frozenset[int]:
    """Rank 0's agent misses members that had joined; a member misses rank 0's agent."""
    if agent.phase not in (course.ASKING, course.STARTING, course.RUNNING):
        return agent.lost
    watched = agent.seen if agent.index == 0 else {0}
    return frozenset(i for i in watched if i != agent.index and not (i in group and group[i].linked))


# --- Time ---


def _time(state: State) -> Iterator[Step]:
    """Until the next moment at which somebody is woken. Whatever is to be said is said before."""
    if looks_now(state) or any(agent.due or (not agent.said and not agent.muted) for agent in state.agents):
        return
    moments = [state.leader.due] if state.leader.due is not None else []
    listed = set(parse_slots(state.job.status.slots)) if state.job is not None else set()
    waits = state.job is not None and finished(state.job.status) is None and not state.job.spec.suspend
    for _, heard in state.leader.heard:
        agent = state.agent(heard.pod_uid)
        if agent is not None and agent.muted and heard.slot in listed and waits:
            moments.append(max(heard.heard_at, state.leader.since) + seconds(SILENT_S + SLACK_S))
    later = [moment for moment in moments if moment > state.now]
    if not later:
        return
    then = min(later)
    silence = state.leader.due is None or then < state.leader.due
    speaking = {agent.uid for agent in state.agents if not agent.muted}
    heard = tuple(
        (order, replace(known, heard_at=then) if known.pod_uid in speaking and _polls(known, then) else known)
        for order, known in state.leader.heard
    )
    leader = replace(state.leader, heard=heard, woken=state.leader.woken or silence)
    yield f"{(then - state.now).total_seconds():.0f} s pass", replace(state, now=then, leader=leader)


def _polls(known: AgentView, now: datetime) -> bool:
    """Whether its long poll has ended by then."""
    return (now - known.heard_at).total_seconds() >= contract.LONG_POLL_S


# --- What befalls it ---


def fault_steps(state: State) -> Iterator[Step]:
    """Each kind once."""
    for kind in sorted(state.faults & FAULTS.keys()):
        left = replace(state, faults=state.faults - {kind})
        for label, after in FAULTS[kind](left):
            yield f"FAULT {kind}: {label}", after
    if state.job is not None and state.job.spec.suspend and state.job.metadata.deletion_timestamp is None:
        yield "the job is resumed", _edit(state, suspend=False)


def _rank_end(state: State) -> Iterator[Step]:
    for agent in state.agents:
        if agent.runs:
            ended = replace(agent, rank=contract.END_EXIT, said=False)
            yield (
                f"the rank of agent {agent.slot} exits with 1",
                replace(state.with_agent(ended), incidents=state.incidents + 1),
            )
    for pod in state.pods:
        if make.is_plain(pod.make) and pod.phase is PodPhase.RUNNING:
            yield f"{pod.name} exits with 1", replace(_ended(state, pod, 1), incidents=state.incidents + 1)


def _pod_loss(state: State) -> Iterator[Step]:
    for pod in state.pods:
        yield f"{pod.name} is gone", replace(state.without_pod(pod.uid), incidents=state.incidents + 1)


def _restart(state: State) -> Iterator[Step]:
    for agent in state.agents:
        pod = state.pod(agent.uid)
        assert pod is not None
        fresh = Agent(agent.uid, agent.slot, boot=agent.boot + 1, noted=agent.noted, draining=agent.draining)
        after = state.with_pod(replace(pod, restarts=(pod.restarts or 0) + 1)).with_agent(fresh)
        # That takes a moment; what others have to say may take longer.
        after = replace(after, now=state.now + seconds(SLACK_S), incidents=state.incidents + agent.joined)
        yield f"the container of {pod.name} starts again", after


def _spec_edit(state: State) -> Iterator[Step]:
    if state.job is None or state.job.metadata.deletion_timestamp is not None:
        return
    yield "workers: 1", _edit(state, workers=1)
    yield "workers: 3", _edit(state, workers=3)
    port = state.job.spec.rendezvous.model_copy(update={"port": 29501})
    spares = state.job.spec.runtime.spare_workers
    if spares:
        yield "runtime.spareWorkers: 0", _edit_spares(state, 0)
        yield "runtime.spareWorkers: 2", _edit_spares(state, 2)
    yield "rendezvous.port", _edit(state, rendezvous=port)
    yield "suspend: true", _edit(state, suspend=True)


def _edit_spares(state: State, count: int) -> State:
    assert state.job is not None
    return _edit(state, runtime=state.job.spec.runtime.model_copy(update={"spare_workers": count}))


def _edit(state: State, **fields: object) -> State:
    assert state.job is not None
    metadata = state.job.metadata.model_copy(update={"generation": state.job.metadata.generation + 1})
    spec = state.job.spec.model_copy(update=fields)
    job = state.job.model_copy(update={"spec": spec, "metadata": metadata})
    return replace(state, job=job, version=state.version + 1).woken()


def _leader_change(state: State) -> Iterator[Step]:
    """What the old one was about to do may still be done. Agents turn to the new one."""
    turns = tuple(replace(turn, old=True) for turn in state.turns)
    agents = tuple(replace(agent, said=False) for agent in state.agents)
    yield "a new one leads", replace(state, leader=Leader(since=state.now), turns=turns, agents=agents)


def _mute(state: State) -> Iterator[Step]:
    for agent in state.agents:
        yield f"agent {agent.slot} is not heard", state.with_agent(replace(agent, muted=True))


def _deletion(state: State) -> Iterator[Step]:
    if state.job is not None:
        metadata = state.job.metadata.model_copy(update={"deletion_timestamp": state.now + timedelta(0)})
        job = state.job.model_copy(update={"metadata": metadata})
        yield "the TrainJob is deleted", replace(state, job=job, version=state.version + 1).woken()


FAULTS = {
    "rank end": _rank_end,
    "pod loss": _pod_loss,
    "agent restart": _restart,
    "spec edit": _spec_edit,
    "leader change": _leader_change,
    "delayed word": _mute,
    "deletion": _deletion,
}
"""`stale list` is taken by the operator itself: a look that is old when it is acted upon."""
KINDS = (*FAULTS, "stale list")
