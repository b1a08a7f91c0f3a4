"""Two installations with one namespace in view, as processes before a real API server: one serves it, the other says
so in its log and on the jobs, and touches nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.apiserver import ApiServer
from host.test_operator import Team
from support.apiserver import on_apiserver
from support.operators import Installation, eventually, grant, installed
from trainjob_api import contract

pytestmark = [on_apiserver, pytest.mark.slow]


def test_a_namespace_is_served_by_the_installation_that_came_first(
    apiserver: ApiServer, api_namespace: str, installation: Installation, tmp_path: Path
) -> None:
    team, own = Team(apiserver, api_namespace), f"{api_namespace}-second"
    first = installation.start("first", "--namespace", team.namespace, kubeconfig=grant(installation, team.namespace))
    first.says("leading:")
    team.apply("early")
    team.has_pods("early-0", "early-1")
    with installed(apiserver, own, tmp_path) as other:
        second = other.start("second", "--namespace", team.namespace, kubeconfig=grant(other, team.namespace))
        second.says("leading:")
        team.apply("late")
        for job in ("early", "late"):
            line = second.says(f"{team.namespace}/{job}: namespace {team.namespace} is served by")
            assert f"{installation.namespace}/{contract.LEASE_NAME}" in line
        before = team.has_pods("early-0", "early-1", "late-0", "late-1")

        def told() -> list[str]:
            events = apiserver.request("GET", f"/api/v1/namespaces/{team.namespace}/events")["items"]
            return sorted(
                event["involvedObject"]["name"]
                for event in events
                if event["reason"] == contract.REASON_SERVED_ELSEWHERE and own in event["message"]
            )

        eventually(lambda: told() == ["early", "late"], "each job tells that the second leaves it alone")
        team.delete_pod("early-1")
        eventually(lambda: len(now := team.pods()) == 4 and now != before, "the first goes on")
        written = {key for key, count in second.calls().items() if count and key[1] not in ("GET", "HEAD")}
        assert {resource for _, _, resource in written} <= {
            "leases",
            "events",
            "secrets",
            "endpointslices",
            "selfsubjectaccessreviews",
        }
        path = f"/apis/coordination.k8s.io/v1/namespaces/{team.namespace}/leases/{contract.CLAIM_LEASE}"
        assert apiserver.request("GET", path)["spec"]["holderIdentity"] == (
            f"{installation.namespace}/{contract.LEASE_NAME}"
        )
