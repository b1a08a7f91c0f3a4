"""What a node tells about a pod on it: that it is being taken away, or that it has fallen silent.

Pure functions, called by `observe.py`, which reads nodes only of pods that were lost or are not heard, and by the
watches (`seen_node`).
"""

from __future__ import annotations

from dataclasses import replace

from trainjob_operator.cluster import Manifest, NodeSeen
from trainjob_operator.core.model import PodPhase, PodView
from trainjob_operator.words import bounded, time_of

LEAVING_TAINTS = (
    "node.kubernetes.io/out-of-service",
    "node.cloudprovider.kubernetes.io/shutdown",
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",  # before v1
    "karpenter.sh/interruption",
    "cloud.google.com/impending-node-termination",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination",
)
"""Taints of nodes that somebody is about to take away; one with effect NoExecute takes the pods at once. Others mark a
node that may go (DeletionCandidateOfClusterAutoscaler, a rebalance recommendation) or a kind of nodes (spot pools).
"""


def on_node(pod: PodView, node: Manifest) -> PodView:
    """The pod, knowing its node: one that is being taken away takes its pods along.

    A container that ended by an exit code of its own did so itself, whatever becomes of its node.
    """
    why = _leaving(node)
    by_itself = pod.phase is PodPhase.FAILED and not pod.deleting and pod.exit_code not in (None, 137, 143)
    if why is None or pod.disrupted or by_itself or pod.reason == "OOMKilled":
        return pod
    return replace(pod, disrupted=True, disruption=f"its node {node['metadata']['name']} is {why}")


def on_silent_node(pod: PodView, node: Manifest | None) -> PodView:
    """The pod, knowing what stands of the node that it is on; None: there is no such node. The node's word is newer
    than its mark on the pod.
    """
    if node is None:
        return replace(pod, doubt=f"its node {pod.node} is gone", doubt_since=None)
    conditions = {condition.get("type"): condition for condition in (node.get("status") or {}).get("conditions") or ()}
    ready = conditions.get("Ready")
    if ready is None:
        return pod
    if ready.get("status") == "True":
        return replace(pod, doubt=None) if pod.doubt_since is None else pod
    why = f" ({ready['reason']})" if ready.get("reason") else ""
    return replace(pod, doubt=bounded(f"its node {pod.node} is NotReady{why}"), doubt_since=None)


def why_taken(name: str, node: Manifest | None) -> str | None:
    """Why a pod that is gone was taken away, by the node that it was on: that is cordoned, about to go, gone (None), or
    not Ready. None: it stands well, and somebody has deleted the pod.
    """
    if node is None:
        return f"its node {name} is gone"
    conditions = {condition.get("type"): condition for condition in (node.get("status") or {}).get("conditions") or ()}
    ready = conditions.get("Ready")
    why = _leaving(node) or ("NotReady" if ready is not None and ready.get("status") != "True" else None)
    return f"its node {name} is {why}" if why else None


def announced(node: Manifest) -> str | None:
    """Who says that the node is about to be taken away, with all that runs there; None: nobody. That it is cordoned
    means nothing for what runs there, and a taint of another kind takes its pods at once, or never.
    """
    taints = (node.get("spec") or {}).get("taints") or ()
    key = next((taint.get("key") for taint in taints if taint.get("key") in LEAVING_TAINTS), None)
    return f"its node {node['metadata']['name']} is {bounded(f'tainted: {key}')}" if key is not None else None


def seen_node(node: Manifest) -> NodeSeen:
    """What a watch tells of a node that is there."""
    return NodeSeen(node["metadata"]["name"], announced(node), time_of(node["metadata"].get("creationTimestamp")))


def _leaving(node: Manifest) -> str | None:
    spec = node.get("spec") or {}
    if spec.get("unschedulable"):
        return "cordoned"
    taints = [
        taint
        for taint in spec.get("taints") or ()
        if taint.get("effect") == "NoExecute" or taint.get("key") in LEAVING_TAINTS
    ]
    return bounded(f"tainted: {taints[0].get('key')}") if taints else None
