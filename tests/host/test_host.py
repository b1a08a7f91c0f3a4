"""Kopf as a watcher: hints for every change, filtering on the server, no writes, an end that is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from cluster.apiserver import ApiServer
from support.apiserver import on_apiserver, why_not
from support.patience import HANG_S
from support.trainjobs import document
from trainjob_api import contract
from trainjob_operator.cluster import JobKey, NodeSeen, Seen
from trainjob_operator.k8s import host
from trainjob_operator.k8s.bridge import Ears
from trainjob_operator.k8s.host import WatchEnded, watch_with_kopf
from trainjob_operator.k8s.kubeapi import Api
from trainjob_operator.k8s.rights import Also
from trainjob_operator.k8s.served import knows_trainjobs
from trainjob_operator.process.settings import Settings, read_settings
from trainjob_operator.words import time_of

pytestmark = [on_apiserver, pytest.mark.slow]

POD = {"POD_NAME": "op", "POD_NAMESPACE": "op", "POD_IP": "192.0.2.1"}
JOBS = f"/apis/{contract.API_VERSION}/namespaces/default/{contract.PLURAL}"
PODS = "/api/v1/namespaces/default/pods"
SERVICES = "/api/v1/namespaces/default/services"


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """One of its own: these tests watch all namespaces."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with ApiServer(controllers=False) as server:
        server.install_crd()
        server.request("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
        yield server


class Watch:
    """What a running watch has told so far."""

    def __init__(self, settings: Settings, api: Api, also: Collection[Also] = ()) -> None:
        self.nodes: list[NodeSeen] = []
        self.hints: list[JobKey] = []
        self.told: list[tuple[str, str, bool]] = []
        self.gaps = 0
        self.calls: list[tuple[str, str, int]] = []
        self.signs = 0
        self.blind: list[str | None] = []
        self.stop = asyncio.Event()
        self._news = asyncio.Event()
        self.task = asyncio.create_task(
            watch_with_kopf(
                settings=settings,
                connect=api.connection,
                ears=Ears(
                    tell=self._tell, missed=self._missed, alive=self._alive, blind=self._blind, on_call=self._call
                ),
                served=lambda: knows_trainjobs(api),
                stop=self.stop,
                also=also,
            )
        )

    def _tell(self, seen: Seen | NodeSeen) -> None:
        if isinstance(seen, NodeSeen):
            self.nodes.append(seen)
            self._news.set()
            return
        self.hints.append(seen.key)
        self.told.append((seen.kind, seen.manifest["metadata"]["name"], seen.gone))
        self._news.set()

    def _missed(self) -> None:
        self.gaps += 1
        self._news.set()

    def _alive(self) -> None:
        self.signs += 1
        self._news.set()

    def _blind(self, why: str | None) -> None:
        self.blind.append(why)
        self._news.set()

    def _call(self, method: str, path: str, status: int, seconds: float) -> None:
        self.calls.append((method, path, status))
        self._news.set()

    async def until(self, good: Callable[[], bool]) -> None:
        async with asyncio.timeout(HANG_S):
            while not good():
                self._news.clear()
                await self._news.wait()

    def watches(self, plural: str) -> list[dict[str, list[str]]]:
        """Queries of the opened watches of that kind."""
        parts = [urlsplit(path) for _, path, _ in self.calls]
        queries = [parse_qs(part.query) for part in parts if part.path.endswith(f"/{plural}")]
        return [query for query in queries if "watch" in query]

    async def watching(self) -> None:
        await self.until(lambda: bool(self.watches("pods") and self.watches(contract.PLURAL)))


def watch_it(
    server: ApiServer,
    story: Callable[[Watch], Awaitable[None]],
    *flags: str,
    kubeconfig: Path | None = None,
    also: Collection[Also] = (),
) -> Watch:
    async def run() -> Watch:
        api = await Api.connect(kubeconfig=str(kubeconfig or server.kubeconfig))
        watch = Watch(read_settings(["--runtime-image", "x", *flags], POD), api, also)
        try:
            await story(watch)
            watch.stop.set()
            await watch.task
        finally:
            watch.task.cancel()
            await asyncio.wait({watch.task})
            await api.close()
        return watch

    return asyncio.run(run())


def pod(name: str, labels: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [{"name": "trainer", "image": "x"}]}}


@pytest.mark.parametrize("flags", [(), ("--namespace", "default")])
def test_jobs_and_their_pods_give_hints_and_nothing_is_written(server: ApiServer, flags: tuple[str, ...]) -> None:
    name = f"job-{len(flags)}"
    server.request("POST", JOBS, document({"metadata.name": f"{name}-early"}))

    async def story(watch: Watch) -> None:
        await watch.until(lambda: ("default", f"{name}-early") in watch.hints)
        await watch.watching()
        await asyncio.to_thread(server.request, "POST", JOBS, document({"metadata.name": name}))
        await watch.until(lambda: ("default", name) in watch.hints)
        await asyncio.to_thread(server.request, "POST", PODS, pod(f"stranger-{name}", {"app": "web"}))
        await asyncio.to_thread(server.request, "POST", PODS, pod(f"{name}-0", {contract.LABEL_JOB: f"owner-{name}"}))
        await watch.until(lambda: ("default", f"owner-{name}") in watch.hints)
        assert watch.gaps == 2, "the first lists of jobs and of pods"
        await asyncio.to_thread(server.request, "DELETE", f"{PODS}/{name}-0?gracePeriodSeconds=0")
        await watch.until(lambda: ("Pod", f"{name}-0", True) in watch.told)

    watch = watch_it(server, story, *flags)
    assert {method for method, _, _ in watch.calls} == {"GET"}
    assert all(query["labelSelector"] == [contract.LABEL_JOB] for query in watch.watches("pods")), (
        "the API server filters, not kopf"
    )
    assert watch.signs >= 2
    assert not any("stranger" in hint[1] for hint in watch.hints)
    job = server.request("GET", f"{JOBS}/{name}")
    assert "annotations" not in job["metadata"] and "finalizers" not in job["metadata"]


def test_services_with_a_jobs_label_are_told_as_long_as_they_bear_it(server: ApiServer) -> None:
    def made(name: str, labels: dict[str, str]) -> None:
        spec = {"clusterIP": "None", "selector": {"a": "b"}}
        server.request("POST", SERVICES, {"metadata": {"name": name, "labels": labels}, "spec": spec})

    async def story(watch: Watch) -> None:
        await watch.watching()
        await watch.until(lambda: bool(watch.watches("services")))
        assert watch.gaps == 3, "the first lists of jobs, of pods and of Services"
        await asyncio.to_thread(made, "stranger", {"app": "web"})
        await asyncio.to_thread(made, "served", {contract.LABEL_JOB: "served"})
        await watch.until(lambda: ("Service", "served", False) in watch.told)
        unlabelled = {"metadata": {"labels": {contract.LABEL_JOB: None}}}
        await asyncio.to_thread(server.request, "PATCH", f"{SERVICES}/served", unlabelled)
        await watch.until(lambda: ("Service", "served", True) in watch.told)

    watch = watch_it(server, story, also={Also.SERVICES})
    assert ("Service", "stranger", False) not in watch.told and ("default", "served") in watch.hints
    assert all(query["labelSelector"] == [contract.LABEL_JOB] for query in watch.watches("services"))


def test_a_right_that_is_taken_away_ends_the_watch_with_a_sentence(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "BACKOFFS_S", (0.05,))
    server.request("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "nobody"}})

    async def story(watch: Watch) -> None:
        async with asyncio.timeout(HANG_S):
            await watch.task

    with pytest.raises(WatchEnded, match=r"the watch of TrainJobs and pods ended: .*forbidden"):
        watch_it(server, story, kubeconfig=server.service_account_kubeconfig("default", "nobody"))


def test_a_kind_that_is_deleted_and_made_again_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "GONE_LOOK_S", 0.2)
    monkeypatch.setattr(host, "REOPEN_S", 2)
    crd = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{contract.PLURAL}.{contract.GROUP}"
    with ApiServer(controllers=False) as server:
        server.install_crd()
        server.request("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})

        async def story(watch: Watch) -> None:
            await watch.watching()
            await asyncio.to_thread(server.request, "DELETE", crd)
            await watch.until(lambda: watch.blind == [host.KIND_GONE])
            await asyncio.to_thread(server.install_crd)
            await watch.until(lambda: watch.blind == [host.KIND_GONE, None])
            await asyncio.to_thread(server.request, "POST", JOBS, document({"metadata.name": "again"}))
            await watch.until(lambda: ("default", "again") in watch.hints)

        watch_it(server, story)


def test_nodes_that_are_about_to_go_are_told_and_their_heartbeats_are_not(server: ApiServer) -> None:
    taint = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}

    def change(patch: dict[str, Any]) -> None:
        server.request("PATCH", "/api/v1/nodes/node-a", patch)

    async def story(watch: Watch) -> None:
        node = {"metadata": {"name": "node-a"}, "spec": {"taints": [taint]}}
        made = await asyncio.to_thread(server.request, "POST", "/api/v1/nodes", node)
        since = time_of(made["metadata"]["creationTimestamp"])
        leaving = NodeSeen("node-a", "its node node-a is tainted: karpenter.sh/disrupted", since)
        await watch.until(lambda: watch.nodes == [leaving])
        await asyncio.to_thread(change, {"metadata": {"labels": {"beat": "1"}}})
        await asyncio.to_thread(change, {"spec": {"taints": None}})
        await watch.until(lambda: len(watch.nodes) > 1)
        assert watch.nodes == [leaving, NodeSeen("node-a", None, since)]
        await asyncio.to_thread(change, {"spec": {"taints": [taint]}})
        await watch.until(lambda: len(watch.nodes) == 3)
        await asyncio.to_thread(server.request, "DELETE", "/api/v1/nodes/node-a")
        await watch.until(lambda: watch.nodes[2:] == [leaving, NodeSeen("node-a", None)])

    watch_it(server, story, also={Also.NODES})
