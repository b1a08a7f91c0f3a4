"""Phase, counts and conditions: what people and tools read off a job. Called last in a turn; no rule reads its phase.

What changes by itself while pods come up (counts, and the sentences that name them) is written rarely when nothing else changes.
"""

from __future__ import annotations

from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJobStatus, WorkersStatus
from trainjob_operator.core.conditions import condition, counting_pods, headline, what_is_said
from trainjob_operator.core.model import PodPhase
from trainjob_operator.core.moments import after
from trainjob_operator.core.naming import parse_slots, selector
from trainjob_operator.core.obstacles import look_again_at
from trainjob_operator.core.sizing import is_synced
from trainjob_operator.core.turn import Turn

COUNTS_EVERY_S = 5.0
"""Counts alone are written at most this often."""


def close(turn: Turn) -> TrainJobStatus:
    """The status that this turn wants written: conditions, phase and counts brought in line with what the rules decided."""
    _note_scheduled(turn)
    _look_again(turn)
    workers = _workers(turn)
    says = what_is_said(turn, workers)
    generation = turn.job.metadata.generation
    conditions = [condition(turn.status.condition(type_), type_, said, turn.now, generation) for type_, said in says.items()]
    turn.change(
        observed_generation=generation,
        phase=phase(turn),
        reason=headline(turn, says),
        selector=selector(turn.job.metadata.name),
        conditions=conditions,
        workers=workers,
    )
    _put_off_counts(turn)
    return turn.status


def _put_off_counts(turn: Turn) -> None:
    """While many pods come up one by one, not each of them is worth a write."""
    old, new = turn.job.status, turn.status
    told = old.conditions != new.conditions or old.workers.model_copy(update={"counted_at": None}) != new.workers.model_copy(update={"counted_at": None})
    if not told:
        return
    if old.workers.counted_at is not None and _differ_in_counts_alone(old, new):
        due = after(old.workers.counted_at, COUNTS_EVERY_S)
        if turn.now < due:
            turn.status = old
            turn.wake(due)
            return
    turn.change(workers=new.workers.model_copy(update={"counted_at": turn.now}))


def _differ_in_counts_alone(old: TrainJobStatus, new: TrainJobStatus) -> bool:
    verdicts = [[(c.type, c.status, c.reason, c.observed_generation) for c in status.conditions] for status in (old, new)]
    return verdicts[0] == verdicts[1] and old.model_copy(update={"conditions": new.conditions, "workers": new.workers}) == new


def phase(turn: Turn) -> str:
    """A word for people: Pending, Starting, Running, Restarting, Suspended, Complete or Failed."""
    if turn.outcome is not None:
        return turn.outcome.condition
    if turn.spec.suspend:
        return "Suspended"
    attempt = turn.status.attempt
    if turn.running is not None and turn.running.running_at is not None:
        return "Running"
    if attempt is not None and (attempt.cause if turn.running else attempt.end_cause) not in _FRESH_STARTS:
        return "Restarting"
    return "Pending" if turn.status.timing.scheduled_at is None else "Starting"


_FRESH_STARTS = (contract.REASON_STARTED, contract.REASON_RESUMED, contract.REASON_SUSPENDED)


# --- Counts ----------------------------------------------------------------------------------------------------------------


def _note_scheduled(turn: Turn) -> None:
    """Remember when all pods of this start were scheduled; from there the start-up deadline runs."""
    timing = turn.status.timing
    if turn.outcome or turn.spec.suspend:
        return
    pods = counting_pods(turn)
    if len(pods) < turn.spec.workers or not all(pod.scheduled for pod in pods):
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


def _workers(turn: Turn) -> WorkersStatus:
    ready, desired = _ready(turn), turn.spec.workers
    return turn.status.workers.model_copy(update={"ready": ready, "desired": desired, "summary": f"{ready}/{desired}"})


def _ready(turn: Turn) -> int:
    if turn.outcome is not None or turn.spec.suspend:
        return 0
    if turn.plain:
        return sum(1 for pod in counting_pods(turn) if pod.phase is PodPhase.SUCCEEDED or (pod.phase is PodPhase.RUNNING and pod.ready))
    members = turn.members() if turn.running is not None and turn.running.running_at is not None else ()
    # Ranks that run need no word from their agents: after a restart of the operator these are silent for a moment.
    return sum(1 for slot in parse_slots(turn.status.slots) if slot in turn.kids.live and (slot in members or is_synced(turn, slot)))
