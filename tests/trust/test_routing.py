"""The EndpointSlice of the coordinator's Service: made, moved, left alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.trust import MemoryApi
from trainjob_operator.agents.routing import NoRoute, point_here
from trainjob_operator.cluster import Conflict, Rejected

SERVICE = "/api/v1/namespaces/system/services/coordinator"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/system/endpointslices"
SLICE = f"{SLICES}/coordinator"


def api(**spec: Any) -> MemoryApi:
    made = MemoryApi()
    made.put(
        SERVICE,
        {
            "metadata": {"name": "coordinator", "namespace": "system", "uid": "s"},
            "spec": {"ports": [{"name": "https", "port": 8443}], **spec},
        },
    )
    return made


def point(to: MemoryApi, address: str = "10.1.2.3", port: int = 8443) -> bool:
    return asyncio.run(point_here(to, "system", "coordinator", address, port))


def test_it_is_made_in_the_form_that_the_cluster_reads() -> None:
    cluster = api()
    assert point(cluster)
    made = cluster.objects[SLICE]
    assert made["metadata"]["labels"]["kubernetes.io/service-name"] == "coordinator"
    assert made["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] == "operator.trainjob.dev"
    assert made["metadata"]["ownerReferences"][0]["uid"] == "s"
    assert (made["addressType"], made["endpoints"]) == (
        "IPv4",
        [{"addresses": ["10.1.2.3"], "conditions": {"ready": True}}],
    )
    assert made["ports"] == [{"name": "https", "port": 8443, "protocol": "TCP"}], (
        "the port's name is the Service's: it joins the two"
    )


def test_what_is_right_is_not_written_again() -> None:
    cluster = api()
    point(cluster)
    # What the API server adds by itself is no difference.
    cluster.objects[SLICE]["endpoints"][0]["nodeName"] = None
    cluster.objects[SLICE]["metadata"]["generation"] = 1
    cluster.calls.clear()
    assert not point(cluster)
    assert [verb for verb, _ in cluster.calls] == ["GET", "GET"]


@pytest.mark.parametrize("change", ["address", "port", "label", "owner"])
def test_what_differs_is_replaced(change: str) -> None:
    cluster = api()
    point(cluster)
    if change == "label":
        cluster.objects[SLICE]["metadata"]["labels"].clear()
    if change == "owner":
        cluster.objects[SERVICE]["metadata"]["uid"] = "made again"
    address, port = ("10.9.9.9" if change == "address" else "10.1.2.3"), (9000 if change == "port" else 8443)
    assert point(cluster, address, port)
    assert not point(cluster, address, port)
    assert (
        cluster.objects[SLICE]["endpoints"][0]["addresses"] == [address]
        and cluster.objects[SLICE]["ports"][0]["port"] == port
    )


def test_another_address_family_needs_another_slice() -> None:
    cluster = api()
    point(cluster)
    assert point(cluster, "fd00::7")
    assert cluster.objects[SLICE]["addressType"] == "IPv6"
    assert ("DELETE", SLICE) in cluster.calls and not point(cluster, "fd00::7")


def test_the_last_word_of_an_older_leader_is_written_over() -> None:
    cluster = api()
    point(cluster, "10.0.0.1")

    async def older_leader() -> None:
        if cluster.calls[-1][0] == "PUT":
            cluster.put(SLICE, cluster.objects[SLICE])
            cluster.before = None

    cluster.before = older_leader
    assert point(cluster, "10.0.0.2")
    assert cluster.objects[SLICE]["endpoints"][0]["addresses"] == ["10.0.0.2"]


def test_a_conflict_that_does_not_end_is_raised() -> None:
    cluster = api()
    point(cluster, "10.0.0.1")

    async def always() -> None:
        if cluster.calls[-1][0] == "PUT":
            cluster.put(SLICE, cluster.objects[SLICE])

    cluster.before = always
    with pytest.raises(Conflict):
        point(cluster, "10.0.0.2")


def test_without_a_service_there_is_a_way_out() -> None:
    with pytest.raises(NoRoute, match=r"no Service system/coordinator.*helm upgrade.*--service"):
        point(MemoryApi())


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"selector": {"app": "x"}}, "has a selector"),
        ({"ports": []}, "has 0 ports"),
        ({"ports": [{"name": "a"}, {"name": "b"}]}, "has 2 ports"),
    ],
)
def test_a_service_that_cannot_lead_here_is_said(spec: dict[str, Any], words: str) -> None:
    cluster = api(**spec)
    with pytest.raises(NoRoute, match=words):
        point(cluster)
    assert SLICE not in cluster.objects


def test_a_refusal_of_the_api_is_its_own() -> None:
    cluster = api()
    cluster.silent = Rejected("403")
    with pytest.raises(Rejected):
        point(cluster)
