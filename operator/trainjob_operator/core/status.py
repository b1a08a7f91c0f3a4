"""Conditions, phase and counts: what people and tools read off a job. Called last in a turn; no rule reads its phase.

A condition's transition time changes only with its status; messages hold nothing that changes by itself, so that a steady
state writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from trainjob_api import contract
from trainjob_api.v1alpha1 import Condition, TrainJobStatus, WorkersStatus
from trainjob_operator.core.model import PodPhase, PodView
from trainjob_operator.core.moments import after, aware
from trainjob_operator.core.naming import parse_slots, selector
from trainjob_operator.core.sizing import is_backing_off, is_synced
from trainjob_operator.core.turn import Turn

CONDITION_MESSAGE_LIMIT = 512
"""Characters of a condition's message; the one of Failed may have contract.MESSAGE_LIMIT."""
UNREACHABLE_S = 60.0
"""All agents silent for this long, while their pods run: the way to the coordinator is broken."""

Truth = Literal["True", "False", "Unknown"]


@dataclass(frozen=True)
class _Says:
    status: Truth
    reason: str
    message: str = ""


def close(turn: Turn) -> TrainJobStatus:
    """The status that this turn wants written: conditions, phase and counts brought in line with what the rules decided."""
    _note_scheduled(turn)
    workers = _workers(turn)
    says = {
        "Suspended": _suspended(turn),
        "ResourcesCreated": _resources_created(turn),
        "PodsScheduled": _pods_scheduled(turn),
        "WorkersReady": _workers_ready(turn, workers),
        "Progressing": _progressing(turn),
        "Degraded": _degraded(turn),
        "Complete": _finished(turn, "Complete"),
        "Failed": _finished(turn, "Failed"),
    }
    generation = turn.job.metadata.generation
    conditions = [_condition(turn.status.condition(type_), type_, said, turn.now, generation) for type_, said in says.items()]
    turn.change(
        observed_generation=generation,
        phase=phase(turn),
        selector=selector(turn.job.metadata.name),
        conditions=conditions,
        workers=workers,
    )
    return turn.status


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


def _condition(old: Condition | None, type_: str, said: _Says, now: datetime, generation: int) -> Condition:
    same = old is not None and old.status == said.status
    return Condition(
        type=type_,
        status=said.status,
        reason=said.reason,
        message=said.message[: contract.MESSAGE_LIMIT if type_ == "Failed" else CONDITION_MESSAGE_LIMIT],
        last_transition_time=old.last_transition_time if old is not None and same else now,
        observed_generation=generation,
    )


# --- Counts ----------------------------------------------------------------------------------------------------------------


def _pods(turn: Turn) -> list[PodView]:
    """Listed pods that count: alive, in plain mode also those that have succeeded."""
    kids = turn.kids
    done = kids.ended if turn.plain else {}
    found = [kids.live.get(slot) or done.get(slot) for slot in parse_slots(turn.status.slots)]
    return [pod for pod in found if pod is not None]


def _note_scheduled(turn: Turn) -> None:
    """Remember when all pods of this start were scheduled; from there the start-up deadline runs."""
    timing = turn.status.timing
    pods = _pods(turn)
    if timing.scheduled_at is not None or turn.outcome or turn.spec.suspend or len(pods) < turn.spec.workers:
        return
    if all(pod.scheduled for pod in pods):
        turn.change(timing=timing.model_copy(update={"scheduled_at": turn.now}))
        if turn.spec.startup_deadline_seconds is not None:
            turn.wake(after(turn.now, turn.spec.startup_deadline_seconds))


def _workers(turn: Turn) -> WorkersStatus:
    return WorkersStatus(ready=_ready(turn), desired=turn.spec.workers)


def _ready(turn: Turn) -> int:
    if turn.outcome is not None or turn.spec.suspend:
        return 0
    if turn.plain:
        return sum(1 for pod in _pods(turn) if pod.phase is PodPhase.SUCCEEDED or (pod.phase is PodPhase.RUNNING and pod.ready))
    members = turn.members() if turn.running is not None and turn.running.running_at is not None else ()
    # Ranks that run need no word from their agents: after a restart of the operator these are silent for a moment.
    return sum(1 for slot in parse_slots(turn.status.slots) if slot in turn.kids.live and (slot in members or is_synced(turn, slot)))


# --- Conditions --------------------------------------------------------------------------------------------------------------


def _suspended(turn: Turn) -> _Says:
    if turn.spec.suspend and turn.outcome is None:
        return _Says("True", contract.REASON_SUSPENDED, "spec.suspend is true")
    return _Says("False", contract.REASON_NOT_SUSPENDED)


def _resources_created(turn: Turn) -> _Says:
    if turn.outcome is not None:
        return _Says("False", contract.REASON_FINISHED)
    if turn.blocked is not None:
        return _Says("False", *turn.blocked)
    if turn.spec.suspend:
        return _Says("False", contract.REASON_SUSPENDED)
    there, wished = len(_pods(turn)), turn.spec.workers
    if turn.observed.service is None or there < wished:
        return _Says("False", contract.REASON_CREATING, f"{there} of {wished} pods exist")
    return _Says("True", contract.REASON_CREATED, f"{there} pods and their Service exist")


def _pods_scheduled(turn: Turn) -> _Says:
    if turn.outcome is not None or turn.spec.suspend:
        return _Says("False", contract.REASON_FINISHED if turn.outcome else contract.REASON_SUSPENDED)
    pods, wished = _pods(turn), turn.spec.workers
    placed = [pod for pod in pods if pod.scheduled]
    if len(placed) >= wished:
        return _Says("True", contract.REASON_SCHEDULED, f"{len(placed)} pods have a node")
    word = next((_word_of(pod) for pod in pods if not pod.scheduled and (pod.reason or pod.message)), "")
    return _Says("False", contract.REASON_UNSCHEDULED, f"{len(placed)} of {wished} pods have a node{word}")


def _workers_ready(turn: Turn, workers: WorkersStatus) -> _Says:
    if turn.outcome is not None or turn.spec.suspend:
        return _Says("False", contract.REASON_FINISHED if turn.outcome else contract.REASON_SUSPENDED)
    if workers.ready >= workers.desired:
        return _Says("True", contract.REASON_READY, f"{workers.ready} workers are ready")
    stuck = (pod for pod in _pods(turn) if pod.scheduled and pod.phase is PodPhase.PENDING and (pod.reason or pod.message))
    word = next((_word_of(pod) for pod in stuck), "")
    return _Says("False", contract.REASON_NOT_READY, f"{workers.ready} of {workers.desired} workers are ready{word}")


def _word_of(pod: PodView) -> str:
    return f"; {pod.name}: " + ": ".join(word for word in (pod.reason, pod.message) if word)


def _progressing(turn: Turn) -> _Says:
    if turn.outcome is not None:
        return _Says("False", turn.outcome.reason)
    if turn.spec.suspend:
        return _Says("False", contract.REASON_SUSPENDED)
    attempt = turn.running
    if attempt is not None:
        what = f"attempt {attempt.number} with {attempt.workers} workers, {attempt.world_size} ranks"
        return _Says("True", contract.REASON_RUNNING if attempt.running_at else contract.REASON_STARTING, what)
    if turn.blocked is not None:
        return _Says("False", turn.blocked[0])
    if is_backing_off(turn):
        return _Says("False", contract.REASON_BACK_OFF)
    return _Says("False", contract.REASON_NOT_READY)


def _degraded(turn: Turn) -> _Says:
    if turn.outcome is not None or turn.spec.suspend:
        return _Says("False", contract.REASON_FINISHED if turn.outcome else contract.REASON_SUSPENDED)
    if _all_silent(turn):
        return _Says("True", contract.REASON_UNREACHABLE, "no agent has been heard for a minute while pods run; training goes on, failures would go unseen")
    retry_at = turn.status.timing.retry_at
    if retry_at is not None and is_backing_off(turn):
        early = turn.status.failures.early_in_row
        return _Says("True", contract.REASON_BACK_OFF, f"the next start waits until {aware(retry_at):%H:%M:%S} UTC, after {early} early ends in a row")
    warning = next((view.warning for slot in turn.members() if (view := turn.word(slot)) is not None and view.warning), None)
    if warning is not None:
        return _Says("True", contract.REASON_WARNING, warning)
    return _Says("False", contract.REASON_HEALTHY)


def _all_silent(turn: Turn) -> bool:
    """Silence is told, never acted upon."""
    listening = turn.observed.listening_since
    if turn.plain or listening is None or turn.running is None or turn.running.running_at is None:
        return False
    heard = [aware(view.heard_at) for slot in turn.members() if (view := turn.kids.speaking(slot)) is not None]
    verdict = after(max([*heard, aware(listening), aware(turn.running.running_at)]), UNREACHABLE_S)
    turn.wake(verdict)
    return turn.now >= verdict


def _finished(turn: Turn, type_: str) -> _Says:
    outcome = turn.outcome
    if outcome is not None and outcome.condition == type_:
        return _Says("True", outcome.reason, outcome.message)
    return _Says("False", contract.REASON_FINISHED if outcome else contract.REASON_NOT_FINISHED)
