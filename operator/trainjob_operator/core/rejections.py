"""What a kubelet says when it does not take a pod that was placed on its node: the scheduler knew less than the node.

Asked by `phrases.py` and by `ends/pod_ends.py`. Nothing of such a pod has run, and another node may take it. The words
are those of the kubelet's admission (pkg/kubelet/lifecycle, pkg/kubelet/cm); what it refuses everywhere (a sysctl, an
operating system) is none of them.
"""

from __future__ import annotations

from trainjob_operator.core.model import PodPhase, PodView

_NO_ROOM = "OutOf"
"""`OutOfcpu`, `OutOfpods`, `OutOfnvidia.com/gpu`: somebody else was quicker, or a device is gone."""
_WORDS = frozenset({"NodeAffinity", "NodePorts", "NodeShutdown", "TopologyAffinityError", "UnexpectedAdmissionError"})


def is_refused_by_node(pod: PodView) -> bool:
    """Whether the pod has failed before any container of it was made, and by its node's doing."""
    if pod.phase is not PodPhase.FAILED or pod.exit_code is not None or pod.signal is not None:
        return False
    reason = pod.reason or ""
    return reason in _WORDS or reason.startswith(_NO_ROOM)
