"""The `Cluster` verbs over the in-memory store, and the verbs of everybody else: a user, a scheduler, a kubelet.

The operator's verbs are coroutines and pass the fault hook; those of the world around it are plain calls. Used by the
local backend, whose kubelet turns pods into processes, and by tests and the simulator.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TypeVar

from trainjob_api import contract
from trainjob_operator.clock import Clock
from trainjob_operator.cluster import ClusterError, Conflict, JobKey, Manifest, Mark, News, NodeSeen, Seen
from trainjob_operator.memory.store import POD, ChangeFeed, ChangeType, ObjectChange, ObjectStore, mark_deleted, merge
from trainjob_operator.nodes import seen_node

JOB = contract.KIND
SERVICE = "Service"
EVENT = "Event"
NODE = "Node"
CLUSTER_SCOPE = ""
"""Namespace of what has none."""

T = TypeVar("T")


class Moment(Enum):
    """When the fault hook is asked: an error BEFORE leaves the verb undone, one AFTER loses the reply of a done one."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True)
class Call:
    """One verb of the operator on its way to the store."""

    verb: str
    namespace: str
    name: str

    @property
    def writes(self) -> bool:
        """Whether it may change something."""
        return not self.verb.startswith(("get_", "list_"))


Faults = Callable[[Call, Moment], Awaitable[None]]
"""Asked around each verb; may wait (latency) and may raise a ClusterError."""


class MemoryCluster:
    """An API server's promises without one. Objects live as long as this object does."""

    def __init__(self, clock: Clock, *, faults: Faults | None = None, new_uid: Callable[[], str] | None = None) -> None:
        self.faults = faults
        self._clock = clock
        self._store = ObjectStore(clock, new_uid)

    # --- The operator's verbs (Cluster) -------------------------------------------------------------------------------

    def shows(self) -> datetime:
        """See Cluster."""
        return self._clock.now()

    async def get_job(self, namespace: str, name: str) -> Manifest:
        """See Cluster."""
        return await self._served("get_job", namespace, name, lambda: self._store.get(JOB, namespace, name))

    async def list_jobs(self) -> list[Manifest]:
        """See Cluster."""
        return await self._served("list_jobs", "", "", self.jobs)

    async def patch_job_status(self, namespace: str, name: str, resource_version: str, status: Manifest) -> Manifest:
        """See Cluster."""

        def change(job: Manifest) -> None:
            current = job["metadata"]["resourceVersion"]
            if current != resource_version:
                raise Conflict(
                    f"TrainJob {namespace}/{name} has changed: resourceVersion is {current}, not {resource_version}"
                )
            job["status"] = merge(job.get("status") or {}, status)

        return await self._served(
            "patch_job_status", namespace, name, lambda: self._store.update(JOB, namespace, name, change)
        )

    async def delete_job(self, namespace: str, name: str, uid: str) -> None:
        """See Cluster."""
        await self._served("delete_job", namespace, name, lambda: self._store.delete(JOB, namespace, name, uid))

    async def list_pods(self, namespace: str, job: str) -> list[Manifest]:
        """See Cluster."""
        return await self._served(
            "list_pods", namespace, job, lambda: self._store.select(POD, namespace, (contract.LABEL_JOB, job))
        )

    async def create_pod(self, namespace: str, pod: Manifest, *, strict: bool = False) -> Manifest:
        """See Cluster. Knows no schema of pods: every field is kept, so that there is nothing to be strict about."""
        placed = {**pod, "metadata": {**pod["metadata"], "namespace": namespace}}
        return await self._served("create_pod", namespace, pod["metadata"]["name"], lambda: self.add_pod(placed))

    async def get_pod(self, namespace: str, name: str) -> Manifest:
        """See Cluster."""
        return await self._served("get_pod", namespace, name, lambda: self._store.get(POD, namespace, name))

    async def patch_pod(self, namespace: str, name: str, uid: str, patch: Manifest) -> Manifest:
        """See Cluster. Knows of a pod's metadata alone."""

        def change(pod: Manifest) -> None:
            if pod["metadata"]["uid"] != uid:
                raise Conflict(f"Pod {namespace}/{name} has UID {pod['metadata']['uid']}, not {uid}")
            pod["metadata"] = merge(pod["metadata"], patch.get("metadata") or {})

        return await self._served(
            "patch_pod", namespace, name, lambda: self._store.update(POD, namespace, name, change)
        )

    async def delete_pod(self, namespace: str, name: str, uid: str, grace_s: int | None = None) -> None:
        """See Cluster."""
        await self._served(
            "delete_pod", namespace, name, lambda: self._store.delete(POD, namespace, name, uid, grace_s)
        )

    async def get_service(self, namespace: str, name: str) -> Manifest:
        """See Cluster."""
        return await self._served("get_service", namespace, name, lambda: self._store.get(SERVICE, namespace, name))

    async def create_service(self, namespace: str, service: Manifest) -> Manifest:
        """See Cluster."""
        new = {
            "apiVersion": "v1",
            "kind": SERVICE,
            **service,
            "metadata": {**service["metadata"], "namespace": namespace},
        }
        return await self._served(
            "create_service", namespace, service["metadata"]["name"], lambda: self._store.create(SERVICE, new)
        )

    async def patch_service(self, namespace: str, name: str, patch: Manifest) -> Manifest:
        """See Cluster."""

        def change(service: Manifest) -> None:
            current, wanted = service["metadata"]["resourceVersion"], patch.get("metadata", {}).get("resourceVersion")
            if wanted not in (None, current):
                raise Conflict(f"Service {namespace}/{name} has changed: resourceVersion is {current}, not {wanted}")
            service["spec"] = merge(service["spec"], patch.get("spec") or {})

        return await self._served(
            "patch_service", namespace, name, lambda: self._store.update(SERVICE, namespace, name, change)
        )

    async def create_event(self, namespace: str, event: Manifest) -> None:
        """See Cluster. Times and count are set here, as the Kubernetes implementation does."""
        await self._served("create_event", namespace, event["metadata"]["name"], lambda: self._record(namespace, event))

    async def list_pod_events(self, namespace: str, name: str, warnings_of: str | None = None) -> list[Manifest]:
        """See Cluster."""

        def about_pod(event: Manifest) -> bool:
            about = event.get("involvedObject", {})
            named = (about.get("kind"), about.get("name")) == (POD, name)
            return named and (warnings_of is None or (event.get("type"), about.get("uid")) == ("Warning", warnings_of))

        return await self._served(
            "list_pod_events", namespace, name, lambda: [event for event in self.events(namespace) if about_pod(event)]
        )

    async def get_node(self, name: str) -> Manifest:
        """See Cluster."""
        return await self._served("get_node", CLUSTER_SCOPE, name, lambda: self._store.get(NODE, CLUSTER_SCOPE, name))

    async def watch(self) -> AsyncIterator[News]:
        """See Cluster."""
        told: dict[str, Seen] = {}
        with self._watched() as (feed, first):
            yield Mark.BEGIN
            while True:
                if first == 0:
                    yield Mark.COMPLETE
                first -= 1
                change = await feed.next()
                if change.kind == NODE:
                    gone = change.type is ChangeType.DELETED
                    name = change.object["metadata"]["name"]
                    yield NodeSeen(name, None) if gone else seen_node(change.object)
                    continue
                seen = seen_by_label(change, told)
                if seen is not None:
                    yield seen

    # --- A user's verbs ----------------------------------------------------------------------------------------------

    def create_job(self, document: Manifest) -> Manifest:
        """Create a TrainJob from its manifest; a status in it is dropped, as the status subresource does. Raises
        Conflict.
        """
        return self._store.create(JOB, {"apiVersion": contract.API_VERSION, "kind": JOB, **document, "status": {}})

    def update_job_spec(self, namespace: str, name: str, patch: Manifest) -> Manifest:
        """Merge `patch` into the spec (None removes a field) and raise the generation if that changed it. Raises
        NotFound.
        """

        def change(job: Manifest) -> None:
            spec = merge(job["spec"], patch)
            if spec != job["spec"]:
                job["metadata"]["generation"] += 1
                job["spec"] = spec

        return self._store.update(JOB, namespace, name, change)

    def remove_job(self, namespace: str, name: str) -> None:
        """Delete a TrainJob, as `kubectl delete` does; its children follow. Raises NotFound."""
        self._store.delete(JOB, namespace, name)

    def mark_job_deleted(self, namespace: str, name: str) -> None:
        """Delete a TrainJob that a finalizer keeps, somebody's or that of a deletion in the foreground: it stays,
        marked, until `remove_job`. Raises NotFound.
        """
        self._store.update(JOB, namespace, name, lambda job: mark_deleted(job, self._clock.now(), 0))

    def add_pod(self, pod: Manifest) -> Manifest:
        """Create a pod that is not the operator's, in the namespace of its metadata. Raises Conflict."""
        return self._store.create(POD, {"apiVersion": "v1", "kind": POD, **pod, "status": {"phase": "Pending"}})

    def remove_pod(self, namespace: str, name: str, grace_s: int | None = None) -> None:
        """Delete a pod, as `kubectl delete pod` does. Raises NotFound."""
        self._store.delete(POD, namespace, name, grace_s=grace_s)

    def annotate_job(self, namespace: str, name: str, annotations: Manifest) -> Manifest:
        """Merge into the annotations (None removes one), as `kubectl annotate` does. Raises NotFound."""

        def change(job: Manifest) -> None:
            job["metadata"]["annotations"] = merge(job["metadata"].get("annotations") or {}, annotations)

        return self._store.update(JOB, namespace, name, change)

    # --- A scheduler's and a kubelet's verbs --------------------------------------------------------------------------

    def add_node(self, name: str, spec: Manifest | None = None) -> Manifest:
        """A node that is Ready; pods may name others, which then are gone. Raises Conflict."""
        metadata = {"name": name, "namespace": CLUSTER_SCOPE}
        ready = {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}
        return self._store.create(
            NODE, {"apiVersion": "v1", "kind": NODE, "metadata": metadata, "spec": spec or {}, "status": ready}
        )

    def set_node_ready(self, name: str, status: str, reason: str) -> Manifest:
        """The node controller's verdict: the condition Ready. Raises NotFound."""

        def change(node: Manifest) -> None:
            node["status"] = {"conditions": [{"type": "Ready", "status": status, "reason": reason}]}

        return self._store.update(NODE, CLUSTER_SCOPE, name, change)

    def taint_node(self, name: str, *keys: str) -> Manifest:
        """These taints, and no others. Raises NotFound."""

        def change(node: Manifest) -> None:
            node["spec"] = {**node["spec"], "taints": [{"key": key, "effect": "NoSchedule"} for key in keys]}

        return self._store.update(NODE, CLUSTER_SCOPE, name, change)

    def remove_node(self, name: str) -> None:
        """The node leaves the cluster. Raises NotFound."""
        self._store.remove(NODE, CLUSTER_SCOPE, name)

    def warn_pod(self, namespace: str, name: str, reason: str, message: str, type_: str = "Warning") -> Manifest:
        """An event about a pod, as a kubelet or a controller makes it. Raises NotFound."""
        about = self._store.get(POD, namespace, name)["metadata"]
        now = self._store.timestamp()
        event = {
            "apiVersion": "v1",
            "kind": EVENT,
            "metadata": {"name": f"{name}.{reason}.{now}", "namespace": namespace},
            "involvedObject": {"kind": POD, "namespace": namespace, "name": name, "uid": about["uid"]},
            "type": type_,
            "reason": reason,
            "message": message,
            "lastTimestamp": now,
        }
        return self._store.create(EVENT, event)

    def bind_pod(self, namespace: str, name: str, node: str) -> Manifest:
        """Put the pod on a node: only a bound pod has a grace period when it is deleted. Raises NotFound."""

        def change(pod: Manifest) -> None:
            pod.setdefault("spec", {})["nodeName"] = node

        return self._store.update(POD, namespace, name, change)

    def set_pod_status(self, namespace: str, name: str, status: Manifest) -> Manifest:
        """Replace the pod's status. Raises NotFound."""

        def change(pod: Manifest) -> None:
            pod["status"] = status

        return self._store.update(POD, namespace, name, change)

    def finalize_pod_deletion(self, namespace: str, name: str, uid: str | None = None) -> None:
        """A deleted pod's processes have ended: the object goes. Raises NotFound, Conflict unless it is being
        deleted (and has that UID).
        """
        metadata = self._store.get(POD, namespace, name)["metadata"]
        if "deletionTimestamp" not in metadata or (uid is not None and metadata["uid"] != uid):
            raise Conflict(f"Pod {namespace}/{name} (UID {metadata['uid']}) is not being deleted")
        self._store.remove(POD, namespace, name)

    async def watch_objects(self) -> AsyncIterator[ObjectChange]:
        """Every change of every object (TrainJob, Pod, Service, Event), starting with what there is as ADDED.

        A deleted pod on a node is seen MODIFIED (deletionTimestamp, deletionGracePeriodSeconds) and, once finalized,
        DELETED; one that goes at once is seen MODIFIED with grace 0 and DELETED.
        """
        with self._followed() as feed:
            while True:
                yield await feed.next()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[tuple[ChangeFeed, int]]:
        """What a watch is served, and how much of it is its list."""
        with self._followed() as feed:
            yield feed, len(feed)

    @contextlib.contextmanager
    def _followed(self) -> Iterator[ChangeFeed]:
        feed = self._store.open_feed()
        try:
            yield feed
        finally:
            self._store.close_feed(feed)

    # --- Snapshots ----------------------------------------------------------------------------------------------------

    def job(self, namespace: str, name: str) -> Manifest:
        """The TrainJob as it is now. Raises NotFound."""
        return self._store.get(JOB, namespace, name)

    def jobs(self) -> list[Manifest]:
        """All TrainJobs."""
        return self._store.select(JOB)

    def pods(self, namespace: str | None = None) -> list[Manifest]:
        """All pods."""
        return self._store.select(POD, namespace)

    def events(self, namespace: str | None = None) -> list[Manifest]:
        """All events."""
        return self._store.select(EVENT, namespace)

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _record(self, namespace: str, event: Manifest) -> None:
        now = self._store.timestamp()
        first = {"apiVersion": "v1", "kind": EVENT, **event, "metadata": {**event["metadata"], "namespace": namespace}}
        try:
            self._store.create(EVENT, {**first, "firstTimestamp": now, "lastTimestamp": now, "count": 1})
        except Conflict:
            again = {"lastTimestamp": now}
            self._store.update(
                EVENT, namespace, event["metadata"]["name"], lambda known: known.update(again, count=known["count"] + 1)
            )

    async def _served(self, verb: str, namespace: str, name: str, effect: Callable[[], T]) -> T:
        """Carry a verb out between the two questions to the fault hook. An API call is never instant: others run
        meanwhile.
        """
        call = Call(verb, namespace, name)
        await asyncio.sleep(0)
        if self.faults is not None:
            await self.faults(call, Moment.BEFORE)
        refusal: ClusterError | None = None
        try:
            result = effect()
        except ClusterError as error:
            refusal = error
        if self.faults is not None:
            await self.faults(call, Moment.AFTER)
        if refusal is not None:
            raise refusal
        return result


def seen_by_label(change: ObjectChange, told: dict[str, Seen]) -> Seen | None:
    """What a watch that selects by label tells of a change. `told`: what it told last of children, by UID: one that
    loses its label is gone to it, and was as it was before.
    """
    key, metadata = _job_of(change), change.object["metadata"]
    before = told.pop(metadata["uid"], None)
    if key is None:
        if before is None:
            return None
        last = {**before.manifest["metadata"], "resourceVersion": metadata["resourceVersion"]}
        return Seen(before.kind, before.key, {**before.manifest, "metadata": last}, gone=True)
    seen = Seen(change.kind, key, change.object, change.type is ChangeType.DELETED)
    if change.kind != JOB and not seen.gone:
        told[metadata["uid"]] = seen
    return seen


def _job_of(change: ObjectChange) -> JobKey | None:
    """The job that a change is about."""
    metadata = change.object["metadata"]
    if change.kind == JOB:
        return metadata["namespace"], metadata["name"]
    watched = change.kind in (POD, SERVICE)
    name = metadata.get("labels", {}).get(contract.LABEL_JOB) if watched else None
    return (metadata["namespace"], name) if name else None
