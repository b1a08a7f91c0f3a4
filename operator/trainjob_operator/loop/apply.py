"""Carries a decision out in the only safe order: status, then Service, pods, deletions, then events.

Called by the reconciler with what was observed and what was decided; the one place that writes to the cluster. It
retries nothing: a call that fails ends in an exception, and the next turn looks afresh.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import assert_never

from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.cluster import Cluster, ClusterError, Conflict, Manifest, NotFound, Rejected, Unavailable
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
)
from trainjob_operator.core.pods.objects import headless_service, worker_pod
from trainjob_operator.manifests import UnreadableJob, owned_by, read_job

PARALLEL_CALLS = 16
"""Pods created or deleted at once for one job."""
REASON_FAILED_CREATE = "FailedCreate"

Step = Callable[[], Awaitable[None]]


class ForeignPod(Conflict):
    """A pod of a slot's name exists and belongs to somebody else; the next turn sees it and takes another slot."""


class CreatesRefused(Rejected):
    """The API server refused to create pods or the Service: quota, admission, rights. The next turn tells people."""

    def __init__(self, first: ClusterError, refusals: tuple[str, ...], job: TrainJob) -> None:
        super().__init__(str(first))
        self.refusals = refusals
        self.job = job
        """The job as committed: its status was written before."""


async def apply(cluster: Cluster, observed: Observed, decision: Decision, installation: Installation) -> TrainJob:
    """Write the status if it differs, act, emit the events; the job as committed.

    Raises Conflict when somebody wrote the job since it was read: then nothing else was done. Raises CreatesRefused, or
    the first ClusterError of the actions, after all of them were tried (an API that does not answer is not asked
    further).
    """
    job = await _write_status(cluster, observed.job, decision)
    failures = _Failures()
    writer = _Writer(cluster, job, installation)
    for group in _in_order(decision.actions):
        await _together([_step(writer, action) for action in group], failures)
    refusals = tuple(dict.fromkeys(str(error)[: contract.MESSAGE_LIMIT] for error in failures.rejected))
    # Events speak of the status that was written above, whatever became of the actions. What was refused before was
    # told before.
    events = [*decision.events, *(failed_create(text) for text in refusals if text not in (observed.refusals or ()))]
    await _together([_emission(cluster, job, event) for event in _distinct(events)], failures)
    if failures.first is not None and refusals:
        raise CreatesRefused(failures.first, refusals, job)
    if failures.first is not None:
        raise failures.first
    return job


async def _write_status(cluster: Cluster, job: TrainJob, decision: Decision) -> TrainJob:
    if decision.status == job.status:
        return job
    # The first write carries the zeros too: what `kubectl get` shows of a healthy job is a 0, not an empty column.
    before = job.status.to_json() if job.status.conditions else {}
    patch = merge_patch(before, decision.status.to_json())
    if not patch:
        return job
    return read_job(await cluster.patch_job_status(*job.key, job.metadata.resource_version, patch))


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


def _in_order(actions: Iterable[Action]) -> list[list[Action]]:
    """Groups that run one after the other: the Service, creates, deletes, the job itself."""
    groups: list[list[Action]] = [[], [], [], []]
    for action in actions:
        match action:
            case EnsureService():
                groups[0].append(action)
            case CreatePod():
                groups[1].append(action)
            case DeletePod():
                groups[2].append(action)
            case DeleteJob():
                groups[3].append(action)
            case _:
                assert_never(action)
    return groups


def _step(writer: _Writer, action: Action) -> Step:
    return lambda: writer.carry_out(action)


class _Writer:
    """One method an action; each is done when it returns, and tolerates having been done before."""

    def __init__(self, cluster: Cluster, job: TrainJob, installation: Installation) -> None:
        self._cluster = cluster
        self._job = job
        self._installation = installation
        self._namespace = job.metadata.namespace

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
        try:
            await self._cluster.create_service(self._namespace, headless_service(self._job))
        except Conflict:
            # There already; whose it is, the next turn observes.
            return

    async def _create_pod(self, action: CreatePod) -> None:
        manifest = worker_pod(self._job, action.slot, self._installation, action.avoid_nodes)
        name = manifest["metadata"]["name"]
        try:
            await self._cluster.create_pod(self._namespace, manifest)
        except Conflict:
            # Our own create whose reply was lost, or somebody else's pod of that name. Gone again: the next turn
            # creates it.
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


class _Failures:
    """What went wrong among the actions of a turn."""

    def __init__(self) -> None:
        self.first: ClusterError | None = None
        self.rejected: list[Rejected] = []
        self.api_gone = False

    def add(self, error: ClusterError) -> None:
        self.first = self.first or error
        self.api_gone = self.api_gone or isinstance(error, Unavailable)
        if isinstance(error, Rejected):
            self.rejected.append(error)


async def _together(steps: list[Step], failures: _Failures) -> None:
    """Run the steps, PARALLEL_CALLS at a time; none is started once the API no longer answers."""
    slots = asyncio.Semaphore(PARALLEL_CALLS)

    async def run(step: Step) -> None:
        async with slots:
            if failures.api_gone:
                return
            try:
                await step()
            except ClusterError as error:
                failures.add(error)

    await asyncio.gather(*(run(step) for step in steps))


# --- Events -----------------------------------------------------------------------------------------------------------


def failed_create(refusal: str) -> Event:
    """The event that tells a user why pods do not come (quota, admission)."""
    return Event("Warning", REASON_FAILED_CREATE, refusal)


def _distinct(events: Iterable[Event]) -> list[Event]:
    return list(dict.fromkeys(events))


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
