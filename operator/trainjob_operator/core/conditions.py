"""The conditions of a job: what each says now, with its reason and a sentence for people.

Called by `status.py`. A condition's transition time changes only with its status; messages hold nothing that changes by
itself, so that a steady state writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from trainjob_api import contract, cut, defaults
from trainjob_api.v1alpha1 import Condition, Truth, WorkersStatus
from trainjob_operator.core import boundaries, make, obstacles, standby
from trainjob_operator.core.ends import hangs, stragglers
from trainjob_operator.core.ends.silence import SILENT_S
from trainjob_operator.core.ends.unreached import SAID_AFTER_S, find_unreached, sentence
from trainjob_operator.core.lifecycle import is_cancelled, name_workers
from trainjob_operator.core.model import PodView
from trainjob_operator.core.moments import after, aware
from trainjob_operator.core.pods.naming import spare_slots, worker_slots
from trainjob_operator.core.size import gang
from trainjob_operator.core.size.pauses import backs_off_until
from trainjob_operator.core.turn import Turn

CONDITION_MESSAGE_LIMIT = 512
"""Characters of a condition's message; the one of Failed may have contract.MESSAGE_LIMIT."""
UNREACHABLE_S = 60.0
"""All agents silent for this long, while their pods run: the way to the coordinator is broken."""

OURS_AT_TIMES = ("BelowTargetWorkers", "SparesReady")
"""Conditions that only some jobs have: one of them that is said no more goes."""


@dataclass(frozen=True)
class Says:
    """A condition's status, its reason and its sentence."""

    status: Truth
    reason: str
    message: str = ""


def what_is_said(turn: Turn, workers: WorkersStatus) -> dict[str, Says]:
    """All conditions by type, in the order in which they are shown; some only of jobs that they are about."""
    elastic = {"BelowTargetWorkers": _below_target(turn)} if turn.spec.elastic is not None else {}
    spares = {"SparesReady": _spares_ready(turn)} if standby.are_wished(turn) else {}
    return {
        "Suspended": _suspended(turn),
        "ResourcesCreated": _resources_created(turn),
        "PodsScheduled": _pods_scheduled(turn),
        "WorkersReady": _workers_ready(turn, workers),
        **elastic,
        **spares,
        "Progressing": _progressing(turn),
        "Degraded": _degraded(turn),
        "Complete": _finished(turn, "Complete"),
        "Failed": _finished(turn, "Failed"),
    }


def condition(old: Condition | None, type_: str, said: Says, now: datetime, generation: int) -> Condition:
    """In the shape of metav1."""
    same = old is not None and old.status == said.status
    return Condition(
        type=type_,
        status=said.status,
        reason=said.reason,
        message=cut.within(said.message, contract.MESSAGE_LIMIT if type_ == "Failed" else CONDITION_MESSAGE_LIMIT),
        last_transition_time=old.last_transition_time if old is not None and same else now,
        observed_generation=generation,
    )


def headline(turn: Turn, says: Mapping[str, Says]) -> str:
    """One reason for a table's column: the first cause of a failure, what holds the job up, else how it stands."""
    failure = turn.status.last_failure
    if turn.outcome is not None:
        return failure.reason if turn.outcome.condition == "Failed" and failure else turn.outcome.reason
    if turn.is_suspended:
        return says["Suspended"].reason
    if "BelowTargetWorkers" in says and says["BelowTargetWorkers"].status == "True":
        # What holds the others up is in its message: training goes on.
        return says["Degraded" if says["Degraded"].status == "True" else "BelowTargetWorkers"].reason
    held_up = [
        says[type_].reason
        for type_ in ("ResourcesCreated", "PodsScheduled", "WorkersReady")
        if says[type_].status == "False"
    ]
    telling = next((reason for reason in held_up if reason not in _USUAL), None)
    if telling is not None:
        return telling
    if says["Degraded"].status == "True":
        return says["Degraded"].reason
    attempt = turn.status.attempt
    if attempt is not None and attempt.state == "Ended" and failure is not None and failure.attempt == attempt.number:
        return failure.reason
    return next(iter(held_up), says["Progressing"].reason) if turn.running is None else says["Progressing"].reason


_USUAL = (contract.REASON_CREATING, contract.REASON_UNSCHEDULED, contract.REASON_NOT_READY)
"""Reasons of a start on its usual way."""


def counting_pods(turn: Turn) -> list[PodView]:
    """Listed pods that count; those of spares do not."""
    found = [turn.kind.pod_that_counts(turn.kids, slot) for slot in worker_slots(turn.status)]
    return [pod for pod in found if pod is not None]


def done_and_gone(turn: Turn) -> int:
    """Members that have succeeded and whose pods were removed since: they count as if they were there."""
    return len(turn.succeeded() - {pod.slot for pod in counting_pods(turn)})


def _suspended(turn: Turn) -> Says:
    if turn.outcome is None and turn.is_suspended and is_cancelled(turn):
        return Says(
            "True",
            contract.REASON_CANCELLED,
            f"cancelled (spec.suspend is true); tj resume {turn.job.metadata.name} lets it continue",
        )
    if turn.is_suspended and turn.outcome is None:
        return Says("True", contract.REASON_SUSPENDED, "spec.suspend is true")
    return Says("False", contract.REASON_NOT_SUSPENDED)


def _resources_created(turn: Turn) -> Says:
    if turn.outcome is not None:
        return Says("False", contract.REASON_FINISHED)
    if turn.blocked is not None:
        return Says("False", *turn.blocked)
    if turn.is_suspended:
        return Says("False", contract.REASON_SUSPENDED)
    there, wished = len(counting_pods(turn)) + done_and_gone(turn), turn.spec.workers
    if turn.observed.service is not None and there >= wished:
        return Says("True", contract.REASON_CREATED, f"{there} pods and their Service exist")
    refused = obstacles.of_refusals(turn.observed.refusals or ()) or obstacles.of_unanswered(turn.observed.unanswered)
    old = turn.status.condition("ResourcesCreated")
    if refused is not None:
        return Says("False", refused.reason, refused.words)
    if turn.observed.refusals is None and old is not None and old.reason in obstacles.REFUSED:
        # A new leader has not tried yet: what the API server said last still stands.
        return Says("False", old.reason, old.message)
    return Says("False", contract.REASON_CREATING, f"{there} of {wished} pods exist")


def _pods_scheduled(turn: Turn) -> Says:
    if turn.outcome is not None or turn.is_suspended:
        return Says("False", contract.REASON_FINISHED if turn.outcome else contract.REASON_SUSPENDED)
    if gang.waits_until(turn) is not None:
        old = turn.status.condition("PodsScheduled")
        said = (
            old.message
            if old is not None and old.reason == contract.REASON_GANG
            else "the pods of this start were given back"
        )
        return Says("False", contract.REASON_GANG, turn.gang or said)
    pods, wished = counting_pods(turn), turn.spec.workers
    placed = sum(1 for pod in pods if pod.scheduled) + done_and_gone(turn)
    if placed >= wished:
        return Says("True", contract.REASON_SCHEDULED, f"{placed} pods have a node")
    obstacle = obstacles.of_unscheduled(pods)
    words = f"; {obstacle.words}" if obstacle else ""
    return Says(
        "False",
        obstacle.reason if obstacle else contract.REASON_UNSCHEDULED,
        f"{placed} of {wished} pods have a node{words}",
    )


def _workers_ready(turn: Turn, workers: WorkersStatus) -> Says:
    if turn.outcome is not None or turn.is_suspended:
        return Says("False", contract.REASON_FINISHED if turn.outcome else contract.REASON_SUSPENDED)
    if workers.ready >= workers.desired:
        return Says("True", contract.REASON_READY, f"{workers.ready} workers are ready")
    count = f"{workers.ready} of {workers.desired} workers are ready"
    apart = spare_slots(turn.status)
    pods = [pod for slot, pod in (*turn.kids.live.items(), *turn.kids.ended.items()) if slot not in apart]
    obstacle = obstacles.of_starting(pods)
    if obstacle is None:
        return Says("False", contract.REASON_NOT_READY, count)
    held = f"; {obstacle.pods} are held up" if obstacle.pods > 1 else ""
    return Says("False", obstacle.reason, f"{count}{held}; {_first_words(turn, obstacle)}")


def _below_target(turn: Turn) -> Says:
    attempt, elastic, wished = turn.running, turn.spec.elastic, turn.spec.workers
    if turn.outcome is not None or elastic is None or attempt is None or attempt.workers >= wished:
        return Says("False", contract.REASON_AT_TARGET)
    bounds = f"elastic, at least {elastic.min_workers}"
    if attempt.workers not in defaults.sizes(turn.spec):
        bounds = "elastic; the sizes were edited since: that takes effect at the next start"
    text = f"training continues with {attempt.workers} of {wished} workers ({bounds})"
    words = _why_below(turn)
    return Says("True", contract.REASON_BELOW_TARGET, f"{text}; {words}" if words else text)


def _spares_ready(turn: Turn) -> Says:
    return Says(*standby.said(turn))


def _why_below(turn: Turn) -> str | None:
    """What keeps the workers away that are missing."""
    if turn.status.gave_way is not None:
        return f"it makes room for TrainJob {turn.status.gave_way.to}"
    if gang.waits_until(turn) is not None:
        return "too few of the others found a node: they are tried again later"
    refused = obstacles.of_refusals(turn.observed.refusals or ()) or obstacles.of_unanswered(turn.observed.unanswered)
    pods = counting_pods(turn)
    found = refused or obstacles.of_unscheduled(pods) or obstacles.of_starting(tuple(pods))
    return found.words if found is not None else None


def _first_words(turn: Turn, obstacle: obstacles.Obstacle) -> str:
    """A kubelet tells the same trouble in turns in two ways (ErrImagePull, ImagePullBackOff): the first one stays."""
    old = turn.status.condition("WorkersReady")
    start = f"; {obstacle.pod}: "
    if old is None or old.reason != obstacle.reason or start not in old.message:
        return obstacle.words
    return old.message[old.message.index(start) + 2 :]


def _progressing(turn: Turn) -> Says:
    if turn.outcome is not None:
        return Says("False", turn.outcome.reason)
    if turn.is_suspended:
        return Says("False", contract.REASON_SUSPENDED)
    attempt = turn.running
    if attempt is not None:
        what = f"attempt {attempt.number} with {attempt.workers} workers, {attempt.world_size} ranks"
        if attempt.make not in (None, turn.make):
            what += "; the spec was edited since: that takes effect at the next start"
        if turn.status.boundary is not None:
            what += f"; {boundaries.waits_for(turn, turn.status.boundary)}"
        return Says("True", contract.REASON_RUNNING if attempt.running_at else contract.REASON_STARTING, what)
    if turn.blocked is not None:
        return Says("False", turn.blocked[0])
    if backs_off_until(turn) is not None:
        return Says("False", contract.REASON_BACK_OFF)
    return Says("False", contract.REASON_NOT_READY)


def _degraded(turn: Turn) -> Says:
    if turn.outcome is not None or turn.is_suspended:
        return Says("False", contract.REASON_FINISHED if turn.outcome else contract.REASON_SUSPENDED)
    if turn.status.verdict is not None:
        what = f"all workers vanished; unless training had completed: {turn.status.verdict.message}"
        return Says("True", contract.REASON_CHECKING, what)
    standing_by = spare_slots(turn.status)
    strangers = [slot for slot, pod in turn.kids.live.items() if make.is_strange(pod.make) and slot not in standing_by]
    if strangers:
        namespace, name = turn.job.key
        return Says(
            "True",
            contract.REASON_AUTHORITY_LOST,
            f"{name_workers(turn, sorted(strangers))} trust another CA than the coordinator has now: training "
            f"continues, failures go unseen until a pod ends; tj restart {name} -n {namespace} replaces these pods",
        )
    if _all_silent(turn):
        return Says(
            "True",
            contract.REASON_UNREACHABLE,
            "no agent has been heard for a minute while pods run; training continues, failures would go unseen",
        )
    apart = find_unreached(turn, SAID_AFTER_S)
    if apart is not None:
        return Says("True", contract.REASON_PEERS_UNREACHABLE, sentence(turn, apart))
    hang = hangs.hanging(turn)
    if hang is not None:
        return Says("True", contract.REASON_HANG, hang.report["message"])
    retry_at = backs_off_until(turn)
    if retry_at is not None:
        early = turn.status.failures.early_in_row
        return Says(
            "True",
            contract.REASON_BACK_OFF,
            f"the next start waits until {retry_at:%H:%M:%S} UTC, after {early} early ends in a row",
        )
    failing = next((view.checkpoint_trouble for view in turn.words() if view.checkpoint_trouble), None)
    if failing is not None:
        return Says("True", contract.REASON_CHECKPOINT_FAILING, failing)
    warning = next((view.warning for view in turn.words() if view.warning), None)
    if warning is not None:
        return Says("True", contract.REASON_WARNING, warning)
    slow = stragglers.straggling(turn)
    if slow is not None:
        return Says("True", contract.REASON_STRAGGLER, slow["message"])
    return Says("False", contract.REASON_HEALTHY)


def _all_silent(turn: Turn) -> bool:
    """Silence is told, never acted upon."""
    listening = turn.observed.listening_since
    if not turn.kind.speaks or listening is None or turn.running is None or turn.running.running_at is None:
        return False
    heard = [aware(view.heard_at) for slot in turn.members() if (view := turn.kids.speaking(slot)) is not None]
    last = max([*heard, aware(listening), aware(turn.running.running_at)])
    if turn.now >= after(last, SILENT_S):  # `silence_watch.py` asks for that look
        turn.wake(after(last, UNREACHABLE_S))
    return turn.now >= after(last, UNREACHABLE_S)


def _finished(turn: Turn, type_: str) -> Says:
    outcome = turn.outcome
    if outcome is not None and outcome.condition == type_:
        return Says("True", outcome.reason, outcome.message)
    return Says("False", contract.REASON_FINISHED if outcome else contract.REASON_NOT_FINISHED)
