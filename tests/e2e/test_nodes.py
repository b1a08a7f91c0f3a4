"""Nodes that are lost: their workers are replaced elsewhere, and what comes back from the dead changes nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from support import e2e, gated, outages, release
from support.release import operator

__all__ = ["operator"]

pytestmark = [
    pytest.mark.alone,
    pytest.mark.usefixtures("operator", "all_nodes"),
    pytest.mark.timeout(1200),
    pytest.mark.skipif("not e2e.has_own_nodes()", reason="the nodes of this cluster are not this machine's containers"),
]

Figure = Callable[[str, str], None]

PATIENT = [
    {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3600}
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
]
"""Kubernetes itself gives up no pod of a dead node here, however slow the machine is."""
SPREAD = {"topologyKey": "kubernetes.io/hostname", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}


def spread(name: str, namespace: str, *arguments: str) -> dict[str, Any]:
    """Two workers, each on a node of its own while there are two."""
    document = gated.looping(name, namespace, *arguments)
    constraint = {**SPREAD, "labelSelector": {"matchLabels": {"trainjob.dev/job": name}}}
    document["spec"]["template"]["spec"]["topologySpreadConstraints"] = [constraint]
    document["spec"]["template"]["spec"]["tolerations"] = PATIENT
    return document


def started(namespace: str) -> dict[str, dict[str, Any]]:
    """The job, standing before step 5; its pods by node."""
    outages.wait_for_replicas()
    e2e.restore_nodes()  # the wish to spread is a soft one: while a node takes no pods both would be on the other
    gated.code(namespace)
    e2e.apply(spread("count", namespace, "--gates", "5,8", "--steps", "10"))
    gated.wait_for_step("count", namespace, 4)
    e2e.eventually(
        "the last checkpoint is stored",
        lambda: e2e.job("count", namespace)["status"].get("checkpoint", {}).get("latest", {}).get("step") == 5,
    )
    placed = {pod["spec"]["nodeName"]: pod for pod in e2e.pods("count", namespace)}
    assert len(placed) == 2, "one worker on each node"
    return placed


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def replacement(namespace: str) -> dict[str, Any] | None:
    return next((pod for pod in e2e.pods("count", namespace) if pod["metadata"]["name"] == "count-2"), None)


def test_the_worker_of_a_lost_node_is_replaced_elsewhere(namespace: str, figure: Figure) -> None:
    """By the word of its agent's silence and of a second witness: Kubernetes does not give the pod up."""
    placed = started(namespace)
    victim = next(node for node in placed if node != leading_node())
    lost, stays = placed.pop(victim), next(iter(placed.values()))
    killed_at = time.time()
    e2e.kill_node(victim)
    made = e2e.eventually("a replacement is there", lambda: replacement(namespace))
    assert made is not None
    made_at = moment(made["metadata"]["creationTimestamp"])
    failure = e2e.job("count", namespace)["status"]["lastFailure"]
    assert (failure["reason"], failure["pod"], failure["node"]) == (
        "WorkerUnreachable",
        lost["metadata"]["name"],
        victim,
    )
    assert re.search(
        rf"^the agent of {failure['pod']} has been silent for \d+ s, and (its node {victim} "
        rf"|{stays['metadata']['name']} cannot reach it)",
        failure["message"],
    )
    left = e2e.get("pod", lost["metadata"]["name"], namespace)
    assert "DisruptionTarget" not in {entry["type"] for entry in left["status"]["conditions"]}, (
        "Kubernetes has not given it up by itself"
    )
    begun = gated.wait_for_starts("count", namespace, 2, 2)
    running_at = moment(e2e.job("count", namespace)["status"]["attempt"]["runningAt"])
    figure(
        "node killed until its worker is replaced, until all ranks run again",
        f"{made_at - killed_at:.0f} s, {running_at - killed_at:.0f} s",
    )
    figure("why", failure["message"])
    assert gated.lost(begun) == 0 and begun[0].step == 5
    # Its peer's word comes before the node is NotReady. The pod asks for another node, but the job's own wish to spread
    # may weigh more: then that worker is lost as well, and the next one is not put on a node that is known to be dead.
    members = e2e.job("count", namespace)["status"]["attempt"]["members"].replace("-", ",").split(",")
    assert {e2e.get("pod", f"count-{slot}", namespace)["spec"]["nodeName"] for slot in members} == {
        stays["spec"]["nodeName"]
    }
    assert e2e.uids("count", namespace)[stays["metadata"]["name"]] == stays["metadata"]["uid"], (
        "the other worker stayed"
    )
    job = e2e.job("count", namespace)
    assert gated.counted(job) == 0 and job["status"]["failures"]["preemptions"] == 1, "no fault of the script"
    assert "deletionTimestamp" in e2e.get("pod", lost["metadata"]["name"], namespace)["metadata"], (
        "deleted, and not by force: its node is to confirm it"
    )
    gated.open_gate("count", namespace, 5)
    e2e.restore_nodes()
    e2e.eventually(
        "what was left of the lost pod is gone",
        lambda: gated.is_gone("pod", lost["metadata"]["name"], namespace),
    )
    gated.open_gate("count", namespace, 8)
    e2e.wait_for_condition("count", namespace, "Complete")
    assert e2e.job("count", namespace)["status"]["attempt"]["number"] == 2
    gated.wait_for_steps("count", namespace, range(5, 10), attempt=2)


def test_a_worker_and_an_operator_that_wake_up_after_they_were_replaced_change_nothing(
    namespace: str, figure: Figure
) -> None:
    """The node is frozen with all its processes and declared dead by hand; then it goes on in the middle of a step."""
    placed = started(namespace)
    node, leader = leading_node(), release.leader()
    assert {pod["spec"]["nodeName"] for pod in release.pods()} > {node}, "a replica on another node can take over"
    zombie = placed[node]["metadata"]
    e2e.kubectl("cordon", node)
    try:
        with outages.frozen(node):
            frozen_at = time.time()
            e2e.kubectl("delete", "pod", zombie["name"], "-n", namespace, "--grace-period=0", "--force")
            e2e.eventually("another replica leads", lambda: release.leader() not in ("", leader))
            figure("leader frozen to the next one", f"{time.time() - frozen_at:.1f} s")
            assert gated.lost(gated.wait_for_starts("count", namespace, 2, 2)) == 0
            figure("node frozen and pod deleted to the replacement's ranks", f"{time.time() - frozen_at:.1f} s")
            gated.open_gate("count", namespace, 5)
            gated.wait_for_step("count", namespace, 7, attempt=2)
    finally:
        e2e.kubectl("uncordon", node)
    # It stood before an open gate: its rank takes step 5 as soon as it wakes up, and reports it.
    e2e.eventually("the kubelet has ended it", lambda: not processes_of(node, zombie["uid"]))
    assert release.leader() != leader, "who was frozen leads no more"
    after = e2e.job("count", namespace)
    assert (after["status"]["attempt"]["number"], gated.counted(after)) == (2, 0), "its node was cordoned"
    assert after["status"]["failures"]["preemptions"] == 1
    noted = e2e.in_pod("count-2", namespace, "sh", "-c", f"cat {gated.FOLDER}/acknowledged-*").split()
    assert noted.count("5") == 2, "acknowledged to the two ranks of attempt 2 alone"
    gated.open_gate("count", namespace, 8)
    e2e.wait_for_condition("count", namespace, "Complete")
    gated.wait_for_steps("count", namespace, range(5, 10), attempt=2)


def leading_node() -> str:
    return str(e2e.get("pod", release.leader(), release.NAMESPACE)["spec"]["nodeName"])


def processes_of(node: str, pod_uid: str) -> list[str]:
    """Process ids in a node that carry the pod's UID in their environment."""
    return outages.on_node(
        node, "sh", "-c", f"grep -lz '^TRAINJOB_POD_UID={pod_uid}$' /proc/[0-9]*/environ 2>/dev/null || true"
    ).split()
