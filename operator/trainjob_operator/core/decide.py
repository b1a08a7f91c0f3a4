"""The decision: what one look at a job means. Pure and total; called by the reconciler, once a turn.

Read `RULES` from the top: each rule may change the status that this turn will write, and answers (`answers.py`) whether
to go on, to wait, or to end the job; the first one that ends it is the last. While a rule waits, and before the members
that live could speak to this leader, the job does not fail. Then the actions follow from that status. Policies are in
the modules named beside them; no rule does I/O, reads a clock, or remembers anything between turns.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from trainjob_api import contract, validation
from trainjob_operator.core import lifecycle, progress
from trainjob_operator.core.answers import Answer, End, Hold, Waker
from trainjob_operator.core.ends import budget, failures, pod_ends, verdict
from trainjob_operator.core.ends.causes import cause_of
from trainjob_operator.core.ends.incident import Incident, Undecided
from trainjob_operator.core.model import AgentView, Decision, Observed
from trainjob_operator.core.moments import after, aware
from trainjob_operator.core.resync import resync
from trainjob_operator.core.size import edits, gang, pod_actions, slots, start
from trainjob_operator.core.size.pauses import retry_in
from trainjob_operator.core.status import close
from trainjob_operator.core.turn import Turn

WHY_LIMIT = 1000
"""Characters of the sentence that is logged."""

SERVICE_LOOK_S = 10.0
"""How often a Service of somebody else is looked for again: Services are not watched."""
LAST_WORD_S = 1.0
"""How long the end of a job or of a rank waits for what rank 0's agent has to say of it."""

Rule = Callable[[Turn], Answer]


def decide(observed: Observed, now: datetime) -> Decision:
    """What to write and do, given everything that is known, and when to look again."""
    turn = Turn.of(observed, now)
    if observed.job.metadata.deletion_timestamp is not None:
        return Decision(status=turn.status, why="the TrainJob is being deleted: owner references clean up")
    manager = turn.spec.managed_by
    if manager not in (None, contract.MANAGER):
        why = f"spec.managedBy is {manager}: this job is that controller's, and left alone"
        return Decision(status=turn.status, why=why)
    if turn.status.finished:
        # Terminal: the status stays as it is, whatever is seen.
        actions = lifecycle.actions_after_end(turn)
        lifecycle.answer_edit(turn)
        return Decision(
            status=turn.status,
            actions=tuple(actions),
            events=tuple(turn.events),
            requeue_after=_requeue(turn),
            why=_why(turn, "finished"),
        )
    for rule in RULES:
        if _follow(turn, rule):
            break
    actions = lifecycle.actions_after_end(turn) if turn.outcome else pod_actions.pod_actions(turn)
    status = close(turn)
    resync(turn)
    return Decision(
        status=status,
        actions=tuple(actions),
        events=tuple(turn.events),
        requeue_after=_requeue(turn),
        progress_after=turn.progress_due - turn.now if turn.progress_due is not None else None,
        why=_why(turn, _standing(turn)),
    )


def _follow(turn: Turn, rule: Rule) -> bool:
    """Ask one rule and do as it answers; True: no other is asked."""
    before = turn.mark()
    answer = rule(turn)
    if isinstance(answer, Hold):
        turn.held.append(answer)
        turn.wait(answer.why, until=answer.until, event=answer.event)
        return answer.alone
    if answer is None:
        return False
    if not answer.failed:
        lifecycle.complete(turn, answer.message)
        return True
    why = _bars_failure(turn)
    if why is not None:
        # What the rule has entered rests on its verdict: neither stands yet.
        turn.go_back(before)
        turn.wait(f"{answer.message}: {why}", until=turn.listens_until, event=Waker.AGENT)
        return False
    lifecycle.fail(turn, answer.reason, answer.message, answer.cause)
    return True


def _bars_failure(turn: Turn) -> str | None:
    """Why the job may not be declared failed in this turn."""
    if turn.held:
        return f"the job does not fail before that ({turn.held[0].why})"
    if not turn.heard_enough:
        return f"the job does not fail before {lifecycle.name_workers(turn, turn.unheard())} could speak to this leader"
    return None


# --- The rules --------------------------------------------------------------------------------------------------------


def completed(turn: Turn) -> Answer:
    """An agent has written or found the run's end record: done, even if the other pods are gone."""
    attempt = turn.status.attempt
    said = [
        v
        for v in (*turn.kids.agents.values(), *turn.observed.parted.values())
        if attempt is not None and v.completed and (attempt.run is None or v.run is None or v.run == attempt.run)
    ]
    if not said:
        return None
    # The last progress and checkpoint are in the word of rank 0's agent, which another member's may overtake.
    leader = next(iter(turn.members()), -1)
    word, lives = turn.word(leader), leader in turn.kids.live
    until = _last_word_until(turn, word, min(aware(view.heard_at) for view in said))
    if lives and (word is None or not word.completed) and turn.now < until:
        why = "completed; waiting for the last word of rank 0's agent"
        return Hold(why=why, until=until, event=Waker.AGENT, alone=True)
    return End(failed=False, reason=contract.REASON_COMPLETED, message="all ranks ended with success")


def completed_plain(turn: Turn) -> Answer:
    """Plain mode: the trainer containers of all members have succeeded."""
    if turn.plain and turn.members() and turn.succeeded() == frozenset(turn.members()):
        return End(failed=False, reason=contract.REASON_COMPLETED, message="all workers ended with success")
    return None


def check_spec(turn: Turn) -> None:
    """An invalid spec, or a Service of somebody else under our name: nothing new is made until that changes."""
    problems = validation.validate_spec(turn.spec, turn.job.metadata.name)
    service = turn.observed.service
    if problems:
        turn.blocked = contract.REASON_INVALID_SPEC, "; ".join(f"{p.field}: {p.message}" for p in problems)
    elif service is not None and not service.owned:
        turn.blocked = (
            contract.REASON_SERVICE_CONFLICT,
            f"a Service {service.name} that is not this TrainJob's exists: delete it or rename the TrainJob",
        )
        turn.wake(after(turn.now, SERVICE_LOOK_S))


def something_broke(turn: Turn) -> Answer:
    """A rank ended or a member's pod was lost: the attempt ends, is paid for, and may be the last."""
    if turn.running is None:
        return None
    found = failures.find_incident(turn)
    if found is None:
        return None
    if isinstance(found, Undecided):
        return Hold(why=found.sentence, until=found.until, event=found.event)
    until = _leaders_word_until(turn, found)
    if until is not None and turn.now < until:
        why = f"{found.message}; waiting for the word of rank 0's agent, which knows how far training came"
        return Hold(why=why, until=until, event=Waker.AGENT)
    progress.take_progress(turn, at_end=True)
    return _pay(turn, found, _record(turn))


def pods_failed_to_start(turn: Turn) -> Answer:
    """Pods that ended by themselves before an attempt counted on them: one failure, however many they are."""
    # A member of the last attempt that goes after that has ended is part of the same incident.
    ended = [pod for slot, pod in sorted(turn.kids.ended.items()) if slot not in turn.former]
    if turn.plain or turn.was_running or not ended:
        return None
    incidents = [pod_ends.of_pod_before_start(turn, pod) for pod in ended]
    first = min(incidents, key=lambda incident: (not incident.counted, incident.time, incident.slot))
    return _pay(
        turn, first, budget.Record(progressed=False, early=True, reported_ever=turn.status.progress.position > 0)
    )


def meet_deadlines(turn: Turn) -> Answer:
    """The job took too long; unless it may be complete, and the only ones who knew it are gone."""
    if verdict.is_looked_into(turn):
        return None
    answer = lifecycle.meet_deadlines(turn)
    if isinstance(answer, End) and turn.status.verdict is None and verdict.is_unknown(turn):
        lifecycle.end_attempt(turn, answer.reason)
        verdict.defer(turn, answer.reason, answer.message)
        return None
    return answer


RULES: tuple[Rule, ...] = (
    completed,
    completed_plain,
    check_spec,
    progress.note_attempt,
    progress.take_progress,
    verdict.judge,
    something_broke,  # failures.py finds the first cause, budget.py says what it costs
    pods_failed_to_start,
    lifecycle.suspend,
    lifecycle.restart_on_demand,
    meet_deadlines,
    slots.replace_spares,
    slots.replace_lost,  # silence.py: silent, and a second witness says so too
    edits.take_edits,
    start.scale,
    gang.give_back,
    slots.settle_slots,
    start.begin,
)


# --- What they share --------------------------------------------------------------------------------------------------


def _leaders_word_until(turn: Turn, incident: Incident) -> datetime | None:
    """Until when the end of a rank waits for rank 0's agent: it alone tells of progress, and another agent's word of an
    end may overtake it.

    Without that a worker that broke after a new report would be charged as one that broke without any.
    """
    members, reporter = turn.members(), turn.word(incident.slot) if incident.slot is not None else None
    if (
        turn.plain
        or incident.rank is None
        or reporter is None
        or incident.slot == members[0]
        or members[0] not in turn.kids.live
    ):
        return None
    leader = turn.word(members[0])
    if progress.has_progressed(turn.status, leader) or (
        leader is not None and aware(leader.heard_at) >= aware(incident.time)
    ):
        return None
    return _last_word_until(turn, leader, reporter.heard_at)


def _last_word_until(turn: Turn, word: AgentView | None, since: datetime) -> datetime:
    """Until when an agent's word is waited for that another's has overtaken."""
    return after(since, LAST_WORD_S) if word is not None else turn.listens_until


def _record(turn: Turn) -> budget.Record:
    attempt = turn.running
    progressed = not turn.plain and progress.has_progressed(turn.status)
    early = attempt is not None and budget.is_early(turn.now, attempt.started_at) and not progressed
    before = turn.status.last_failure
    return budget.Record(
        progressed=progressed,
        early=early,
        reported_ever=not turn.plain and turn.status.progress.position > 0,
        before=before if attempt and before and before.attempt == attempt.number - 1 else None,
    )


def _pay(turn: Turn, incident: Incident, record: budget.Record) -> Answer:
    """End the attempt and enter the cost, in one write."""
    if turn.status.verdict is not None:
        retry_in(turn, budget.back_off(turn.status.failures.early_in_row + 1))
        return verdict.look_failed(turn, incident)
    open_end = verdict.may_have_completed(turn, incident)
    cost = budget.charge(turn.spec.failure_policy, turn.status.failures, incident, record, turn.kids.listed)
    attempt = turn.status.attempt
    failure = incident.failure(attempt.number if attempt else 0)
    lifecycle.end_attempt(turn, incident.reason)
    turn.change(failures=cost.failures, last_failure=failure)
    turn.tell("Warning", incident.reason, incident.message)
    turn.say(incident.message)
    if cost.fatal is not None and open_end and cause_of(cost.fatal[0]).deferrable:
        verdict.defer(turn, *cost.fatal)
        return None
    if cost.fatal is not None:
        return End(failed=True, reason=cost.fatal[0], message=cost.fatal[1], cause=failure)
    retry_in(turn, cost.back_off_s)
    if cost.replace is not None:
        slots.replace(turn, cost.replace, incident)
    return None


def _requeue(turn: Turn) -> timedelta | None:
    return min(turn.wakes) - turn.now if turn.wakes else None


def _standing(turn: Turn) -> str:
    attempt = turn.status.attempt
    return f"attempt {attempt.number}: {(turn.status.phase or '').lower()}" if attempt else "waiting"


def _why(turn: Turn, default: str) -> str:
    return ("; ".join(turn.sentences) or default)[:WHY_LIMIT]
