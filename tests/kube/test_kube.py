"""kube.py beyond the contract: scope, hints, and rights that are not there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cluster.apiserver import ApiServer
from support.apiserver import on_apiserver
from support.kube_world import JOBS
from support.patience import HANG_S
from support.trainjobs import document
from trainjob_operator.cluster import Mark, Rejected, Seen, Unavailable
from trainjob_operator.k8s.kube import KubeCluster, seen_job
from trainjob_operator.k8s.kubeapi import Api

pytestmark = on_apiserver


@asynccontextmanager
async def opened(kubeconfig: Path, *namespaces: str) -> AsyncIterator[tuple[Api, KubeCluster]]:
    api = await Api.connect(kubeconfig=str(kubeconfig))
    try:
        yield api, KubeCluster(api, namespaces)
    finally:
        await api.close()


def two_namespaces(server: ApiServer, first: str) -> tuple[str, str]:
    second = f"{first}-b"
    server.create_namespace(second)
    for namespace in (first, second):
        server.request("POST", JOBS.format(namespace), document())
    return first, second


def test_jobs_of_all_namespaces_or_of_some(apiserver: ApiServer, api_namespace: str) -> None:
    first, second = two_namespaces(apiserver, api_namespace)

    async def main() -> None:
        async with (
            opened(apiserver.kubeconfig) as (_, everywhere),
            opened(apiserver.kubeconfig, second) as (_, there),
            opened(apiserver.kubeconfig, first, second) as (_, both),
        ):
            assert {first, second} <= {job["metadata"]["namespace"] for job in await everywhere.list_jobs()}
            assert [job["metadata"]["namespace"] for job in await there.list_jobs()] == [second]
            assert [job["metadata"]["namespace"] for job in await both.list_jobs()] == [first, second]

    asyncio.run(main())


def test_each_object_waits_once_and_nothing_is_lost_while_the_list_is_read(
    apiserver: ApiServer, api_namespace: str
) -> None:
    first, second = two_namespaces(apiserver, api_namespace)

    async def main() -> None:
        async with opened(apiserver.kubeconfig, first, second) as (api, cluster):
            # The first request of the list is under way when this comes.
            api.on_call = lambda *_: cluster.tell(("team", "new"))
            cluster.tell(("nobody", "watches"))
            async with contextlib.aclosing(cluster.watch()) as watch:  # type: ignore[type-var]
                named = [await asyncio.wait_for(anext(watch), HANG_S) for _ in range(5)]
                assert [news.key if isinstance(news, Seen) else news for news in named] == [
                    Mark.BEGIN,
                    (first, "digits"),
                    (second, "digits"),
                    Mark.COMPLETE,
                    ("team", "new"),
                ]
                api.on_call = None
                job = await cluster.get_job(first, "digits")
                for _ in range(3):
                    cluster.tell(seen_job(job))
                cluster.tell(seen_job(job, gone=True))
                cluster.tell((second, "digits"))
                assert [await asyncio.wait_for(anext(watch), HANG_S) for _ in range(2)] == [
                    Seen("TrainJob", (first, "digits"), job, gone=True),
                    (second, "digits"),
                ]

    asyncio.run(main())


def test_after_a_gap_everything_is_told_anew(apiserver: ApiServer, api_namespace: str) -> None:
    first, second = two_namespaces(apiserver, api_namespace)

    async def main() -> None:
        async with opened(apiserver.kubeconfig, first, second) as (api, cluster):
            async with contextlib.aclosing(cluster.watch()) as watch:  # type: ignore[type-var]
                before = [await asyncio.wait_for(anext(watch), HANG_S) for _ in range(4)]
                cluster.tell(("team", "before"))
                for _ in range(3):
                    cluster.missed()
                lists: list[str] = []
                api.on_call = lambda method, path, *_: lists.append(path)
                assert [await asyncio.wait_for(anext(watch), HANG_S) for _ in range(4)] == before
                assert len(lists) == 4, "jobs and pods of both namespaces, once"

                def missed_meanwhile(*_: object) -> None:
                    api.on_call = None
                    cluster.missed()

                api.on_call = missed_meanwhile
                cluster.missed()
                again = [await asyncio.wait_for(anext(watch), HANG_S) for _ in range(7)]
                assert again == [*before[:3], *before], "no list is complete that had a gap meanwhile"

    asyncio.run(main())


def test_a_watch_whose_list_fails_raises(apiserver: ApiServer, api_namespace: str) -> None:
    async def main() -> None:
        async with opened(apiserver.kubeconfig_for("not-a-token"), api_namespace) as (_, cluster):
            async with contextlib.aclosing(cluster.watch()) as watch:  # type: ignore[type-var]
                assert await anext(watch) is Mark.BEGIN
                with pytest.raises(Unavailable):
                    await asyncio.wait_for(anext(watch), HANG_S)

    asyncio.run(main())


def test_what_a_namespaced_role_may_not_read_is_rejected(apiserver: ApiServer, api_namespace: str) -> None:
    """Observing goes on without: it must be able to tell this from a cluster that does not answer."""

    async def main() -> None:
        async with opened(apiserver.service_account_kubeconfig(api_namespace, "default"), api_namespace) as (
            _,
            cluster,
        ):
            for read in (
                cluster.get_node("node-1"),
                cluster.list_pod_events(api_namespace, "digits-0", warnings_of="u-1"),
                cluster.list_jobs(),
            ):
                with pytest.raises(Rejected, match="forbidden"):
                    await read

    asyncio.run(main())
