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

from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.cluster import Cluster, ClusterError, Manifest, Rejected, Unavailable
from trainjob_operator.core.model import (
    Decision,
    DeleteJob,
    DeletePod,
    Event,
    Installation,
    Observed,
)
from trainjob_operator.loop.actions import CreatesFailed, Hands, by_kind, creates_failed, together, words_of
from trainjob_operator.loop.status_writes import write_status

REASON_FAILED_CREATE = "FailedCreate"
REASON_FAILED_DELETE = "FailedDelete"

Step = Callable[[], Awaitable[None]]


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
    service: Manifest | None = None
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
    hands = Hands(cluster, job, installation)
    removals, makings, ends = by_kind(decision.actions)
    # Deletions go out first, since they make room in a quota, and are not waited for.
    removed, made = await asyncio.gather(together(hands, [removals]), together(hands, makings))
    ended = await together(hands, [ends])
    creates, refused = creates_failed(made, job), words_of((*removed, *ended), job)
    told = (*(observed.refusals or ()), *told_deletes)
    # Events speak of the status that was written above, whatever became of the actions. What was refused before was
    # told before.
    events = [
        *decision.events,
        *hands.events,
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
        taken=frozenset(hands.taken),
        created=tuple(hands.created),
        service=hands.service,
        refused=frozenset(
            action.uid
            for action, error in deletes
            if isinstance(error, Rejected) and isinstance(action, DeletePod | DeleteJob)
        ),
        refused_deletes=refused,
        error=next(iter(others), None),
    )


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
