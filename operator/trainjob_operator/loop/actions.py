"""The actions of a decision, carried out one by one or side by side; what failed of them. Called by `apply`.

Each is done when it returns, and tolerates having been done before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

from trainjob_api import contract, defaults
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.cluster import Cluster, ClusterError, Conflict, Manifest, NotFound, Rejected, Unavailable
from trainjob_operator.core.make import as_made
from trainjob_operator.core.model import (
    Action,
    CreatePod,
    DeleteJob,
    DeletePod,
    EnsureService,
    Event,
    Installation,
)
from trainjob_operator.core.pods.naming import pod_name
from trainjob_operator.core.pods.objects import worker_pod
from trainjob_operator.loop.services import ensure_service
from trainjob_operator.loop.side_by_side import side_by_side
from trainjob_operator.manifests import owned_by


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


def by_kind(actions: Iterable[Action]) -> tuple[list[Action], list[list[Action]], list[Action]]:
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


class Hands:
    """One method an action."""

    def __init__(self, cluster: Cluster, job: TrainJob, installation: Installation) -> None:
        self._cluster = cluster
        self._job = job
        self._installation = installation
        self._namespace = job.metadata.namespace
        self.taken: set[str] = set()
        """Names of ours that pods bear already."""
        self.created: list[Manifest] = []
        self.service: Manifest | None = None
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


async def together(hands: Hands, groups: Iterable[list[Action]]) -> Failed:
    """Carry out one group after the other; nothing is begun any more once the API did not answer."""
    failed: Failed = []
    for group in groups:
        silent = any(isinstance(error, Unavailable) for _, error in failed)
        if not silent:
            failed += await _side_by_side(hands, group)
    return failed


async def _side_by_side(hands: Hands, group: list[Action]) -> Failed:
    silent = False

    async def tried(action: Action) -> ClusterError | None:
        nonlocal silent
        if silent:
            return None
        try:
            await hands.carry_out(action)
        except ClusterError as error:
            silent = silent or isinstance(error, Unavailable)
            return error
        return None

    errors = await side_by_side([lambda action=action: tried(action) for action in group])  # type: ignore[misc]
    return [(action, error) for action, error in zip(group, errors, strict=True) if error is not None]


def creates_failed(made: Failed, job: TrainJob) -> CreatesFailed | None:
    failed = [(action, error) for action, error in made if isinstance(error, Rejected | Unavailable)]
    if not failed:
        return None
    silent = [error for _, error in failed if isinstance(error, Unavailable)]
    return CreatesFailed(
        first=failed[0][1],
        refusals=words_of(failed, job),
        unanswered=str(silent[0])[: contract.MESSAGE_LIMIT] if silent else None,
        retry_after_s=max((error.retry_after_s for error in silent), default=0.0),
    )


def words_of(failed: Iterable[tuple[Action, ClusterError]], job: TrainJob) -> tuple[str, ...]:
    """What the API server refused with: one text of those that differ in the pod's name alone."""
    found: dict[str, str] = {}
    for action, error in failed:
        if isinstance(error, Rejected):
            name = pod_name(job.metadata.name, action.slot) if isinstance(action, CreatePod) else ""
            text = str(error)[: contract.MESSAGE_LIMIT]
            found.setdefault(text.replace(f'"{name}"', '""') if name else text, text)
    return tuple(found.values())
