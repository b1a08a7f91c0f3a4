"""Reads the API's dicts: a TrainJob into its model, a pod into what counts of it, an object's owner.

Pure functions, called by `observe.py`, `apply.py` and the coordinator. What comes from a kubelet or a foreign
controller is taken with care: no shape of a pod's status makes these raise.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.agents.last_words import last_word_in, sentence
from trainjob_operator.agents.reports import clean
from trainjob_operator.cluster import ClusterError, Manifest
from trainjob_operator.core.evictions import EVICTED, over_own_limit
from trainjob_operator.core.model import PodPhase, PodView
from trainjob_operator.core.moments import aware
from trainjob_operator.core.phrases import POD_DEADLINE, how_process_ended

CRASH_LOOP = "CrashLoopBackOff"
CRASHES = 3
"""After so many restarts a container that waits for its next one is given up."""
USUAL_WAITS = ("ContainerCreating", "PodInitializing")
"""The kubelet's words for a container on its usual way."""
STARTING_WARNINGS = (
    "FailedMount",
    "FailedAttachVolume",
    "FailedMapVolume",
    "FailedCreatePodSandBox",
    "NetworkNotReady",
)
"""Events about a pod that say what no field of it says."""
TAKEN_AWAY = ("Preempted", "TaintManagerEviction", "Evicted", "NodeNotReady")
"""Events about a pod that say that it was taken away (scheduler, taint eviction, kubelet), or that its node had
fallen silent. An eviction for a limit of the pod's own is none of them.
"""
CALLED_OFF = "Cancelling deletion"
"""How the taint eviction's event begins when it lets a pod stay after all; its reason is the same."""
_ASSIGNED = re.compile(r"Successfully assigned \S+ to (\S+)")
"""The scheduler's event."""
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
    owners = manifest["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid and owner.get("controller") is True for owner in owners)


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
    trainer = _Trainer.of(manifest)
    phase = _phase(status.get("phase"), trainer)
    ended = trainer.ended
    reason, message = _words(manifest, trainer, conditions)
    init = _init_trouble(status)
    over = phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)
    doubt, doubt_since = _doubt(manifest, trainer, conditions) if phase is PodPhase.RUNNING else (None, None)
    word = last_word_in(ended) if over else None
    return PodView(
        slot=_slot(metadata, job),
        name=metadata["name"],
        uid=metadata["uid"],
        phase=phase,
        owned=owned_by(manifest, job_uid),
        make=bounded((metadata.get("labels") or {}).get(contract.LABEL_MAKE)),
        authority=_authority(manifest),
        deleting="deletionTimestamp" in metadata,
        gone_by=_time(metadata.get("deletionTimestamp")),
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
        finished_at=_time(ended.get("finishedAt")),
        created_at=_time(metadata.get("creationTimestamp")),
        scheduled_at=_time((conditions.get("PodScheduled") or {}).get("lastTransitionTime")),
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


def _authority(manifest: Manifest) -> str | None:
    containers = (manifest.get("spec") or {}).get("containers") or ()
    entries = (entry for container in containers for entry in container.get("env") or ())
    told = next((entry.get("value") for entry in entries if entry.get("name") == contract.ENV_COORDINATOR_CA), None)
    return authority_digest(told) if isinstance(told, str) and told else None


def with_warnings(pod: PodView, events: Iterable[Manifest]) -> PodView:
    """The pod, with the newest Warning that tells why it does not start; a time-out's text tells less than what
    timed out.
    """
    telling = [event for event in events if event.get("reason") in STARTING_WARNINGS]
    telling.sort(
        key=lambda event: (
            "timed out" not in str(event.get("message")),
            str(event.get("lastTimestamp") or event.get("eventTime") or ""),
        )
    )
    if not telling:
        return pod
    return replace(
        pod, reason=bounded(telling[-1].get("reason")), message=bounded(telling[-1].get("message")), from_event=True
    )


def disruption_in(events: Iterable[Manifest], since: datetime) -> str | None:
    """Of the events about a pod that is gone, from that moment on: who took it away. A pod of an earlier job may
    have had its name before.
    """
    told = [
        (at, event)
        for event in events
        if event.get("reason") in TAKEN_AWAY
        and over_own_limit(str(event.get("message"))) is None
        and (at := _event_time(event)) is not None
        and aware(at) >= aware(since)
    ]
    told.sort(key=lambda entry: aware(entry[0]))
    if not told or str(told[-1][1].get("message")).startswith(CALLED_OFF):
        return None
    return bounded(f"{told[-1][1].get('reason')}: {told[-1][1].get('message')}")


def node_in(events: Iterable[Manifest]) -> str | None:
    """Of the events about a pod that is gone: the node it was on, by what the kubelet there (its containers are being
    stopped) or the scheduler said last.
    """
    told = sorted(
        (aware(at), node)
        for event in events
        if (at := _event_time(event)) is not None and (node := _node_of_event(event)) is not None
    )
    return told[-1][1] if told else None


def _node_of_event(event: Manifest) -> str | None:
    source = event.get("source") or {}
    if source.get("component") == "kubelet" and source.get("host"):
        return bounded(str(source["host"]))
    found = _ASSIGNED.fullmatch(str(event.get("message"))) if event.get("reason") == "Scheduled" else None
    return bounded(found[1]) if found is not None else None


def _event_time(event: Manifest) -> datetime | None:
    return _time(event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp"))


def _slot(metadata: Manifest, job_name: str) -> int:
    label = str((metadata.get("labels") or {}).get(contract.LABEL_SLOT, ""))
    suffix = metadata["name"].removeprefix(f"{job_name}-")
    for text in (label, suffix):
        if text.isascii() and text.isdigit() and len(text) < 11:
            return int(text)
    return UNKNOWN_SLOT


@dataclass(frozen=True)
class _Trainer:
    """The trainer container as the kubelet tells of it; all empty before it said anything."""

    state: Manifest
    last: Manifest
    """`lastState.terminated`: its end before the one that `state` is about."""
    restarts: int | None
    starts_again: bool
    """It has ended, and by its restart rules the kubelet starts it again."""
    ready: bool | None
    """By its readiness probe, if it has one."""
    has_company: bool
    """A container beside it runs, or is to run. Sidecars among the init containers end by themselves when the others
    have.
    """

    @classmethod
    def of(cls, manifest: Manifest) -> _Trainer:
        containers = (manifest.get("spec") or {}).get("containers") or ()
        trainer: Manifest = next(
            (c for c in containers if c.get("name") == contract.TRAINER_CONTAINER), next(iter(containers), {})
        )
        statuses = (manifest.get("status") or {}).get("containerStatuses") or ()
        status: Manifest = next((status for status in statuses if status.get("name") == trainer.get("name")), {})
        state, last = dict(status.get("state") or {}), dict((status.get("lastState") or {}).get("terminated") or {})
        restarts = status.get("restartCount")
        again = (
            "terminated" in state
            and (manifest.get("status") or {}).get("phase") == "Running"
            and _restarts(trainer, state["terminated"])
        )
        company = any(
            "terminated" not in (other.get("state") or {})
            for other in statuses
            if other.get("name") != trainer.get("name")
        )
        ready = status.get("ready")
        return cls(
            state=state,
            last=state["terminated"] if again else last,
            restarts=restarts if isinstance(restarts, int) else None,
            starts_again=again,
            ready=ready if isinstance(ready, bool) else None,
            has_company=company,
        )

    @property
    def waiting(self) -> Manifest:
        return self.state.get("waiting") or {}

    @property
    def ended(self) -> Manifest:
        """How it ended, if it does not run."""
        if "terminated" in self.state:
            return self.state["terminated"] or {}
        return self.last if self.waiting.get("reason") == CRASH_LOOP else {}


def _restarts(container: Manifest, ended: Manifest) -> bool:
    """Whether the kubelet starts the container again after this end: its rules first, then its own restart policy."""
    for rule in container.get("restartPolicyRules") or ():
        codes = rule.get("exitCodes") or {}
        named = ended.get("exitCode") in (codes.get("values") or ())
        if named == (codes.get("operator") == "In") and codes:
            return bool(rule.get("action") == "Restart")
    policy = container.get("restartPolicy")
    return bool(policy == "Always" or (policy == "OnFailure" and ended.get("exitCode") != 0))


def _phase(pod_phase: str | None, trainer: _Trainer) -> PodPhase:
    state = trainer.state
    if "terminated" in state and not trainer.starts_again:
        return PodPhase.SUCCEEDED if state["terminated"].get("exitCode") == 0 else PodPhase.FAILED
    if pod_phase == "Failed":  # evicted, node shut down: the kubelet may never say more of the container
        return PodPhase.FAILED
    if "running" in state:
        return PodPhase.RUNNING
    if "waiting" in state or trainer.starts_again:
        return PodPhase.PENDING
    return {"Running": PodPhase.RUNNING, "Succeeded": PodPhase.SUCCEEDED}.get(pod_phase or "", PodPhase.PENDING)


def _scheduled(manifest: Manifest, phase: PodPhase, conditions: Mapping[str, Manifest]) -> bool:
    bound = bool((manifest.get("spec") or {}).get("nodeName")) or phase is not PodPhase.PENDING
    return _holds(conditions, "PodScheduled", bound)


def _holds(conditions: Mapping[str, Manifest], type_: str, otherwise: bool) -> bool:
    return conditions[type_].get("status") == "True" if type_ in conditions else otherwise


def _doubt(
    manifest: Manifest, trainer: _Trainer, conditions: Mapping[str, Manifest]
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
    since = _time(ready.get("lastTransitionTime"))
    return ("its readiness probe fails", since) if trainer.ready is False and since is not None else (None, None)


def _words(manifest: Manifest, trainer: _Trainer, conditions: Mapping[str, Manifest]) -> tuple[str | None, str | None]:
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


def _waiting(trainer: _Trainer) -> Manifest:
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


def bounded(text: Any) -> str | None:
    """Words from outside without control characters, cut to what status holds; None: there are none."""
    return clean(str(text), contract.MESSAGE_LIMIT) if text else None


def _time(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except (TypeError, ValueError):
        return None
