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
from trainjob_api.bad_nodes import looks_like_a_machine, with_suspects
from trainjob_operator.core import asked, boundaries, groups, lifecycle, progress
from trainjob_operator.core.answers import Answer, End, Hold, Waker
from trainjob_operator.core.ends import budget, hangs, stragglers, verdict
from trainjob_operator.core.ends.causes import cause_of
from trainjob_operator.core.ends.incident import Incident
from trainjob_operator.core.model import Decision, Observed
from trainjob_operator.core.moments import after
from trainjob_operator.core.resync import resync
from trainjob_operator.core.size import edits, giving_way, pod_actions, slots, start
from trainjob_operator.core.size.pauses import retry_in
from trainjob_operator.core.status import close
from trainjob_operator.core.turn import Turn

WHY_LIMIT = 1000
"""Characters of the sentence that is logged."""

SERVICE_LOOK_S = 10.0
"""How often a Service of somebody else is looked for again: Services are not watched."""

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
            standing=giving_way.standing(turn),
        )
    for rule in RULES:
        if _follow(turn, rule):
            break
    actions = lifecycle.actions_after_end(turn) if turn.outcome else pod_actions.pod_actions(turn)
    status = close(turn, groups.of(turn).ready)
    standing = giving_way.standing(turn)
    resync(turn)
    return Decision(
        status=status,
        actions=tuple(actions),
        events=tuple(turn.events),
        requeue_after=_requeue(turn),
        progress_after=turn.progress_due - turn.now if turn.progress_due is not None else None,
        why=_why(turn, _as_it_stands(turn)),
        standing=standing,
    )


def _follow(turn: Turn, rule: Rule) -> bool:
    """Ask one rule and do as it answers; True: no other is asked."""
    before = turn.mark()
    answer = rule(turn)
    why = _bars_failure(turn) if isinstance(answer, End) and answer.failed else None
    if isinstance(answer, End) and why is not None:
        # What the rule has entered rests on its verdict: neither stands yet. Nothing else ends the attempt before that,
        # and nobody takes the place of who broke: it would be told and counted nowhere.
        turn.go_back(before)
        answer = Hold(why=f"{answer.message}: {why}", until=turn.listens_until, event=Waker.AGENT, alone=True)
    if isinstance(answer, Hold):
        turn.held.append(answer)
        turn.wait(answer.why, until=answer.until, event=answer.event)
        return answer.alone
    if answer is None:
        return False
    if answer.failed:
        lifecycle.fail(turn, answer.reason, answer.message, answer.cause)
    else:
        lifecycle.complete(turn, answer.message)
    return True


def _bars_failure(turn: Turn) -> str | None:
    """Why the job may not be declared failed in this turn."""
    barring = next((hold for hold in turn.held if hold.bars_failure), None)
    if barring is not None:
        return f"the job does not fail before that ({barring.why})"
    if not turn.heard_enough:
        return f"the job does not fail before {lifecycle.name_workers(turn, turn.unheard())} could speak to this leader"
    return None


# --- The rules --------------------------------------------------------------------------------------------------------


def done(turn: Turn) -> Answer:
    """Training is over, and well. Between attempts an agent's word of that counts, whoever is to come next."""
    return (groups.of(turn) if turn.running is not None else groups.AGENTS).done(turn)


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
    group = groups.of(turn)
    found = group.find_end(turn)
    if found is None:
        return None
    turn.is_broken = True
    if isinstance(found, Hold):
        return found
    until = group.waits_for_leader_until(turn, found)
    if until is not None and turn.now < until:
        why = f"{found.message}; waiting for the word of rank 0's agent, which knows how far training came"
        return Hold(why=why, until=until, event=Waker.AGENT)
    return _end_by(turn, found)


def heed_notices(turn: Turn) -> Answer:
    """Members are to go, as Kubernetes says, and nobody wishes another end of the attempt."""
    found = None if turn.running is None else groups.of(turn).find_notice(turn)
    if found is None or isinstance(found, Hold):
        return found
    answer = _end_by(turn, found)
    groups.of(turn).give_up(turn)  # whoever is to go takes no part in the next attempt
    return answer


def pods_failed_to_start(turn: Turn) -> Answer:
    """Pods ended by themselves before an attempt counted on them."""
    found = groups.of(turn).failed_to_start(turn)
    if found is None:
        return None
    reported = turn.status.progress.position > 0
    return _pay(turn, found, budget.Record(progressed=False, early=True, reported_ever=reported))


def meet_deadlines(turn: Turn) -> Answer:
    """The job took too long; unless it may be complete, and the only ones who knew it are gone."""
    if verdict.is_looked_into(turn):
        return None
    answer = lifecycle.meet_deadlines(turn)
    if isinstance(answer, End) and turn.status.verdict is None and groups.of(turn).may_be_complete(turn):
        lifecycle.end_attempt(turn, answer.reason)
        verdict.defer(turn, answer.reason, answer.message)
        return None
    return answer


RULES: tuple[Rule, ...] = (
    done,
    check_spec,
    lambda turn: progress.note_attempt(turn, groups.of(turn).runs),
    progress.take_progress,
    verdict.judge,
    hangs.note,
    stragglers.note,
    asked.note,
    something_broke,  # failures.py finds the first cause, budget.py says what it costs
    pods_failed_to_start,
    lifecycle.suspend,
    lifecycle.restart_on_demand,
    meet_deadlines,
    lambda turn: groups.of(turn).give_up(turn),
    edits.take_edits,
    giving_way.give_way,
    lambda turn: start.scale(turn, beside=groups.of(turn).joins),
    heed_notices,
    verdict.look_first,
    lambda turn: groups.of(turn).give_back(turn),
    lambda turn: groups.of(turn).settle(turn),
    lambda turn: start.begin(turn, groups.of(turn).begin),
    slots.make_spares,
    boundaries.take_back,
)


# --- What they share --------------------------------------------------------------------------------------------------


def _end_by(turn: Turn, incident: Incident) -> Answer:
    """The running attempt ends, with all that was told of it."""
    progress.take_progress(turn, at_end=True)
    return _pay(turn, incident, groups.of(turn).record(turn))


def _pay(turn: Turn, incident: Incident, record: budget.Record) -> Answer:
    """End the attempt and enter the cost, in one write."""
    if turn.status.verdict is not None:
        retry_in(turn, budget.back_off(turn.status.failures.early_in_row + 1))
        return verdict.look_failed(turn, incident)
    group = groups.of(turn)
    open_end = group.may_have_completed(turn, incident) if turn.running else group.may_be_complete(turn)
    cost = budget.charge(turn.spec.failure_policy, turn.status.failures, incident, record, turn.kids.listed)
    attempt = turn.status.attempt
    failure = incident.failure(attempt.number if attempt else 0)
    lifecycle.end_attempt(turn, incident.reason, broke=incident.time, message=incident.message)
    turn.change(failures=cost.failures, last_failure=failure)
    if failure.node and looks_like_a_machine(failure):
        turn.change(suspects=with_suspects(turn.status.suspects, [failure.node], failure.time, failure.reason))
    turn.tell("Warning", incident.reason, incident.message)
    turn.say(incident.message)
    if open_end:
        verdict.leave_open(turn)
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


def _as_it_stands(turn: Turn) -> str:
    attempt = turn.status.attempt
    return f"attempt {attempt.number}: {(turn.status.phase or '').lower()}" if attempt else "waiting"


def _why(turn: Turn, default: str) -> str:
    return ("; ".join(turn.sentences) or default)[:WHY_LIMIT]
