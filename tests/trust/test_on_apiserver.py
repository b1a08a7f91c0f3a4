"""Tokens, Secret and EndpointSlice against a real API server, with the rights of a service account and no more where
that matters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cluster.apiserver import ApiServer
from support.apiserver import on_apiserver
from support.kube_world import frozen
from support.trust import client_context
from trainjob_api import contract
from trainjob_operator.agents.callers import Caller
from trainjob_operator.agents.routing import NoRoute, point_here
from trainjob_operator.cluster import Rejected, Unavailable
from trainjob_operator.k8s.kubeapi import Api
from trainjob_operator.trust.certificates import ensure
from trainjob_operator.trust.tokens import TokenCheck

pytestmark = on_apiserver


def with_api(apiserver: ApiServer, test: Callable[[Api], Awaitable[None]], kubeconfig: Any = None) -> None:
    async def main() -> None:
        api = await Api.connect(kubeconfig=str(kubeconfig or apiserver.kubeconfig))
        try:
            await test(api)
        finally:
            await api.close()

    asyncio.run(main())


def pod(apiserver: ApiServer, namespace: str, name: str = "digits-0") -> dict[str, Any]:
    body = {"metadata": {"name": name}, "spec": {"containers": [{"name": "trainer", "image": "none"}]}}
    return apiserver.request("POST", f"/api/v1/namespaces/{namespace}/pods", body)


def caller(made: dict[str, Any]) -> Caller:
    return Caller(
        pod_uid=made["metadata"]["uid"], pod_name=made["metadata"]["name"], namespace=made["metadata"]["namespace"]
    )


@pytest.mark.parametrize("namespaced", [False, True], ids=["by review", "by keys"])
def test_a_real_token_names_its_pod_and_others_are_refused(
    apiserver: ApiServer, api_namespace: str, namespaced: bool
) -> None:
    made = pod(apiserver, api_namespace)
    good = apiserver.service_account_token(api_namespace, "default", audience=contract.TOKEN_AUDIENCE, pod=made)
    refused = {
        "audience": apiserver.service_account_token(api_namespace, "default", audience="elsewhere", pod=made),
        "the API's own": apiserver.service_account_token(api_namespace, "default", pod=made),
        "no pod": apiserver.service_account_token(api_namespace, "default", audience=contract.TOKEN_AUDIENCE),
        "cut": good[:-8],
        "changed": good.rpartition(".")[0] + "." + good.rpartition(".")[2][::-1],
    }

    async def test(api: Api) -> None:
        check = TokenCheck(api, contract.TOKEN_AUDIENCE, (api_namespace,) if namespaced else ())
        assert await check(good) == caller(made)
        for why, token in refused.items():
            assert await check(token) is None, why
        if namespaced:
            assert await TokenCheck(api, contract.TOKEN_AUDIENCE, ("elsewhere",))(good) is None

    # A service account without any role may read the keys, and may not ask for reviews.
    with_api(apiserver, test, apiserver.service_account_kubeconfig(api_namespace, "default") if namespaced else None)


def test_a_deleted_pods_token_is_refused_by_review(apiserver: ApiServer, api_namespace: str) -> None:
    made = pod(apiserver, api_namespace)
    token = apiserver.service_account_token(api_namespace, "default", audience=contract.TOKEN_AUDIENCE, pod=made)
    apiserver.request("DELETE", f"/api/v1/namespaces/{api_namespace}/pods/digits-0", {"gracePeriodSeconds": 0})
    again = pod(apiserver, api_namespace)
    assert again["metadata"]["uid"] != made["metadata"]["uid"]

    async def test(api: Api) -> None:
        assert await TokenCheck(api, contract.TOKEN_AUDIENCE)(token) is None

    with_api(apiserver, test)


def test_without_the_right_to_review_there_is_no_verdict(apiserver: ApiServer, api_namespace: str) -> None:
    made = pod(apiserver, api_namespace)
    token = apiserver.service_account_token(api_namespace, "default", audience=contract.TOKEN_AUDIENCE, pod=made)

    async def test(api: Api) -> None:
        with pytest.raises(Rejected, match="tokenreviews"):
            await TokenCheck(api, contract.TOKEN_AUDIENCE)(token)

    with_api(apiserver, test, apiserver.service_account_kubeconfig(api_namespace, "default"))


@pytest.mark.slow
def test_while_the_api_server_hangs_a_known_token_is_believed(
    apiserver: ApiServer, api_namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainjob_operator.trust.tokens.POSITIVE_S", 0.0)
    monkeypatch.setattr("trainjob_operator.trust.tokens.SILENT_S", 0.0)
    made, other = pod(apiserver, api_namespace), pod(apiserver, api_namespace, "digits-1")
    known, new = (
        apiserver.service_account_token(api_namespace, "default", audience=contract.TOKEN_AUDIENCE, pod=p)
        for p in (made, other)
    )

    async def test(api: Api) -> None:
        check = TokenCheck(api, contract.TOKEN_AUDIENCE)
        assert await check(known) == caller(made)
        with frozen(apiserver, api):
            assert await check(known) == caller(made)
            with pytest.raises(Unavailable):
                await check(new)
        assert await check(new) == caller(other)

    with_api(apiserver, test)


def test_the_secret_is_made_once(apiserver: ApiServer, api_namespace: str) -> None:
    async def test(api: Api) -> None:
        names = (f"{contract.COORDINATOR_SERVICE}.{api_namespace}.svc",)
        both = await asyncio.gather(*(ensure(api, api_namespace, contract.COORDINATOR_SECRET, names) for _ in range(4)))
        assert len({trust.ca_pem for trust in both}) == len({trust.master_key for trust in both}) == 1
        client_context(both[0].ca_pem)

    with_api(apiserver, test)
    kept = apiserver.request("GET", f"/api/v1/namespaces/{api_namespace}/secrets/{contract.COORDINATOR_SECRET}")
    assert (
        set(kept["data"]) == {"ca.crt", "ca.key", "master.key"}
        and kept["metadata"]["labels"][contract.LABEL_MANAGED_BY] == contract.MANAGED_BY
    )


def test_the_route_is_written_moved_and_left_alone(apiserver: ApiServer, api_namespace: str) -> None:
    service = contract.COORDINATOR_SERVICE
    body = {"metadata": {"name": service}, "spec": {"ports": [{"name": "https", "port": 8443, "targetPort": 8443}]}}

    async def test(api: Api) -> None:
        with pytest.raises(NoRoute, match="no Service"):
            await point_here(api, api_namespace, service, "10.0.0.1", 8443)
        apiserver.request("POST", f"/api/v1/namespaces/{api_namespace}/services", body)
        for address, written in (
            ("10.0.0.1", True),
            ("10.0.0.1", False),
            ("10.0.0.2", True),
            ("fd00::1", True),
            ("fd00::1", False),
        ):
            assert await point_here(api, api_namespace, service, address, 8443) is written
            found = apiserver.request(
                "GET", f"/apis/discovery.k8s.io/v1/namespaces/{api_namespace}/endpointslices/{service}"
            )
            assert found["endpoints"][0]["addresses"] == [address]

    with_api(apiserver, test)
