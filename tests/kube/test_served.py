"""served.py: an operator that is newer than the CRD on the server finds out before it writes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from cluster.apiserver import ApiServer
from support.apiserver import on_apiserver
from support.patience import HANG_S
from trainjob_api import contract, crd
from trainjob_operator.k8s.kubeapi import Api
from trainjob_operator.k8s.served import fields_not_served

pytestmark = on_apiserver

CRD = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{contract.PLURAL}.{contract.GROUP}"


def not_served(kubeconfig: Path) -> list[str]:
    async def main() -> list[str]:
        api = await Api.connect(kubeconfig=str(kubeconfig))
        try:
            return await fields_not_served(api)
        finally:
            await api.close()

    return asyncio.run(main())


def settled(kubeconfig: Path, expected: list[str]) -> list[str]:
    """The schema is published a moment after the CRD changed."""
    deadline = time.monotonic() + HANG_S
    while (found := not_served(kubeconfig)) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def test_our_own_crd_serves_all_and_anybody_may_ask(apiserver: ApiServer, api_namespace: str) -> None:
    assert settled(apiserver.service_account_kubeconfig(api_namespace, "default"), []) == []


def test_an_older_crd_is_found_out(apiserver: ApiServer) -> None:
    version: dict[str, Any] = crd.crd_document()["spec"]["versions"][0]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    del properties["status"]["properties"]["history"]["items"]["properties"]["position"]
    del properties["spec"]["properties"]["suspend"]
    rules = properties["spec"]["x-kubernetes-validations"]
    properties["spec"]["x-kubernetes-validations"] = [rule for rule in rules if "suspend" not in rule["rule"]]
    before = apiserver.request("GET", CRD)["spec"]["versions"]
    apiserver.request("PATCH", CRD, {"spec": {"versions": [version]}})
    try:
        expected = ["spec.suspend", "status.history.position"]
        assert settled(apiserver.kubeconfig, expected) == expected
    finally:
        apiserver.request("PATCH", CRD, {"spec": {"versions": before}})
        assert settled(apiserver.kubeconfig, []) == []
