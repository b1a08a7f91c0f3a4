"""Reads the API's dicts: a TrainJob into its model, a pod into what counts of it, an object's owner.

Pure functions, called by `observe.py`, `apply.py` and the coordinator. What comes from a kubelet or a foreign
controller is taken with care: no shape of a pod's status makes these raise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime

from pydantic import ValidationError

from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.agents.last_words import last_word_in, sentence
from trainjob_operator.cluster import ClusterError, Manifest
from trainjob_operator.core.evictions import EVICTED
from trainjob_operator.core.model import PodPhase, PodView
from trainjob_operator.core.phrases import POD_DEADLINE, how_process_ended
from trainjob_operator.trainer_state import CRASH_LOOP, TrainerState, phase_of
from trainjob_operator.words import bounded, time_of

CRASHES = 3
"""After so many restarts a container that waits for its next one is given up."""
USUAL_WAITS = ("ContainerCreating", "PodInitializing")
"""The kubelet's words for a container on its usual way."""
UNKNOWN_SLOT = -1
"""Slot of a foreign pod that carries the job's label and no readable slot."""


class UnreadableJob(ClusterError):
    """The stored object does not fit the models of this version; only an edit of it can help."""

    def __init__(self, text: str, manifest: Manifest, problem: str) -> None:
        super().__init__(text)
        self.manifest = manifest
        self.problem = problem
        """What does not fit, for the condition."""


def read_job(manifest: Manifest) -> TrainJob:
    """The model of a stored TrainJob. Raises UnreadableJob."""
    try:
        return TrainJob.model_validate(manifest)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        metadata = manifest.get("metadata", {})
        problem = (
            f"{where}: {first['msg']} ({error.error_count()} problems); it was stored by another version or "
            "without the CRD's checks"
        )
        raise UnreadableJob(
            f"TrainJob {metadata.get('namespace')}/{metadata.get('name')}: {problem}, correct it with kubectl edit",
            manifest,
            f"{problem}: correct it with kubectl edit",
        ) from None


def owned_by(manifest: Manifest, uid: str) -> bool:
    """Whether the controlling owner reference names that UID."""
    return owner_of(manifest) == uid


def owner_of(manifest: Manifest) -> str | None:
    """UID of the controlling owner; None: there is none."""
    owners = manifest["metadata"].get("ownerReferences") or ()
    return next((owner.get("uid") for owner in owners if owner.get("controller") is True), None)


def serves(manifest: Manifest, job: str, uid: str) -> bool:
    """Whether a Service is this job's, or one of ours that an orphaning delete of a job of that name has left behind:
    nobody's, and as this job needs it.
    """
    if owned_by(manifest, uid):
        return True
    metadata, spec = manifest["metadata"], manifest.get("spec") or {}
    labels = metadata.get("labels") or {}
    left_behind = not metadata.get("ownerReferences") and labels.get(contract.LABEL_MANAGED_BY) == contract.MANAGED_BY
    fits = spec.get("clusterIP") == "None" and spec.get("selector") == {contract.LABEL_JOB: job}
    return left_behind and labels.get(contract.LABEL_JOB) == job and fits


def pod_view(manifest: Manifest, job: TrainJob) -> PodView:
    """What counts of a pod of this job."""
    return pod_view_of(manifest, job.metadata.name, job.metadata.uid)


def pod_view_of(manifest: Manifest, job: str, job_uid: str) -> PodView:
    """What counts of a pod: the state of its trainer container, never the pod's own phase where a container says
    more.
    """
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    trainer = TrainerState.of(manifest)
    phase = phase_of(status.get("phase"), trainer)
    ended = trainer.ended
    reason, message = _words(manifest, trainer, conditions)
    init = _init_trouble(status)
    over = phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)
    doubt, doubt_since = _doubt(manifest, trainer, conditions) if phase is PodPhase.RUNNING else (None, None)
    word = last_word_in(ended) if over else None
    authority, follows = _authority(manifest)
    return PodView(
        slot=_slot(metadata, job),
        name=metadata["name"],
        uid=metadata["uid"],
        phase=phase,
        owned=owned_by(manifest, job_uid),
        make=bounded((metadata.get("labels") or {}).get(contract.LABEL_MAKE)),
        authority=authority,
        authority_follows=follows,
        deleting="deletionTimestamp" in metadata,
        gone_by=time_of(metadata.get("deletionTimestamp")),
        grace_s=metadata.get("deletionGracePeriodSeconds", _own_grace(manifest)),
        priority=_priority(manifest),
        scheduled=_scheduled(manifest, phase, conditions),
        ready=_holds(conditions, "Ready", phase is PodPhase.RUNNING),
        node=(manifest.get("spec") or {}).get("nodeName"),
        exit_code=ended.get("exitCode"),
        signal=ended.get("signal"),
        reason=reason,
        message=message if word is None or reason == EVICTED else bounded(sentence(word)),
        failed_init=bounded(init.get("name")) if reason == contract.REASON_INIT_FAILED else None,
        last_word=word,
        disrupted=_holds(conditions, "DisruptionTarget", False),
        disruption=_disruption(conditions),
        finished_at=time_of(ended.get("finishedAt")),
        created_at=time_of(metadata.get("creationTimestamp")),
        scheduled_at=time_of((conditions.get("PodScheduled") or {}).get("lastTransitionTime")),
        restarts=trainer.restarts,
        last_reason=bounded(trainer.last.get("reason")),
        crashing=trainer.waiting.get("reason") == CRASH_LOOP and (trainer.restarts or 0) >= CRASHES,
        doubt=doubt,
        doubt_since=doubt_since,
        lingers=over and status.get("phase") == "Running" and trainer.has_company,
    )


def authority_digest(ca: str) -> str:
    """Of a CA's PEM text."""
    return hashlib.sha256(ca.encode()).hexdigest()[:16]


def _authority(manifest: Manifest) -> tuple[str | None, bool]:
    """Digest of the CA that its agent trusts, and whether it takes another one while it runs."""
    containers = (manifest.get("spec") or {}).get("containers") or ()
    env = {entry.get("name"): entry.get("value") for container in containers for entry in container.get("env") or ()}
    follows = contract.ENV_COORDINATOR_CA_FILE in env
    now = (manifest["metadata"].get("annotations") or {}).get(contract.ANNOTATION_AUTHORITY) if follows else None
    told = now or env.get(contract.ENV_COORDINATOR_CA)
    return (authority_digest(told) if isinstance(told, str) and told else None), follows


def _slot(metadata: Manifest, job_name: str) -> int:
    label = str((metadata.get("labels") or {}).get(contract.LABEL_SLOT, ""))
    suffix = metadata["name"].removeprefix(f"{job_name}-")
    for text in (label, suffix):
        if text.isascii() and text.isdigit() and len(text) < 11:
            return int(text)
    return UNKNOWN_SLOT


def _own_grace(manifest: Manifest) -> float:
    """The API server writes its default into every pod."""
    grace = (manifest.get("spec") or {}).get("terminationGracePeriodSeconds")
    return contract.DEFAULT_GRACE_S if grace is None else grace


def _priority(manifest: Manifest) -> int | None:
    """What admission made of its priority class."""
    priority = (manifest.get("spec") or {}).get("priority")
    return priority if isinstance(priority, int) else None


def _scheduled(manifest: Manifest, phase: PodPhase, conditions: Mapping[str, Manifest]) -> bool:
    bound = bool((manifest.get("spec") or {}).get("nodeName")) or phase is not PodPhase.PENDING
    return _holds(conditions, "PodScheduled", bound)


def _holds(conditions: Mapping[str, Manifest], type_: str, otherwise: bool) -> bool:
    return conditions[type_].get("status") == "True" if type_ in conditions else otherwise


def _doubt(
    manifest: Manifest, trainer: TrainerState, conditions: Mapping[str, Manifest]
) -> tuple[str | None, datetime | None]:
    """Of a pod whose trainer runs, by its last word: who takes it for not Ready, and since when if that is a probe.

    The node controller marks the pods of a node that has fallen silent by their condition Ready alone, and leaves what
    their kubelet said last as it was. A sidecar that is not ready says nothing about the trainer, and neither does a
    readiness gate.
    """
    ready, node = conditions.get("Ready") or {}, (manifest.get("spec") or {}).get("nodeName")
    if (manifest.get("status") or {}).get("reason") == "NodeLost" or ready.get("status") == "Unknown":
        return f"Kubernetes has lost its node {node}", None
    if ready.get("status") != "False":
        return None, None
    if _holds(conditions, "ContainersReady", False) and not (manifest.get("spec") or {}).get("readinessGates"):
        return f"its node {node} has fallen silent: Kubernetes has marked the pod as not Ready", None
    since = time_of(ready.get("lastTransitionTime"))
    return ("its readiness probe fails", since) if trainer.ready is False and since is not None else (None, None)


def _words(
    manifest: Manifest, trainer: TrainerState, conditions: Mapping[str, Manifest]
) -> tuple[str | None, str | None]:
    """Reason and message: the container's end, else the kubelet's word on the pod, an init container, the wait, the
    scheduler.
    """
    if trainer.starts_again:
        return None, None
    status, unscheduled = manifest.get("status") or {}, conditions.get("PodScheduled") or {}
    ended = trainer.state.get("terminated") or {}
    # What the kubelet did to the whole pod is the cause of what its container then ended with.
    first = [status, ended] if status.get("reason") in (POD_DEADLINE, EVICTED) else [ended, status]
    sources: list[Manifest] = [*first, _init_trouble(status), _waiting(trainer)]
    if unscheduled.get("status") == "False":
        sources.append(unscheduled)
    spoken = next((source for source in sources if source.get("reason") or source.get("message")), {})
    return bounded(spoken.get("reason")), bounded(spoken.get("message"))


def _waiting(trainer: TrainerState) -> Manifest:
    """Why the trainer waits, if that is more than the usual way to start; of a crash loop its last end, not the wait
    that grows.
    """
    waiting = trainer.waiting
    if waiting.get("reason") in USUAL_WAITS:
        return {}
    if waiting.get("reason") == CRASH_LOOP:
        return {"reason": CRASH_LOOP, "message": trainer.last.get("message") or _last_end(trainer.last)}
    return waiting


def _last_end(ended: Manifest) -> str:
    words = ended.get("reason")
    return how_process_ended(ended.get("exitCode"), ended.get("signal")) + (
        f" ({words})" if words and words != "Error" else ""
    )


def _init_trouble(status: Manifest) -> Manifest:
    """What an init container says that waits or failed; a native sidecar is one too."""
    for container in status.get("initContainerStatuses") or ():
        state, name = container.get("state") or {}, container.get("name")
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        last = (container.get("lastState") or {}).get("terminated") or {}
        if waiting.get("reason") == CRASH_LOOP or ended.get("exitCode"):
            end = last if waiting else ended
            said = f": {end['message']}" if end.get("message") else ""
            return {
                "name": name,
                "reason": contract.REASON_INIT_FAILED,
                "message": f"init container {name} {_last_end(end)}{said}",
            }
        if waiting.get("reason") and waiting["reason"] not in USUAL_WAITS:
            return {
                "reason": waiting["reason"],
                "message": f"init container {name}: {waiting.get('message') or waiting['reason']}",
            }
    return {}


def _disruption(conditions: Mapping[str, Manifest]) -> str | None:
    target = conditions.get("DisruptionTarget") or {}
    return bounded(target.get("reason")) if target.get("status") == "True" else None
