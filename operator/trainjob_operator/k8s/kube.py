"""`Cluster` on a real API server.

Made by `__main__.py`, used by the reconciler. It holds no state but what waits to be told by `watch()`: who sees
changes (kopf, in `host.py`) hands them over with `tell`. Each verb is one call, an event that is there already three.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import datetime

from trainjob_api import contract
from trainjob_operator.clock import Clock, SystemClock
from trainjob_operator.cluster import Conflict, JobKey, Manifest, Mark, News, NodeSeen, NotFound, Seen
from trainjob_operator.k8s.kubeapi import Api, segment
from trainjob_operator.k8s.lean import pod_in_short, service_in_short

GAP_SETTLES_S = 0.2
"""After a gap (of one kind, in one namespace) others are waited for so long, so that all is listed once."""
EVENTS = 50
"""Events about one pod that are read."""

_JOBS = f"/apis/{contract.API_VERSION}"


class KubeCluster:
    """TrainJobs of these namespaces, or of all; see `Cluster` for what each verb promises. `services`: they may be
    watched.
    """

    def __init__(
        self, api: Api, namespaces: tuple[str, ...] = (), clock: Clock | None = None, *, services: bool = False
    ) -> None:
        self._api = api
        self._services = services
        self._namespaces = namespaces
        self._clock = clock or SystemClock()
        self._feeds: list[_Feed] = []
        self._nodes: dict[str, NodeSeen] = {}
        """All that were told: no list of `watch()` tells of them."""

    def tell(self, news: Seen | NodeSeen | JobKey) -> None:
        """Something about a job or a node is so, or may have changed: `watch()` will say it."""
        if isinstance(news, NodeSeen):
            self._nodes.pop(news.name, None)
            if news != NodeSeen(news.name, None):
                self._nodes[news.name] = news
        for feed in self._feeds:
            feed.add(news)

    def missed(self) -> None:
        """Changes may have been missed up to now, what was told before is void: `watch()` begins anew."""
        for feed in self._feeds:
            feed.add(None)

    def shows(self) -> datetime | None:
        """See Cluster."""
        return self._api.shows()

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
        wanted = {"labelSelector": f"{contract.LABEL_JOB}={segment(job)}"}
        return await self._api.list(_core(namespace, "pods"), wanted, pod_in_short)

    async def create_pod(self, namespace: str, pod: Manifest, *, strict: bool = False) -> Manifest:
        """See Cluster."""
        params = {"fieldValidation": "Strict"} if strict else None
        made = await self._api.create(_core(namespace, "pods"), {"apiVersion": "v1", "kind": "Pod", **pod}, params)
        return pod_in_short(made)

    async def get_pod(self, namespace: str, name: str) -> Manifest:
        """See Cluster."""
        return await self._api.get(_core(namespace, "pods", name))

    async def patch_pod(self, namespace: str, name: str, uid: str, patch: Manifest) -> Manifest:
        """See Cluster."""
        bound = {**patch, "metadata": {**patch.get("metadata", {}), "uid": uid}}
        return pod_in_short(await self._api.merge_patch(_core(namespace, "pods", name), bound))

    async def delete_pod(self, namespace: str, name: str, uid: str, grace_s: int | None = None) -> None:
        """See Cluster."""
        await self._api.delete(_core(namespace, "pods", name), _delete_options(uid, grace_s))

    async def get_node(self, name: str) -> Manifest:
        """See Cluster."""
        return await self._api.get(f"/api/v1/nodes/{segment(name)}")

    async def get_service(self, namespace: str, name: str) -> Manifest:
        """See Cluster."""
        return service_in_short(await self._api.get(_core(namespace, "services", name)))

    async def create_service(self, namespace: str, service: Manifest) -> Manifest:
        """See Cluster."""
        whole = {"apiVersion": "v1", "kind": "Service", **service}
        return service_in_short(await self._api.create(_core(namespace, "services"), whole))

    async def patch_service(self, namespace: str, name: str, patch: Manifest) -> Manifest:
        """See Cluster."""
        return service_in_short(await self._api.merge_patch(_core(namespace, "services", name), patch))

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
        return await self._api.page(_core(namespace, "events"), {"fieldSelector": about, "limit": str(EVENTS)})

    # --- Watch --------------------------------------------------------------------------------------------------------

    async def watch(self) -> AsyncIterator[News]:
        """See Cluster."""
        feed = _Feed()
        # Open before the list: what is told between the two is not lost.
        self._feeds.append(feed)
        try:
            while True:
                feed.begin()
                yield Mark.BEGIN
                for node in list(self._nodes.values()):
                    yield node
                async for seen in self._all():
                    yield seen
                if not feed.missed:
                    yield Mark.COMPLETE
                while not feed.missed:
                    news = await feed.next()
                    if news is not None:
                        yield news
                await self._clock.sleep_until(self._clock.monotonic() + GAP_SETTLES_S)
        finally:
            self._feeds.remove(feed)

    async def _all(self) -> AsyncIterator[Seen]:
        """Every job, and every pod and Service that bears a job's label."""
        prefixes = [f"/namespaces/{segment(name)}" for name in self._namespaces] or [""]
        for prefix in prefixes:
            async for page in self._api.pages(f"{_JOBS}{prefix}/{contract.PLURAL}"):
                for job in page:
                    yield seen_job(job)
        children = [("pods", seen_pod), *([("services", seen_service)] if self._services else [])]
        for plural, seen in children:
            for prefix in prefixes:
                path = f"/api/v1{prefix}/{plural}"
                async for page in self._api.pages(path, {"labelSelector": contract.LABEL_JOB}):
                    for child in page:
                        yield seen(child)


def seen_job(job: Manifest, gone: bool = False) -> Seen:
    """A TrainJob was seen."""
    metadata = job["metadata"]
    return Seen(contract.KIND, (metadata["namespace"], metadata["name"]), job, gone)


def seen_pod(pod: Manifest, gone: bool = False) -> Seen:
    """A pod was seen that bears a job's label."""
    metadata = pod["metadata"]
    return Seen("Pod", (metadata["namespace"], metadata["labels"][contract.LABEL_JOB]), pod_in_short(pod), gone)


def seen_service(service: Manifest, gone: bool = False) -> Seen:
    """A Service was seen that bears a job's label."""
    metadata = service["metadata"]
    key = metadata["namespace"], metadata["labels"][contract.LABEL_JOB]
    return Seen("Service", key, service_in_short(service), gone)


class _Feed:
    """What waits to be told: of each object its newest state, in the order they came."""

    def __init__(self) -> None:
        self.missed = False
        """Changes may have been missed."""
        self._waiting: dict[object, Seen | NodeSeen | JobKey] = {}
        self._arrived = asyncio.Event()

    def begin(self) -> None:
        """All is listed from here on, and with it what was told before."""
        self.missed = False
        self._waiting.clear()

    def add(self, news: Seen | NodeSeen | JobKey | None) -> None:
        """None: something may have been missed before this."""
        if news is None:
            self.missed = True
            self._waiting.clear()
        else:
            name = _name_of(news)
            self._waiting.pop(name, None)
            self._waiting[name] = news
        self._arrived.set()

    async def next(self) -> Seen | NodeSeen | JobKey | None:
        """None: look whether something was missed."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
            if self.missed:
                return None
        return self._waiting.pop(next(iter(self._waiting)))


def _name_of(news: Seen | NodeSeen | JobKey) -> object:
    match news:
        case Seen():
            return news.manifest["metadata"]["uid"]
        case NodeSeen():
            return NodeSeen, news.name
        case key:
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
