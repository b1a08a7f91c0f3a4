"""Incidents whose cause is a pod: it ended, is being deleted, is gone, is another one, or nobody can reach it.

Called by `failures.py`, which knows when a pod is the first cause, and by `decide.py` for pods that end before training
begins.
"""

from __future__ import annotations

from datetime import datetime

from trainjob_api import contract
from trainjob_operator.core.ends.causes import cause_of
from trainjob_operator.core.ends.incident import Incident
from trainjob_operator.core.ends.rank_ends import succeeded
from trainjob_operator.core.ends.silence import Lost
from trainjob_operator.core.evictions import EVICTED, over_own_limit
from trainjob_operator.core.model import PodPhase, PodView
from trainjob_operator.core.moments import aware
from trainjob_operator.core.phrases import how_pod_ended
from trainjob_operator.core.pods.naming import pod_name
from trainjob_operator.core.rank_places import ranks_each
from trainjob_operator.core.rejections import is_refused_by_node
from trainjob_operator.core.turn import Turn

OOM_KILLED = "OOMKilled"
"""The kubelet's word for a container that the kernel's memory limit ended."""


def of_pod_before_start(turn: Turn, pod: PodView) -> Incident:
    """A pod that ended by itself while no attempt ran in it."""
    message = f"{pod.name} {how_pod_ended(pod)} before training began{_disruption(pod)}"
    reason = _reason_of_none(pod) or contract.REASON_START_FAILED
    if pod.exit_code == contract.EXIT_BAD_CONFIG and pod.exit_code in turn.kind.agent_exits:
        # No Python in the image, or variables that its agent cannot use: the next pod will be the same.
        reason = contract.REASON_START
    if pod.failed_init is not None:
        message = _could_not_begin(turn, pod, pod.failed_init)
    return Incident(
        reason=contract.REASON_PREEMPTED if pod.disrupted else reason,
        time=min(aware(pod.finished_at or turn.now), turn.now),
        message=message,
        slot=pod.slot,
        pod=pod.name,
        node=pod.node,
        exit_code=pod.exit_code,
        signal=pod.signal,
        counted=not pod.disrupted and cause_of(reason).counted and pod.exit_code != contract.EXIT_NO_COORDINATOR,
        agents_own=pod.exit_code in turn.kind.agent_exits,
        avoid_node=reason == contract.REASON_NODE_REFUSED,
    )


def _reason_of_none(pod: PodView) -> str | None:
    """Why a pod has failed whose trainer never ran; None: for another reason, or it did."""
    if is_refused_by_node(pod):
        return contract.REASON_NODE_REFUSED
    return contract.REASON_INIT_FAILED if pod.failed_init is not None else None


def _could_not_begin(turn: Turn, pod: PodView, init: str) -> str:
    log = f"kubectl logs -n {turn.job.metadata.namespace} {pod.name} -c {init}"
    return f"{pod.name} could not begin: {pod.message}; its log: {log}"


def impostor_slot(turn: Turn) -> int | None:
    """The slot whose pod is another than the one that became a member: a create that took effect late, after its
    retry's pod had come and gone.
    """
    running, members = turn.running, turn.members()
    if running is None or running.members_digest is None or turn.kids.digest(members) in (None, running.members_digest):
        return None
    strangers = [slot for slot in members if turn.word(slot) is None]
    return next(iter(strangers or members), None)


def of_impostor(turn: Turn, slot: int) -> Incident:
    name = pod_name(turn.job.metadata.name, slot)
    running = turn.running
    return Incident(
        reason=contract.REASON_POD_LOST,
        time=turn.now,
        message=f"{name} is gone; another pod has its name",
        slot=slot,
        pod=name,
        victims=max(0, (running.world_size - ranks_each(running)) if running else 0),
        strikes=False,
    )


def is_lost(turn: Turn, slot: int) -> bool:
    """Whether a member has no working pod any more, and did not end well by its pod's word."""
    if slot in turn.kids.live or turn.has_succeeded(slot):
        return False
    # Until all pods of an attempt that begins before them have been seen, one that is not there is still to be made.
    return not (_begins(turn) and slot in turn.kids.absent and not _may_have_been(turn, slot))


def _begins(turn: Turn) -> bool:
    """Whether the attempt began before its pods, and they were never all seen."""
    return turn.kind.begins_before_pods and turn.status.timing.scheduled_at is None


def _may_have_been(turn: Turn, slot: int) -> bool:
    """Whether there was a pod of that name, as far as this leader knows. Of what the one before has made it knows
    nothing: where others run, it may have come and gone, and what they heard of it would be wrong of its successor.
    """
    others = [turn.kids.live.get(other) for other in turn.members() if other != slot]
    runs = any(pod is not None and pod.phase is PodPhase.RUNNING for pod in others) or bool(turn.kids.ended)
    return slot in turn.observed.went or (turn.observed.refusals is None and runs)


def _never_was(turn: Turn, slot: int) -> bool:
    """Whether nobody saw a pod of this member: another one took its name before it was made, or it may have gone
    unseen.
    """
    return _begins(turn) and slot not in turn.observed.went


def lost_at(turn: Turn, slot: int) -> datetime:
    """When a member's pod was lost; one that is gone, or is being deleted, tells no time. The kubelet's clock may be
    wrong: a pod did not end before its agent spoke.
    """
    pod, view = turn.kids.ended.get(slot), turn.word(slot)
    if pod is None or pod.finished_at is None:
        return turn.now
    spoke = aware(view.heard_at) if view is not None else aware(pod.finished_at)
    return min(max(aware(pod.finished_at), spoke), turn.now)


def of_pod(turn: Turn, slot: int) -> Incident:
    """A member whose pod failed, is being deleted, or is gone."""
    running = turn.running
    world, workers = (running.world_size, running.workers) if running else (1, 1)
    pod = turn.kids.ended.get(slot) or turn.kids.leaving.get(slot)
    name = pod.name if pod else pod_name(turn.job.metadata.name, slot)
    taken = turn.observed.disruptions.get(slot) if pod is None else None
    reason = contract.REASON_PREEMPTED if taken else _reason_of_pod(turn, pod)
    if pod is None and _never_was(turn, slot):
        return Incident(
            reason=reason,
            time=turn.now,
            message=f"{name} is gone, if it ever was there: no operator has looked"
            if slot in turn.kids.absent
            else f"{name} could not be made: another pod has its name",
            slot=slot,
            pod=name,
            counted=False,
        )
    how = how_pod_ended(pod) if pod and not pod.deleting else "is being deleted" if pod else "is gone"
    message = f"{name} {how}" + (_disruption(pod) if pod else f" ({taken})" if taken else "")
    if pod and pod.failed_init is not None and reason == contract.REASON_INIT_FAILED:
        message = _could_not_begin(turn, pod, pod.failed_init)
    last = pod or turn.observed.went.get(slot)
    exit_code = last.exit_code if last else None
    return Incident(
        reason=reason,
        time=lost_at(turn, slot),
        message=message,
        slot=slot,
        pod=name,
        node=last.node if last else None,
        exit_code=exit_code,
        signal=last.signal if last else None,
        victims=max(0, world - max(1, world // workers) - succeeded(turn, outside=slot)),
        counted=cause_of(reason).counted and exit_code not in turn.kind.blameless_exits,
        agents_own=exit_code in turn.kind.agent_exits,
        avoid_node=reason == contract.REASON_NODE_REFUSED,
    )


def of_announced(turn: Turn, slot: int, reason: str) -> Incident:
    """A member whose pod stands and is to go; its ranks wait behind a checkpoint, or have had their time."""
    pod, view = turn.kids.live[slot], turn.word(slot)
    how = "was told to end (SIGTERM)" if view is not None and view.draining else "is about to be taken away"
    return Incident(
        reason=reason,
        time=turn.now,
        message=f"{pod.name} {how}{_disruption(pod)}",
        slot=slot,
        pod=pod.name,
        node=pod.node,
        counted=cause_of(reason).counted,
        avoid_node=pod.notice is not None,
    )


def of_silent(turn: Turn, silent: dict[int, Lost]) -> Incident:
    """Members that two witnesses call lost; the first one is named, the others go with it."""
    slot = min(silent)
    worker, running = silent[slot], turn.running
    world, workers = (running.world_size, running.workers) if running else (1, 1)
    others = f"; {len(silent) - 1} more lost with it" if len(silent) > 1 else ""
    return Incident(
        reason=contract.REASON_WORKER_UNREACHABLE,
        time=turn.now,
        message=worker.sentence + others,
        slot=slot,
        pod=worker.pod.name,
        node=worker.pod.node,
        victims=max(0, world - len(silent) * max(1, world // workers) - succeeded(turn, outside=slot)),
        counted=False,
        avoid_node=worker.believed,
    )


def _disruption(pod: PodView) -> str:
    if not (pod.disrupted or pod.notice):
        return ""
    who = pod.disruption or pod.notice
    return f" (disruption: {who})" if who else " (disruption)"


def _reason_of_pod(turn: Turn, pod: PodView | None) -> str:
    if pod is not None and pod.disrupted:
        return contract.REASON_PREEMPTED
    if pod is None or pod.deleting:
        return contract.REASON_POD_LOST
    if pod.reason == OOM_KILLED or (pod.crashing and pod.last_reason == OOM_KILLED):
        return contract.REASON_OOM
    if pod.reason == EVICTED:
        return contract.REASON_STAGING_FULL if over_own_limit(pod.message) else contract.REASON_PREEMPTED
    return _reason_of_none(pod) or turn.kind.reason_of_end(pod)
