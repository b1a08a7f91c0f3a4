"""Reads the API's dicts: a TrainJob into its model, a pod into what counts of it, an object's owner.

Pure functions, called by `observe.py`, `apply.py` and the coordinator. What comes from a kubelet or a foreign controller is
taken with care: no shape of a pod's status makes these raise.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.cluster import ClusterError, Manifest
from trainjob_operator.core.model import PodPhase, PodView

UNKNOWN_SLOT = -1
"""Slot of a foreign pod that carries the job's label and no readable slot."""


class UnreadableJob(ClusterError):
    """The stored object does not fit the models of this version; only an edit of it can help."""


def read_job(manifest: Manifest) -> TrainJob:
    """The model of a stored TrainJob. Raises UnreadableJob."""
    try:
        return TrainJob.model_validate(manifest)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        metadata = manifest.get("metadata", {})
        raise UnreadableJob(
            f"TrainJob {metadata.get('namespace')}/{metadata.get('name')}: {where}: {first['msg']} ({error.error_count()} problems); "
            f"it was stored by another version or without the CRD's checks, correct it with kubectl edit"
        ) from None


def owned_by(manifest: Manifest, uid: str) -> bool:
    """Whether the controlling owner reference names that UID."""
    owners = manifest["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid and owner.get("controller") is True for owner in owners)


def pod_view(manifest: Manifest, job: TrainJob) -> PodView:
    """What counts of a pod: the state of its trainer container, never the pod's own phase where a container says more."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    state = _trainer_state(manifest)
    phase = _phase(status.get("phase"), state)
    ended = state.get("terminated") or {}
    reason, message = _words(status, state, conditions)
    return PodView(
        slot=_slot(metadata, job.metadata.name),
        name=metadata["name"],
        uid=metadata["uid"],
        phase=phase,
        owned=owned_by(manifest, job.metadata.uid),
        deleting="deletionTimestamp" in metadata,
        scheduled=_scheduled(manifest, phase, conditions),
        ready=_holds(conditions, "Ready", phase is PodPhase.RUNNING),
        node=(manifest.get("spec") or {}).get("nodeName"),
        exit_code=ended.get("exitCode"),
        signal=ended.get("signal"),
        reason=reason,
        message=message,
        disrupted=_holds(conditions, "DisruptionTarget", False),
        finished_at=_time(ended.get("finishedAt")),
    )


def _slot(metadata: Manifest, job_name: str) -> int:
    label = str((metadata.get("labels") or {}).get(contract.LABEL_SLOT, ""))
    suffix = metadata["name"].removeprefix(f"{job_name}-")
    for text in (label, suffix):
        if text.isascii() and text.isdigit() and len(text) < 11:
            return int(text)
    return UNKNOWN_SLOT


def _trainer_state(manifest: Manifest) -> Manifest:
    """The trainer container's `state`; empty before the kubelet said anything."""
    containers = [container.get("name") for container in (manifest.get("spec") or {}).get("containers") or ()]
    trainer = contract.TRAINER_CONTAINER if contract.TRAINER_CONTAINER in containers else next(iter(containers), None)
    statuses = (manifest.get("status") or {}).get("containerStatuses") or ()
    return next((dict(status.get("state") or {}) for status in statuses if status.get("name") == trainer), {})


def _phase(pod_phase: str | None, state: Manifest) -> PodPhase:
    if "terminated" in state:
        return PodPhase.SUCCEEDED if state["terminated"].get("exitCode") == 0 else PodPhase.FAILED
    if pod_phase == "Failed":  # evicted, node shut down: the kubelet may never say more of the container
        return PodPhase.FAILED
    if "running" in state:
        return PodPhase.RUNNING
    if "waiting" in state:
        return PodPhase.PENDING
    return {"Running": PodPhase.RUNNING, "Succeeded": PodPhase.SUCCEEDED}.get(pod_phase or "", PodPhase.PENDING)


def _scheduled(manifest: Manifest, phase: PodPhase, conditions: Mapping[str, Manifest]) -> bool:
    bound = bool((manifest.get("spec") or {}).get("nodeName")) or phase is not PodPhase.PENDING
    return _holds(conditions, "PodScheduled", bound)


def _holds(conditions: Mapping[str, Manifest], type_: str, otherwise: bool) -> bool:
    return conditions[type_].get("status") == "True" if type_ in conditions else otherwise


def _words(status: Manifest, state: Manifest, conditions: Mapping[str, Manifest]) -> tuple[str | None, str | None]:
    """Reason and message: the container's end, else the kubelet's word on the pod, else why it waits, else why it is not scheduled."""
    unscheduled = conditions.get("PodScheduled") or {}
    sources: list[Manifest] = [state.get("terminated") or {}, status, state.get("waiting") or {}]
    if unscheduled.get("status") == "False":
        sources.append(unscheduled)
    spoken = next((source for source in sources if source.get("reason") or source.get("message")), {})
    return _bounded(spoken.get("reason")), _bounded(spoken.get("message"))


def _bounded(text: Any) -> str | None:
    return str(text)[: contract.MESSAGE_LIMIT] if text else None


def _time(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except (TypeError, ValueError):
        return None
