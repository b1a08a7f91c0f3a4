"""Nodes that are about to be taken away: which those are, and what their pods are told."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from support.virtual_time import EPOCH, run_virtual
from trainjob_operator.cluster import Manifest, Mark, News, NodeSeen
from trainjob_operator.core.model import PodPhase, PodView
from trainjob_operator.k8s.kube import KubeCluster
from trainjob_operator.loop.leaving import CLOCKS_S, Leaving
from trainjob_operator.nodes import LEAVING_TAINTS, announced

WHY = "its node node-1 is tainted: karpenter.sh/disrupted"


def pod(slot: int, node: str, deleting: bool = False) -> PodView:
    uid = f"pod-{slot}"
    return PodView(slot=slot, name=f"digits-{slot}", uid=uid, phase=PodPhase.RUNNING, node=node, deleting=deleting)


def node(*keys: str, **spec: object) -> Manifest:
    taints = [{"key": key, "effect": "NoSchedule"} for key in keys]
    return {"metadata": {"name": "node-1"}, "spec": {"taints": taints, **spec}}


@pytest.mark.parametrize("key", LEAVING_TAINTS)
def test_taints_of_those_who_take_nodes_away_announce_it(key: str) -> None:
    assert announced(node("gpu", key)) == f"its node node-1 is tainted: {key}"


@pytest.mark.parametrize("key", ["DeletionCandidateOfClusterAutoscaler", "cloud.google.com/gke-spot", "gpu"])
def test_a_node_that_may_go_or_is_of_a_kind_announces_nothing(key: str) -> None:
    assert announced(node(key)) is None


def test_a_cordon_alone_announces_nothing() -> None:
    assert announced(node("node.kubernetes.io/unschedulable", unschedulable=True)) is None
    assert announced({"metadata": {"name": "node-1"}}) is None


def test_pods_of_such_a_node_are_noticed_unless_they_go_already() -> None:
    leaving = Leaving()
    pods = (pod(0, "node-1"), pod(1, "node-2"), pod(2, "node-1", deleting=True))
    assert leaving.with_notices(pods) == pods
    assert leaving.told(NodeSeen("node-1", WHY), EPOCH) and not leaving.told(NodeSeen("node-1", WHY), EPOCH)
    assert [pod.notice for pod in leaving.with_notices(pods)] == [WHY, None, None]
    assert leaving.told(NodeSeen("node-1", None), EPOCH) and leaving.with_notices(pods) == pods


def test_a_pod_that_comes_to_such_a_node_all_the_same_is_left_alone() -> None:
    """It tolerates the taint: to replace it brings the next one there, and the job would never train."""
    leaving, late = Leaving(), timedelta(seconds=2 * CLOCKS_S)

    def noticed(came: timedelta | None) -> bool:
        one = replace(pod(0, "node-1"), scheduled_at=None if came is None else EPOCH + came)
        return leaving.with_notices((one,))[0].notice is not None

    leaving.told(NodeSeen("node-1", WHY), EPOCH)
    assert noticed(None) and noticed(-late) and noticed(timedelta(seconds=1)) and not noticed(late)
    leaving.told(NodeSeen("node-1", WHY + ", too"), EPOCH + 2 * late)
    assert not noticed(late), "it stood before that"
    leaving.begin()
    leaving.told(NodeSeen("node-1", WHY), EPOCH + 2 * late)
    assert noticed(-late) and not noticed(late), "nor is it another one because the watch began anew"
    leaving.told(NodeSeen("node-1", None), EPOCH + 2 * late)
    leaving.told(NodeSeen("node-1", WHY), EPOCH + 2 * late)
    assert noticed(late), "this is another one"


def test_a_watch_that_begins_later_hears_of_them_too() -> None:
    """Nodes are told by a list of their own, which may come before."""

    class Empty:
        async def pages(self, *_: object) -> object:
            if _:
                return
            yield

    async def main() -> None:
        cluster = KubeCluster(Empty())  # type: ignore[arg-type]
        cluster.tell(NodeSeen("node-1", WHY))
        cluster.tell(NodeSeen("node-2", WHY))
        cluster.tell(NodeSeen("node-2", None))
        heard: list[News] = []
        async for news in cluster.watch():
            heard.append(news)
            if news is Mark.COMPLETE:
                cluster.tell(NodeSeen("node-1", None))
            elif heard[-2:-1] == [Mark.COMPLETE]:
                break
        assert heard == [Mark.BEGIN, NodeSeen("node-1", WHY), Mark.COMPLETE, NodeSeen("node-1", None)]

    run_virtual(asyncio.wait_for(main(), 10))
