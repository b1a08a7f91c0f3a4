"""Phase, counts and conditions: what people and tools read off a job. Called last in a turn; no rule reads its phase.

What changes by itself while pods come up (counts, pods made and placed) is written rarely when nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from trainjob_api import contract
from trainjob_api.v1alpha1 import Condition, TrainJobStatus, WorkersStatus
from trainjob_operator.core import accounting, standby
from trainjob_operator.core.conditions import OURS_AT_TIMES, condition, counting_pods, headline, what_is_said
from trainjob_operator.core.ends.causes import cause_of
from trainjob_operator.core.lifecycle import is_cancelled, note_parts
from trainjob_operator.core.moments import after, aware, elapsed
from trainjob_operator.core.obstacles import look_again_at
from trainjob_operator.core.pods.naming import selector
from trainjob_operator.core.turn import Turn

CONDITIONS_LIMIT = 16
"""As in the schema."""
USUAL_EVERY_S = (5.0, 30.0)
"""What a start shows of itself is written by itself after 5 s, and then ever more rarely: after 15 s, 45 s, then
every 30 s.
"""


def close(turn: Turn, ready: Callable[[Turn], int]) -> TrainJobStatus:
    """The status that this turn wants written: conditions, phase and counts brought in line with what the rules
    decided. `ready`: how many workers are, as its group counts them.
    """
    _note_scheduled(turn)
    _look_again(turn)
    workers = _workers(turn, 0 if turn.outcome is not None or turn.is_suspended else ready(turn))
    says = what_is_said(turn, workers)
    generation = turn.job.metadata.generation
    conditions = [
        condition(turn.status.condition(type_), type_, said, turn.now, generation) for type_, said in says.items()
    ]
    # Others may keep conditions here (a queue, a user's controller); there is room for so many.
    ours = {*says, *OURS_AT_TIMES}
    theirs = [condition for condition in turn.status.conditions if condition.type not in ours]
    conditions += theirs[: CONDITIONS_LIMIT - len(conditions)]
    # Where one thing alone was decided nobody has answered an edit yet.
    cut_short = any(hold.alone for hold in turn.held)
    turn.change(
        observed_generation=turn.status.observed_generation if cut_short else generation,
        phase=phase(turn),
        reason=headline(turn, says),
        selector=selector(turn.job.metadata.name),
        conditions=conditions,
        workers=workers,
    )
    _put_off_the_usual(turn)
    if turn.status != turn.job.status:
        # It goes with what is written anyway, and is no reason to write.
        note_parts(turn)
        accounting.show(turn)
    return turn.status


def _put_off_the_usual(turn: Turn) -> None:
    """Of a start on its usual way (pods made, placed, coming up one by one) not each step is worth a write: it goes
    with the next that is.
    """
    old, new = turn.job.status, turn.status
    told = old.conditions != new.conditions or old.workers.model_copy(
        update={"counted_at": None}
    ) != new.workers.model_copy(update={"counted_at": None})
    if not told:
        return
    if old.workers.counted_at is not None and _is_the_usual(turn, old, new):
        due = after(
            old.workers.counted_at,
            min(max(USUAL_EVERY_S[0], 2 * elapsed(old.workers.counted_at, _start_of(new))), USUAL_EVERY_S[1]),
        )
        if turn.now < due:
            turn.status = old
            turn.wake(due)
            return
    turn.change(workers=new.workers.model_copy(update={"counted_at": turn.now}))


def _is_the_usual(turn: Turn, old: TrainJobStatus, new: TrainJobStatus) -> bool:
    """Whether nothing differs but counts, and conditions that turned from one usual state of a start to another."""
    for before, after_ in (
        zip(old.conditions, new.conditions, strict=True) if len(old.conditions) == len(new.conditions) else ()
    ):
        if before.observed_generation != after_.observed_generation or _verdict(before) != _verdict(after_):
            return False
    shown = {"conditions": new.conditions, "workers": new.workers, "reason": new.reason}
    if not turn.kind.begins_before_pods and turn.spec.startup_deadline_seconds is None:
        # When all pods had a node is then a thing to be shown, too: no rule reads it.
        shown |= {"phase": new.phase, "timing": old.timing.model_copy(update={"scheduled_at": new.timing.scheduled_at})}
    return len(old.conditions) == len(new.conditions) and old.model_copy(update=shown) == new


def _verdict(entry: Condition) -> tuple[str, str, str]:
    usual = (entry.status, entry.reason) in _USUAL_OF_A_START.get(entry.type, ())
    return (entry.type, "usual", "") if usual else (entry.type, entry.status, entry.reason)


_USUAL_OF_A_START = {
    "ResourcesCreated": (("False", contract.REASON_CREATING), ("True", contract.REASON_CREATED)),
    "PodsScheduled": (("False", contract.REASON_UNSCHEDULED), ("True", contract.REASON_SCHEDULED)),
}


def _start_of(status: TrainJobStatus) -> datetime:
    """When the start that pods come up for began: with the job, or with the end of the attempt before."""
    attempt, timing = status.attempt, status.timing
    moments = [timing.active_since, *((attempt.ended_at, attempt.started_at) if attempt is not None else ())]
    return max((aware(moment) for moment in moments if moment is not None), default=aware(datetime.min))


def phase(turn: Turn) -> str:
    """A word for people: Pending, Starting, Running, Restarting, Suspended, Cancelled, Complete or Failed."""
    if turn.outcome is not None:
        return turn.outcome.condition
    if turn.is_suspended:
        return "Cancelled" if is_cancelled(turn) else "Suspended"
    attempt = turn.status.attempt
    if turn.running is not None and turn.running.running_at is not None:
        return "Running"
    if attempt is not None and cause_of(attempt.cause if turn.running else attempt.end_cause).restart:
        return "Restarting"
    return "Pending" if turn.status.timing.scheduled_at is None else "Starting"


# --- Counts -----------------------------------------------------------------------------------------------------------


def _note_scheduled(turn: Turn) -> None:
    """Remember when all pods of this start were scheduled; from there the start-up deadline runs."""
    timing = turn.status.timing
    if turn.outcome or turn.is_suspended:
        return
    members = frozenset(turn.members())
    pods = [pod for pod in counting_pods(turn) if not members or pod.slot in members]
    if len(pods) < (len(members) or turn.spec.workers) or not all(pod.scheduled for pod in pods):
        if timing.scheduled_at is not None and turn.running is None:
            # A pod of this start was lost, and its successor may wait in a queue.
            turn.change(timing=timing.model_copy(update={"scheduled_at": None}))
    elif timing.scheduled_at is None:
        turn.change(timing=timing.model_copy(update={"scheduled_at": turn.now}))
        if turn.spec.startup_deadline_seconds is not None:
            turn.wake(after(turn.now, turn.spec.startup_deadline_seconds))


def _look_again(turn: Turn) -> None:
    """Pods that have a node and do not come up: their events may tell why, and nobody calls when they do."""
    at = look_again_at(turn.kids.live.values(), turn.now)
    if at is not None and turn.outcome is None:
        turn.wake(at)


def _workers(turn: Turn, ready: int) -> WorkersStatus:
    desired, attempt = turn.spec.workers, turn.status.attempt
    if turn.outcome is not None and turn.outcome.condition == "Complete" and attempt is not None:
        # None is up any more; as with a Job's completions, a table shows that all of them got through.
        shown = f"{attempt.workers}/{attempt.workers}"
    else:
        shown = f"{ready}/{desired}"
    counts = {"ready": ready, "desired": desired, "summary": shown, "spares": standby.summary(turn)}
    return turn.status.workers.model_copy(update=counts)
