"""Leads agents to the leading operator: writes the EndpointSlice of the coordinator's selector-less Service.

`__main__` calls `point_here` once it leads and listens, and again now and then (it writes only what has changed).
Followers must not call it. The Service itself is the installation's (the chart makes it).
"""

from __future__ import annotations

import ipaddress
from typing import Any, Protocol

from trainjob_api import contract
from trainjob_operator.cluster import ClusterError, Conflict, NotFound

LABEL_SERVICE = "kubernetes.io/service-name"
"""Which Service a slice belongs to."""
LABEL_SLICE_MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
"""Who writes a slice; the control plane's own controller leaves those of others alone."""
SLICE_MANAGER = "operator.trainjob.dev"
TRIES = 3
"""The leader before us may write a last time: what we then find is newer than what we read."""

Document = dict[str, Any]


class SliceApi(Protocol):
    """What is asked of the API server."""

    async def get(self, path: str) -> Document: ...

    async def create(self, path: str, body: Document) -> Document: ...

    async def replace(self, path: str, body: Document) -> Document: ...

    async def delete(self, path: str, body: Document | None = None) -> Document: ...


class NoRoute(Exception):
    """The Service cannot lead agents here; the text says why and what to do."""


async def point_here(api: SliceApi, namespace: str, service: str, address: str, port: int) -> bool:
    """Lead the Service to `address:port` (this pod's IP); whether anything had to be written. Raises NoRoute,
    ClusterError.
    """
    try:
        found = await api.get(f"/api/v1/namespaces/{namespace}/services/{service}")
    except NotFound:
        raise NoRoute(
            f"there is no Service {namespace}/{service}, through which workers reach this operator: install the "
            "chart again (`helm upgrade`), "
            "or name another one with --service"
        ) from None
    wanted = _slice(found, address, port)
    for _ in range(TRIES):
        try:
            return await _write(api, wanted)
        except Conflict as error:
            last: ClusterError = error
    raise last


async def _write(api: SliceApi, wanted: Document) -> bool:
    """Once. Raises Conflict when somebody else wrote in between."""
    metadata = wanted["metadata"]
    path = f"/apis/discovery.k8s.io/v1/namespaces/{metadata['namespace']}/endpointslices"
    own_path = f"{path}/{metadata['name']}"
    try:
        there = await api.get(own_path)
    except NotFound:
        await api.create(path, wanted)
        return True
    if _same(there, wanted):
        return False
    if there.get("addressType") != wanted["addressType"]:  # it cannot be changed
        try:
            await api.delete(own_path, {"preconditions": {"uid": there["metadata"]["uid"]}})
        except NotFound:
            pass
        await api.create(path, wanted)
        return True
    await api.replace(
        own_path, {**wanted, "metadata": {**metadata, "resourceVersion": there["metadata"]["resourceVersion"]}}
    )
    return True


def _slice(service: Document, address: str, port: int) -> Document:
    """The slice that leads this Service to address:port. Raises NoRoute."""
    metadata, spec = service["metadata"], service.get("spec") or {}
    where = f"{metadata['namespace']}/{metadata['name']}"
    if spec.get("selector"):
        raise NoRoute(
            f"Service {where} has a selector, so the cluster leads it to any replica, not to the leading one: remove "
            "spec.selector (the chart sets none)"
        )
    ports = spec.get("ports") or []
    if len(ports) != 1:
        raise NoRoute(f"Service {where} has {len(ports)} ports, but must have exactly one, for the coordinator")
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": {
                LABEL_SERVICE: metadata["name"],
                LABEL_SLICE_MANAGED_BY: SLICE_MANAGER,
                contract.LABEL_MANAGED_BY: contract.MANAGED_BY,
            },
            # It goes with the Service.
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Service", "name": metadata["name"], "uid": metadata["uid"]}
            ],
        },
        "addressType": f"IPv{ipaddress.ip_address(address).version}",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        # The name joins it with the Service's port.
        "ports": [{"name": ports[0].get("name") or "", "port": port, "protocol": "TCP"}],
    }


def _same(there: Document, wanted: Document) -> bool:
    """Whether the fields that we set are as we want them; the API server adds others."""
    labels, owners = there["metadata"].get("labels") or {}, there["metadata"].get("ownerReferences") or []
    if any(labels.get(name) != value for name, value in wanted["metadata"]["labels"].items()):
        return False
    if [owner.get("uid") for owner in owners] != [owner["uid"] for owner in wanted["metadata"]["ownerReferences"]]:
        return False
    endpoints = [(e.get("addresses"), (e.get("conditions") or {}).get("ready")) for e in there.get("endpoints") or []]
    ports = [(p.get("name") or "", p.get("port"), p.get("protocol", "TCP")) for p in there.get("ports") or []]
    return (
        there.get("addressType") == wanted["addressType"]
        and endpoints == [(e["addresses"], True) for e in wanted["endpoints"]]
        and ports == [(p["name"], p["port"], p["protocol"]) for p in wanted["ports"]]
    )
