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
from support.trainjobs import document
from trainjob_operator.cluster import Rejected, Unavailable
from trainjob_operator.k8s.kube import KubeCluster
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


def test_hints_are_named_once_and_not_lost_while_the_list_is_read(apiserver: ApiServer, api_namespace: str) -> None:
    first, second = two_namespaces(apiserver, api_namespace)

    async def main() -> None:
        async with opened(apiserver.kubeconfig, first, second) as (api, cluster):
            # The first request of the list is under way when the hint comes.
            api.on_call = lambda *_: cluster.hint(("team", "new"))
            cluster.hint(("nobody", "watches"))
            async with contextlib.aclosing(cluster.watch()) as keys:  # type: ignore[type-var]
                named = [await asyncio.wait_for(anext(keys), 10.0) for _ in range(3)]
                assert sorted(named) == sorted([(first, "digits"), (second, "digits"), ("team", "new")])
                for _ in range(3):
                    cluster.hint((first, "digits"))
                cluster.hint((second, "digits"))
                assert [await asyncio.wait_for(anext(keys), 10.0) for _ in range(2)] == [
                    (first, "digits"),
                    (second, "digits"),
                ]

    asyncio.run(main())


def test_a_watch_whose_list_fails_raises(apiserver: ApiServer, api_namespace: str) -> None:
    async def main() -> None:
        async with opened(apiserver.kubeconfig_for("not-a-token"), api_namespace) as (_, cluster):
            async with contextlib.aclosing(cluster.watch()) as keys:  # type: ignore[type-var]
                with pytest.raises(Unavailable):
                    await asyncio.wait_for(anext(keys), 10.0)

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
