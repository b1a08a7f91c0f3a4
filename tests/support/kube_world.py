"""What stands around the operator on a real API server in tests: who tells of changes, and kubelets for puppet agents.

The API server has no nodes; `Kubelets` gives `support.puppets.World` the verbs that it uses of a MemoryCluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp

from cluster.apiserver import ApiServer
from support.patience import HANG_S
from trainjob_api import contract
from trainjob_operator.cluster import Manifest, NotFound, Seen, Unavailable
from trainjob_operator.k8s.kube import KubeCluster, seen_job, seen_pod, seen_service
from trainjob_operator.k8s.kubeapi import Api
from trainjob_operator.memory import ChangeType, ObjectChange
from trainjob_operator.memory.cluster import seen_by_label

LOOK_S = 0.03
JOBS = f"/apis/{contract.API_VERSION}/namespaces/{{}}/{contract.PLURAL}"
PODS = "/api/v1/namespaces/{}/pods"
SERVICES = "/api/v1/namespaces/{}/services"


async def until(condition: Callable[[], object], what: str, within_s: float = HANG_S) -> None:
    """Return once it holds; AssertionError when it does not in time."""
    deadline = asyncio.get_running_loop().time() + within_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"not within {within_s:.0f} s: {what}"
        await asyncio.sleep(LOOK_S)


@contextlib.contextmanager
def frozen(server: ApiServer, api: Api, timeout_s: float = 0.5) -> Iterator[None]:
    """The server answers nothing meanwhile, and calls of this client wait for so long; before and after, as ever."""
    usual = api._timeout
    server.freeze()
    api._timeout = aiohttp.ClientTimeout(total=timeout_s, connect=timeout_s, sock_connect=timeout_s)
    try:
        yield
    finally:
        api._timeout = usual
        server.thaw()


class Watch:
    """Every change of a namespace's TrainJobs, pods and Services, in the order of each kind, starting with what there is."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._changes: asyncio.Queue[ObjectChange] = asyncio.Queue()
        self._to_list = 3
        self.open = asyncio.Event()
        """What happens from now on will be told."""
        self.seen: dict[tuple[str, str], Manifest] = {}
        """By kind and UID, as of the last change that was given out."""

    async def changes(self) -> AsyncIterator[ObjectChange]:
        """Without end."""
        async with asyncio.TaskGroup() as following:
            following.create_task(self._follow(contract.KIND, JOBS.format(self._namespace)))
            following.create_task(self._follow("Pod", PODS.format(self._namespace)))
            following.create_task(self._follow("Service", SERVICES.format(self._namespace)))
            while True:
                change = await self._changes.get()
                address = (change.kind, change.object["metadata"]["uid"])
                if change.type is ChangeType.DELETED:
                    self.seen.pop(address, None)
                else:
                    self.seen[address] = change.object
                yield change

    async def _listed(self, path: str) -> Manifest:
        """What there is; 429 is asked again, as every client does: the server says it while a CRD is being changed."""
        for _ in range(100):
            try:
                return await self._api.document(path)
            except Unavailable:
                await asyncio.sleep(0.2)
        return await self._api.document(path)

    async def _follow(self, kind: str, path: str) -> None:
        connection = await self._api.connection()
        listed = await self._listed(path)
        for found in listed["items"]:
            self._changes.put_nowait(ObjectChange(ChangeType.ADDED, kind, found))
        self._to_list -= 1
        if not self._to_list:
            self.open.set()
        query = {"watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"]}
        headers = {"Authorization": connection.authorization or ""}
        endless = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=connection.ssl_context), read_bufsize=2**21, timeout=endless
        ) as session:
            async with session.get(
                connection.server + path, params=query, headers=headers, raise_for_status=True
            ) as stream:
                async for line in stream.content:
                    event = json.loads(line)
                    self._changes.put_nowait(ObjectChange(ChangeType(event["type"]), kind, event["object"]))
        raise AssertionError(f"the watch of {path} ended")


async def tell_of_changes(watch: Watch, cluster: KubeCluster) -> None:
    """What the host does with kopf: each change of a job, or of a child that bears its label, is handed over. The host
    watches by the label: a child that loses it is told to be gone, as it was, by the number of the change.
    """
    in_short = {contract.KIND: seen_job, "Pod": seen_pod, "Service": seen_service}
    told: dict[str, Seen] = {}
    async for change in watch.changes():
        seen = seen_by_label(change, told)
        if seen is not None:
            cluster.tell(in_short[seen.kind](seen.manifest, seen.gone))


async def start_pod(api: Api, namespace: str, name: str, node: str = "node-1", status: Manifest | None = None) -> None:
    """Bind the pod to a node (of which only the name exists) and make it run."""
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    await api.create(
        f"{PODS.format(namespace)}/{name}/binding",
        {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target},
    )
    await set_status(api, namespace, name, status or {"phase": "Running"})


async def set_status(api: Api, namespace: str, name: str, status: Manifest) -> None:
    """As a kubelet does."""
    await api.merge_patch(f"{PODS.format(namespace)}/{name}/status", {"status": status})


class Kubelets:
    """The world's side of a namespace: what it reads comes from a watch, what it writes goes out in order."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._watch = Watch(api, namespace)
        self._writes: asyncio.Queue[Any] = asyncio.Queue()

    async def run(self) -> None:
        """Carry the writes out, one after the other; an object that is gone needs none."""
        while True:
            write = await self._writes.get()
            with contextlib.suppress(NotFound):
                await write()

    async def watch_objects(self) -> AsyncIterator[ObjectChange]:
        """See MemoryCluster."""
        async for change in self._watch.changes():
            yield change

    def pods(self, namespace: str | None = None) -> list[Manifest]:
        """See MemoryCluster; as of the last change."""
        return [found for (kind, _), found in self._watch.seen.items() if kind == "Pod"]

    def add_node(self, name: str) -> None:
        """No node is registered: the operator under test may not read them."""

    def bind_pod(self, namespace: str, name: str, node: str) -> None:
        """See MemoryCluster."""
        self._writes.put_nowait(lambda: start_pod(self._api, namespace, name, node, {"phase": "Pending"}))

    def set_pod_status(self, namespace: str, name: str, status: Manifest) -> None:
        """See MemoryCluster."""
        self._writes.put_nowait(lambda: set_status(self._api, namespace, name, status))

    def remove_pod(self, namespace: str, name: str, grace_s: int | None = None) -> None:
        """See MemoryCluster."""
        grace = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        self._writes.put_nowait(lambda: self._api.delete(f"{PODS.format(namespace)}/{name}", grace))

    def finalize_pod_deletion(self, namespace: str, name: str, uid: str) -> None:
        """See MemoryCluster."""
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        self._writes.put_nowait(lambda: self._api.delete(f"{PODS.format(namespace)}/{name}", body))


async def children_are_gone(api: Api, namespace: str) -> None:
    """Return once the garbage collector has taken everything whose owner is not there any more."""
    deadline = asyncio.get_running_loop().time() + HANG_S
    while True:
        living = {job["metadata"]["uid"] for job in await api.list(JOBS.format(namespace))}
        children = [
            child
            for plural in ("pods", "services")
            for child in await api.list(f"/api/v1/namespaces/{namespace}/{plural}")
        ]
        orphans = [
            child["metadata"]["name"]
            for child in children
            if any(owner["uid"] not in living for owner in child["metadata"].get("ownerReferences", ()))
        ]
        if not orphans:
            return
        assert asyncio.get_running_loop().time() < deadline, f"the garbage collector leaves {orphans}"
        await asyncio.sleep(LOOK_S)
