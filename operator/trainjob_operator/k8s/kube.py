"""`Cluster` on a real API server.

Made by `__main__.py`, used by the reconciler. It holds no state but the keys that wait to be named by `watch()`: who
sees changes (kopf, in `host.py`) says so with `hint`. Each verb is one call, an event that is there already three.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from trainjob_api import contract
from trainjob_operator.clock import Clock, SystemClock
from trainjob_operator.cluster import Conflict, JobKey, Manifest, NotFound
from trainjob_operator.k8s.kubeapi import Api, segment

EVENTS = 50
"""Events about one pod that are read."""

_JOBS = f"/apis/{contract.API_VERSION}"


class KubeCluster:
    """TrainJobs of these namespaces, or of all; see `Cluster` for what each verb promises."""

    def __init__(self, api: Api, namespaces: tuple[str, ...] = (), clock: Clock | None = None) -> None:
        self._api = api
        self._namespaces = namespaces
        self._clock = clock or SystemClock()
        self._feeds: list[_Feed] = []

    def hint(self, key: JobKey) -> None:
        """Something about this job may have changed: `watch()` will name it."""
        for feed in self._feeds:
            feed.add(key)

    # --- TrainJobs ----------------------------------------------------------------------------------------------------

    async def get_job(self, namespace: str, name: str) -> Manifest:
        """See Cluster."""
        return await self._api.get(_job(namespace, name))

    async def list_jobs(self) -> list[Manifest]:
        """See Cluster."""
        if not self._namespaces:
            return await self._api.list(f"{_JOBS}/{contract.PLURAL}")
        return [job for namespace in self._namespaces for job in await self._api.list(_jobs(namespace))]

    async def patch_job_status(self, namespace: str, name: str, resource_version: str, status: Manifest) -> Manifest:
        """See Cluster."""
        return await self._api.merge_patch(
            f"{_job(namespace, name)}/status", {"metadata": {"resourceVersion": resource_version}, "status": status}
        )

    async def delete_job(self, namespace: str, name: str, uid: str) -> None:
        """See Cluster."""
        await self._api.delete(_job(namespace, name), _delete_options(uid))

    # --- Pods, their nodes, Services ----------------------------------------------------------------------------------

    async def list_pods(self, namespace: str, job: str) -> list[Manifest]:
        """See Cluster. Without a resourceVersion the API server answers with nothing older than this call."""
        return await self._api.list(_core(namespace, "pods"), {"labelSelector": f"{contract.LABEL_JOB}={segment(job)}"})

    async def create_pod(self, namespace: str, pod: Manifest, *, strict: bool = False) -> Manifest:
        """See Cluster."""
        params = {"fieldValidation": "Strict"} if strict else None
        return await self._api.create(_core(namespace, "pods"), {"apiVersion": "v1", "kind": "Pod", **pod}, params)

    async def get_pod(self, namespace: str, name: str) -> Manifest:
        """See Cluster."""
        return await self._api.get(_core(namespace, "pods", name))

    async def delete_pod(self, namespace: str, name: str, uid: str, grace_s: int | None = None) -> None:
        """See Cluster."""
        await self._api.delete(_core(namespace, "pods", name), _delete_options(uid, grace_s))

    async def get_node(self, name: str) -> Manifest:
        """See Cluster."""
        return await self._api.get(f"/api/v1/nodes/{segment(name)}")

    async def get_service(self, namespace: str, name: str) -> Manifest:
        """See Cluster."""
        return await self._api.get(_core(namespace, "services", name))

    async def create_service(self, namespace: str, service: Manifest) -> Manifest:
        """See Cluster."""
        return await self._api.create(_core(namespace, "services"), {"apiVersion": "v1", "kind": "Service", **service})

    # --- Events -------------------------------------------------------------------------------------------------------

    async def create_event(self, namespace: str, event: Manifest) -> None:
        """See Cluster."""
        now = self._clock.now().isoformat(timespec="seconds").replace("+00:00", "Z")
        metadata = {**event["metadata"], "namespace": namespace}
        first = {
            "apiVersion": "v1",
            "kind": "Event",
            **event,
            "metadata": metadata,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self._api.create(_core(namespace, "events"), first)
        except Conflict:
            await self._say_again(namespace, metadata["name"], now)

    async def _say_again(self, namespace: str, name: str, now: str) -> None:
        # Read by a list with a selector: the operator's role may list events, not get them.
        known = await self._api.list(_core(namespace, "events"), {"fieldSelector": f"metadata.name={segment(name)}"})
        count = int(known[0].get("count") or 1) if known else 1
        with contextlib.suppress(NotFound):  # it ended its hour meanwhile; what it said stands in the job's status too
            await self._api.merge_patch(_core(namespace, "events", name), {"count": count + 1, "lastTimestamp": now})

    async def list_pod_events(self, namespace: str, name: str, warnings_of: str | None = None) -> list[Manifest]:
        """See Cluster. One page: a pod that says more than that says it again and again."""
        about = f"involvedObject.kind=Pod,involvedObject.name={segment(name)}"
        if warnings_of is not None:
            about += f",involvedObject.uid={segment(warnings_of)},type=Warning"
        page = await self._api.get(_core(namespace, "events"), {"fieldSelector": about, "limit": str(EVENTS)})
        return list(page.get("items") or [])

    # --- Watch --------------------------------------------------------------------------------------------------------

    async def watch(self) -> AsyncIterator[JobKey]:
        """See Cluster."""
        feed = _Feed()
        # Open before the list: a hint that comes between the two is not lost.
        self._feeds.append(feed)
        try:
            for job in await self.list_jobs():
                feed.add((job["metadata"]["namespace"], job["metadata"]["name"]))
            while True:
                yield await feed.next()
        finally:
            self._feeds.remove(feed)


class _Feed:
    """Keys that wait to be named, each once, in the order they came."""

    def __init__(self) -> None:
        self._waiting: dict[JobKey, None] = {}
        self._arrived = asyncio.Event()

    def add(self, key: JobKey) -> None:
        self._waiting[key] = None
        self._arrived.set()

    async def next(self) -> JobKey:
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        key = next(iter(self._waiting))
        del self._waiting[key]
        return key


def _jobs(namespace: str) -> str:
    return f"{_JOBS}/namespaces/{segment(namespace)}/{contract.PLURAL}"


def _job(namespace: str, name: str) -> str:
    return f"{_jobs(namespace)}/{segment(name)}"


def _core(namespace: str, plural: str, name: str | None = None) -> str:
    collection = f"/api/v1/namespaces/{segment(namespace)}/{plural}"
    return collection if name is None else f"{collection}/{segment(name)}"


def _delete_options(uid: str, grace_s: int | None = None) -> Manifest:
    grace = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
    return {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Background",
        "preconditions": {"uid": uid},
        **grace,
    }
