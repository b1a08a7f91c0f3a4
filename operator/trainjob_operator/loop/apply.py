"""Carries a decision out in the only safe order: status, then deletions and creates, then events.

Called by the reconciler with what was observed and what was decided; the one place that writes to the cluster. It
retries nothing. Deletions, creates and events do not wait for each other's success: a webhook that refuses pods must
keep no pod from being deleted, and no user from being told.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from trainjob_api import contract, defaults
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.cluster import Cluster, ClusterError, Conflict, Manifest, NotFound, Rejected, Unavailable
from trainjob_operator.core.make import as_made
from trainjob_operator.core.model import (
    Action,
    CreatePod,
    Decision,
    DeleteJob,
    DeletePod,
    EnsureService,
    Event,
    Installation,
    Observed,
    ServiceView,
)
from trainjob_operator.core.pods.naming import pod_name
from trainjob_operator.core.pods.objects import worker_pod
from trainjob_operator.loop.services import ensure_service
from trainjob_operator.loop.side_by_side import side_by_side
from trainjob_operator.manifests import UnreadableJob, owned_by, read_job

REASON_FAILED_CREATE = "FailedCreate"
REASON_FAILED_DELETE = "FailedDelete"

Step = Callable[[], Awaitable[None]]


class ForeignPod(Conflict):
    """A pod of a slot's name exists and belongs to somebody else; the next turn sees it and takes another slot."""


@dataclass(frozen=True, kw_only=True)
class CreatesFailed:
    """Pods or the Service that could not be created."""

    first: ClusterError
    refusals: tuple[str, ...] = ()
    """Quota, admission, rights: what the API server said, once for pods that differ in their names alone."""
    unanswered: str | None = None
    """What came instead of an answer: 5xx, 429, a time-out."""
    retry_after_s: float = 0.0
    """The API server asks not to be asked again before then."""


@dataclass(frozen=True, kw_only=True)
class Applied:
    """What became of a decision whose status was written."""

    job: TrainJob
    """As committed."""
    creates: CreatesFailed | None = None
    taken: frozenset[str] = frozenset()
    """Names that creates found taken: by somebody else's pod, or by one of ours that no list shows."""
    created: tuple[Manifest, ...] = ()
    """Pods, as the API server answered."""
    service: ServiceView | None = None
    """The Service that was made or put right, as the API server answered."""
    refused: frozenset[str] = frozenset()
    """UIDs of what the API server did not let us delete."""
    refused_deletes: tuple[str, ...] = ()
    """In its words."""
    error: ClusterError | None = None
    """The first that failed of everything else: the next turn looks afresh."""


async def apply(
    cluster: Cluster,
    observed: Observed,
    decision: Decision,
    installation: Installation,
    told_deletes: Collection[str],
    on_written: Callable[[TrainJob], None],
) -> Applied:
    """Write the status if it differs, act, emit the events.

    `told_deletes`: refused deletions that were told of before; `on_written` gets the job as soon as it is committed:
    what rests on status alone (the agents' next attempt) waits neither for pods nor for events.

    Raises the ClusterError of the status write, Conflict when somebody wrote the job since it was read: then nothing
    else was done. All actions are tried; an API that does not answer one of a kind is not asked for more of that kind.
    """
    job = await write_status(cluster, observed.job, decision)
    on_written(job)
    writer = _Writer(cluster, job, installation)
    removals, makings, ends = _by_kind(decision.actions)
    # Deletions go out first, since they make room in a quota, and are not waited for.
    removed, made = await asyncio.gather(_together(writer, [removals]), _together(writer, makings))
    ended = await _together(writer, [ends])
    creates, refused = _creates_failed(made, job), _words((*removed, *ended), job)
    told = (*(observed.refusals or ()), *told_deletes)
    # Events speak of the status that was written above, whatever became of the actions. What was refused before was
    # told before.
    events = [
        *decision.events,
        *writer.events,
        *(failed_create(text) for text in (creates.refusals if creates else ()) if text not in told),
        *(Event("Warning", REASON_FAILED_DELETE, text) for text in refused if text not in told),
    ]
    emitted = await _in_turn([_emission(cluster, job, event) for event in _distinct(events)])
    strange = [error for _, error in made if not isinstance(error, Rejected | Unavailable)]
    deletes = (*removed, *ended)
    others = [error for _, error in deletes if not isinstance(error, Rejected)] + strange + emitted
    return Applied(
        job=job,
        creates=creates,
        taken=frozenset(writer.taken),
        created=tuple(writer.created),
        service=writer.service,
        refused=frozenset(
            action.uid
            for action, error in deletes
            if isinstance(error, Rejected) and isinstance(action, DeletePod | DeleteJob)
        ),
        refused_deletes=refused,
        error=next(iter(others), None),
    )


async def write_status(cluster: Cluster, job: TrainJob, decision: Decision) -> TrainJob:
    """Write the status if it differs; the job as committed. Raises Conflict when somebody wrote it since."""
    patch = status_patch(job, decision)
    if not patch:
        return job
    return read_job(await cluster.patch_job_status(*job.key, job.metadata.resource_version, patch))


def status_patch(job: TrainJob, decision: Decision) -> Manifest:
    """What is to be written; empty: nothing."""
    if decision.status == job.status:
        return {}
    # The first write carries the zeros too: what `kubectl get` shows of a healthy job is a 0, not an empty column.
    before = job.status.to_json() if job.status.conditions else {}
    return merge_patch(before, decision.status.to_json())


def merge_patch(old: Manifest, new: Manifest) -> Manifest:
    """The JSON merge patch (RFC 7386) that makes `new` of `old`; empty when they are equal."""
    patch: Manifest = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            inner = merge_patch(before, value)
            if inner:
                patch[name] = inner
        elif name not in old or before != value:
            patch[name] = value
    return patch


async def report_unreadable(cluster: Cluster, error: UnreadableJob, now: datetime) -> None:
    """Tell on a stored job that does not fit the models what is wrong with it, and touch nothing else of it.

    Its pods and agents are left as they are: what it is to be nobody can say. Raises what the cluster raises.
    """
    metadata, status = error.manifest["metadata"], error.manifest.get("status")
    kept = status.get("conditions") if isinstance(status, dict) else None
    conditions = (
        [dict(condition) for condition in kept if isinstance(condition, dict)] if isinstance(kept, list) else []
    )
    if any(
        condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True"
        for condition in conditions
    ):
        return
    old = next((condition for condition in conditions if condition.get("type") == "ResourcesCreated"), {})
    told = {
        "status": "False",
        "reason": contract.REASON_INVALID_SPEC,
        "message": error.problem[: contract.MESSAGE_LIMIT],
    }
    if all(old.get(field) == value for field, value in told.items()):
        return
    since = old.get("lastTransitionTime") if old.get("status") == "False" else None
    new = {
        "type": "ResourcesCreated",
        **told,
        "lastTransitionTime": since or now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "observedGeneration": metadata.get("generation", 1),
    }
    conditions = [condition for condition in conditions if condition.get("type") != "ResourcesCreated"] + [new]
    await cluster.patch_job_status(
        metadata["namespace"], metadata["name"], metadata["resourceVersion"], {"conditions": conditions}
    )


# --- Actions ----------------------------------------------------------------------------------------------------------


def _by_kind(actions: Iterable[Action]) -> tuple[list[Action], list[list[Action]], list[Action]]:
    """Deletions; the Service and then the pods; the job itself."""
    removals: list[Action] = []
    service: list[Action] = []
    pods: list[Action] = []
    ends: list[Action] = []
    for action in actions:
        match action:
            case EnsureService():
                service.append(action)
            case CreatePod():
                pods.append(action)
            case DeletePod():
                removals.append(action)
            case DeleteJob():
                ends.append(action)
            case _:
                assert_never(action)
    return removals, [service, pods], ends


class _Writer:
    """One method an action; each is done when it returns, and tolerates having been done before."""

    def __init__(self, cluster: Cluster, job: TrainJob, installation: Installation) -> None:
        self._cluster = cluster
        self._job = job
        self._installation = installation
        self._namespace = job.metadata.namespace
        self.taken: set[str] = set()
        """Names of ours that pods bear already."""
        self.created: list[Manifest] = []
        self.service: ServiceView | None = None
        self.events: list[Event] = []
        """What was done about what others did."""

    async def carry_out(self, action: Action) -> None:
        match action:
            case EnsureService():
                await self._ensure_service()
            case CreatePod():
                await self._create_pod(action)
            case DeletePod():
                await self._delete_pod(action)
            case DeleteJob():
                await self._delete_job(action)
            case _:
                assert_never(action)

    async def _ensure_service(self) -> None:
        self.service = await ensure_service(self._cluster, self._job, self.events.append)

    async def _create_pod(self, action: CreatePod) -> None:
        manifest = worker_pod(as_made(self._job), action.slot, self._installation, action.avoid_nodes)
        name = manifest["metadata"]["name"]
        try:
            self.created.append(await self._cluster.create_pod(self._namespace, manifest, strict=_never_ran(self._job)))
        except Conflict:
            # Our own create whose reply was lost, or somebody else's pod of that name. Gone again: the next turn
            # creates it.
            self.taken.add(name)
            existing = await self._cluster.get_pod(self._namespace, name)
            if not owned_by(existing, self._job.metadata.uid):
                raise ForeignPod(
                    f"Pod {self._namespace}/{name} exists and is not owned by this TrainJob; another slot will be taken"
                ) from None

    async def _delete_pod(self, action: DeletePod) -> None:
        try:
            await self._cluster.delete_pod(self._namespace, action.name, action.uid, action.grace_s)
        except NotFound:
            return

    async def _delete_job(self, action: DeleteJob) -> None:
        try:
            await self._cluster.delete_job(*self._job.key, action.uid)
        except NotFound:
            return


def _never_ran(job: TrainJob) -> bool:
    """Whether these are the job's first pods: then a field of the template that the cluster does not know refuses them.

    Later pods are created as the first ones were: a job that runs must not stop over a field that an earlier operator
    let pass.
    """
    attempt = job.status.attempt if job.status else None
    # Without agents the first attempt is committed before its pods are created.
    return attempt is None or (attempt.number <= 1 and not defaults.uses_agent(job.spec))


Failed = list[tuple[Action, ClusterError]]
"""Actions that failed, in their order."""


async def _together(writer: _Writer, groups: Iterable[list[Action]]) -> Failed:
    """Carry out one group after the other; nothing is begun any more once the API did not answer."""
    failed: Failed = []
    for group in groups:
        silent = any(isinstance(error, Unavailable) for _, error in failed)
        if not silent:
            failed += await _side_by_side(writer, group)
    return failed


async def _side_by_side(writer: _Writer, group: list[Action]) -> Failed:
    silent = False

    async def tried(action: Action) -> ClusterError | None:
        nonlocal silent
        if silent:
            return None
        try:
            await writer.carry_out(action)
        except ClusterError as error:
            silent = silent or isinstance(error, Unavailable)
            return error
        return None

    errors = await side_by_side([lambda action=action: tried(action) for action in group])  # type: ignore[misc]
    return [(action, error) for action, error in zip(group, errors, strict=True) if error is not None]


def _creates_failed(made: Failed, job: TrainJob) -> CreatesFailed | None:
    failed = [(action, error) for action, error in made if isinstance(error, Rejected | Unavailable)]
    if not failed:
        return None
    silent = [error for _, error in failed if isinstance(error, Unavailable)]
    return CreatesFailed(
        first=failed[0][1],
        refusals=_words(failed, job),
        unanswered=str(silent[0])[: contract.MESSAGE_LIMIT] if silent else None,
        retry_after_s=max((error.retry_after_s for error in silent), default=0.0),
    )


def _words(failed: Iterable[tuple[Action, ClusterError]], job: TrainJob) -> tuple[str, ...]:
    """What the API server refused with: one text of those that differ in the pod's name alone."""
    found: dict[str, str] = {}
    for action, error in failed:
        if isinstance(error, Rejected):
            name = pod_name(job.metadata.name, action.slot) if isinstance(action, CreatePod) else ""
            text = str(error)[: contract.MESSAGE_LIMIT]
            found.setdefault(text.replace(f'"{name}"', '""') if name else text, text)
    return tuple(found.values())


# --- Events -----------------------------------------------------------------------------------------------------------


def failed_create(refusal: str) -> Event:
    """The event that tells a user why pods do not come (quota, admission)."""
    return Event("Warning", REASON_FAILED_CREATE, refusal)


def _distinct(events: Iterable[Event]) -> list[Event]:
    return list(dict.fromkeys(events))


async def _in_turn(steps: Iterable[Step]) -> list[ClusterError]:
    """One after the other, until the API does not answer; what failed."""
    failed: list[ClusterError] = []
    for step in steps:
        try:
            await step()
        except ClusterError as error:
            failed.append(error)
            if isinstance(error, Unavailable):
                break
    return failed


def _emission(cluster: Cluster, job: TrainJob, event: Event) -> Step:
    return lambda: cluster.create_event(job.metadata.namespace, event_manifest(job, event))


def event_manifest(job: TrainJob, event: Event) -> Manifest:
    """A core/v1 Event; its name follows from what it says, so that saying it again raises a count instead of adding
    one.
    """
    said = "\0".join((job.metadata.uid, event.reason, event.message))
    digest = hashlib.sha256(said.encode()).hexdigest()[:16]
    return {
        "metadata": {"name": f"{job.metadata.name}.{digest}", "namespace": job.metadata.namespace},
        "involvedObject": {
            "apiVersion": contract.API_VERSION,
            "kind": contract.KIND,
            "namespace": job.metadata.namespace,
            "name": job.metadata.name,
            "uid": job.metadata.uid,
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[: contract.MESSAGE_LIMIT],
        "source": {"component": contract.MANAGED_BY},
        "reportingComponent": f"{contract.GROUP}/operator",
        "reportingInstance": "",
    }
