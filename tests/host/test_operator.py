"""The operator as a process before a real API server: it starts, leads, reconciles, hands over, and ends in order."""

from __future__ import annotations

import re
import signal
import time
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from cluster.apiserver import ApiServer
from support.apiserver import on_apiserver
from support.operators import Installation, Replica, eventually, grant
from support.trainjobs import document
from trainjob_api import contract
from trainjob_operator.k8s import lease

pytestmark = [on_apiserver, pytest.mark.slow]

FOREIGN_GROUP = "other.example.com"


class Team:
    """Jobs and pods of one namespace."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self.server = server
        self.namespace = namespace
        self.jobs_path = f"/apis/{contract.API_VERSION}/namespaces/{namespace}/{contract.PLURAL}"

    def apply(self, name: str = "digits", **changes: Any) -> None:
        self.server.request("POST", self.jobs_path, document({"metadata.name": name, **changes}))

    def job(self, name: str = "digits") -> dict[str, Any]:
        return self.server.request("GET", f"{self.jobs_path}/{name}")

    def jobs(self) -> list[dict[str, Any]]:
        return list(self.server.request("GET", self.jobs_path)["items"])

    def pods(self) -> dict[str, str]:
        """UID by name."""
        items = self.server.request("GET", f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        return {
            pod["metadata"]["name"]: pod["metadata"]["uid"]
            for pod in items
            if "deletionTimestamp" not in pod["metadata"]
        }

    def has_pods(self, *names: str) -> dict[str, str]:
        return eventually(lambda: pods if set(pods := self.pods()) == set(names) else None, f"pods {names}")

    def delete_pod(self, name: str) -> None:
        self.server.request("DELETE", f"/api/v1/namespaces/{self.namespace}/pods/{name}", {"gracePeriodSeconds": 0})


@pytest.fixture
def team(apiserver: ApiServer, api_namespace: str) -> Team:
    return Team(apiserver, api_namespace)


def leading(installation: Installation, team: Team, name: str = "op-a", kubeconfig: Path | None = None) -> Replica:
    replica = installation.start(name, "--namespace", team.namespace, kubeconfig=kubeconfig)
    replica.says("leading:")
    return replica


def writes(calls: dict[tuple[str, str, str], float]) -> dict[tuple[str, str, str], float]:
    """Calls that change something; the leader's renewals aside."""
    return {key: count for key, count in calls.items() if key[1] not in ("GET", "HEAD") and key[2] != "leases"}


def test_a_trainjob_becomes_pods(installation: Installation, team: Team) -> None:
    operator = leading(installation, team)
    team.apply()
    team.has_pods("digits-0", "digits-1")
    assert team.job()["status"]["phase"]
    assert operator.page("/healthz") == (200, "ok\n")
    assert operator.page("/readyz") == (200, "ok\n")
    eventually(lambda: operator.metric("trainjob_pods_created_total") == 2, "the operator has heard that they are made")
    metadata = team.job()["metadata"]
    assert "finalizers" not in metadata and "annotations" not in metadata
    eventually(
        lambda: any(line.get("job") == f"{team.namespace}/digits" for line in operator.lines()), "its log names the job"
    )
    eventually(
        lambda: operator.metric("trainjob_jobs", phase=team.job()["status"]["phase"]) == 1.0,
        "the metrics know the job as it was committed",
    )


def test_a_deleted_pod_is_seen_and_a_job_that_was_there_before_too(installation: Installation, team: Team) -> None:
    team.apply("early")
    leading(installation, team)
    before = team.has_pods("early-0", "early-1")
    team.delete_pod("early-1")
    eventually(lambda: len(now := team.pods()) == 2 and now != before, "a new pod")
    assert team.pods()["early-0"] == before["early-0"]


def test_the_rights_of_the_table_are_enough_in_one_namespace(installation: Installation, team: Team) -> None:
    operator = leading(installation, team, kubeconfig=grant(installation, team.namespace))
    team.apply("short", **{"spec.ttlSecondsAfterFinished": 0, "spec.activeDeadlineSeconds": 1})
    eventually(lambda: not team.jobs(), "created, failed by its deadline, and deleted by its TTL")
    assert operator.metric("trainjob_pods_created_total") == 2
    assert not [line for line in operator.lines() if line["level"] in ("warning", "error")]


def test_the_rights_of_the_table_are_enough_cluster_wide(installation: Installation, team: Team) -> None:
    operator = installation.start("op-a", kubeconfig=grant(installation, None))
    operator.says("leading:")
    team.apply()
    team.has_pods("digits-0", "digits-1")
    assert not [line for line in operator.lines() if line["level"] == "error"]
    # Others' jobs must not see this operator again.
    operator.send(signal.SIGTERM)
    assert operator.ended() == 0


def test_in_a_steady_state_nothing_is_written(installation: Installation, team: Team) -> None:
    operator = leading(installation, team)
    team.apply()
    team.has_pods("digits-0", "digits-1")

    def told() -> bool:
        conditions = team.job()["status"]["conditions"]
        return any((entry["type"], entry["status"]) == ("ResourcesCreated", "True") for entry in conditions)

    def settled() -> bool:
        before = writes(operator.calls())
        time.sleep(4)
        return writes(operator.calls()) == before

    eventually(told, "what the start shows of itself is written, after a few seconds")
    eventually(settled, "seconds without a write")
    before, pods = operator.calls(), team.pods()
    version = team.job()["metadata"]["resourceVersion"]
    time.sleep(5)  # what is measured: five seconds in which nothing happens
    after = operator.calls()
    assert writes(after) == writes(before)
    assert team.job()["metadata"]["resourceVersion"] == version
    assert team.pods() == pods
    assert all(verb == "GET" for client, verb, _ in after if client == "watch"), "kopf writes nothing, ever"
    # Nor does it keep reading: the watch is open, and turns come by events.
    reads = {key: after[key] - before.get(key, 0) for key in after if key[2] in ("trainjobs", "pods")}
    assert sum(reads.values()) <= 10, reads


def test_the_dead_leaders_place_is_taken_and_no_pod_is_touched(installation: Installation, team: Team) -> None:
    one = leading(installation, team, "op-a")
    two = installation.start("op-b", "--namespace", team.namespace)
    two.says("following: op-a leads")
    team.apply()
    pods = team.has_pods("digits-0", "digits-1")
    assert two.page("/readyz") == (200, "ok\n"), "a follower is ready: a rollout would wait for ever"
    assert two.metric("trainjob_leader") == 0
    one.send(signal.SIGKILL)
    two.says("leading:")
    assert installation.lease()["holderIdentity"] == "op-b"
    team.apply("second")
    assert pods.items() <= team.has_pods("digits-0", "digits-1", "second-0", "second-1").items()


def test_sigterm_ends_in_order_and_hands_over_at_once(installation: Installation, team: Team) -> None:
    one = leading(installation, team, "op-a")
    two = installation.start("op-b", "--namespace", team.namespace)
    two.says("following: op-a leads")
    first = installation.lease()["leaseTransitions"]
    one.send(signal.SIGTERM)
    assert one.ended() == 0
    assert one.messages()[-2:] == ["told to stop", "stopped"]
    two.says("leading:")
    assert installation.lease()["leaseTransitions"] == first + 1
    two.send(signal.SIGTERM)
    assert two.ended() == 0
    assert installation.lease().get("holderIdentity", "") == ""


def test_without_leader_election_there_is_no_lease(installation: Installation, team: Team) -> None:
    operator = installation.start("op-a", "--namespace", team.namespace, "--no-leader-election")
    operator.says("leading:")
    team.apply()
    team.has_pods("digits-0", "digits-1")
    with pytest.raises(urllib.error.HTTPError, match="not found"):
        installation.lease()
    operator.send(signal.SIGTERM)
    assert operator.ended() == 0


def test_a_follower_ends_in_order_too(installation: Installation, team: Team) -> None:
    leading(installation, team, "op-a")
    two = installation.start("op-b", "--namespace", team.namespace)
    two.says("following: op-a leads")
    two.send(signal.SIGINT)
    assert two.ended() == 0
    assert installation.lease()["holderIdentity"] == "op-a"


def test_who_loses_the_lease_ends_at_once(installation: Installation, team: Team) -> None:
    operator = leading(installation, team)
    path = f"/apis/coordination.k8s.io/v1/namespaces/{installation.namespace}/leases/{contract.LEASE_NAME}"
    team.server.request("PATCH", path, {"spec": {"holderIdentity": "another"}})
    assert operator.ended() == 1
    assert "is held by another now" in operator.messages()[-1]
    assert installation.lease()["holderIdentity"] == "another", "nothing of the new leader's was touched"


def test_a_leader_without_an_answering_api_server_ends_before_its_lease_does(
    installation: Installation, team: Team
) -> None:
    operator = leading(installation, team)
    team.server.freeze()
    try:
        assert operator.ended() == 1
    finally:
        team.server.thaw()
    told = re.search(r"was not renewed for (\d+) s", operator.messages()[-1])
    assert told is not None and int(told[1]) < lease.DURATION_S


def test_an_api_server_that_restarts_is_followed_again(installation: Installation, team: Team) -> None:
    """Without a Lease, which a restart that takes longer than ten seconds would cost."""
    operator = installation.start("op-a", "--namespace", team.namespace, "--no-leader-election")
    operator.says("leading:")
    team.apply()
    team.has_pods("digits-0", "digits-1")
    team.server.stop_server()
    team.server.start_server()
    team.apply("after")
    team.has_pods("digits-0", "digits-1", "after-0", "after-1")
    assert operator.process.poll() is None
    eventually(lambda: operator.page("/readyz")[0] == 200, "ready again")


def test_the_same_name_in_another_group_does_no_harm(installation: Installation, team: Team) -> None:
    names = {
        "plural": contract.PLURAL,
        "singular": "trainjob",
        "kind": contract.KIND,
        "listKind": f"{contract.KIND}List",
        "shortNames": ["otj"],
    }
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": contract.VERSION, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    crd = {
        "metadata": {"name": f"{contract.PLURAL}.{FOREIGN_GROUP}"},
        "spec": {"group": FOREIGN_GROUP, "names": names, "scope": "Namespaced"},
    }
    crd["spec"]["versions"] = [version]
    team.server.install_crd(crd)
    try:
        path = f"/apis/{FOREIGN_GROUP}/{contract.VERSION}/namespaces/{team.namespace}/{contract.PLURAL}"
        foreign = team.server.request(
            "POST",
            path,
            {
                "apiVersion": f"{FOREIGN_GROUP}/{contract.VERSION}",
                "kind": contract.KIND,
                "metadata": {"name": "digits"},
            },
        )
        operator = leading(installation, team)
        team.apply("ours")
        team.has_pods("ours-0", "ours-1")
        after = team.server.request("GET", f"{path}/digits")
        assert after["metadata"]["resourceVersion"] == foreign["metadata"]["resourceVersion"]
        assert not [line for line in operator.lines() if line["level"] in ("warning", "error")]
    finally:
        team.server.request(
            "DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
        )
