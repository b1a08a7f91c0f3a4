"""What is true of a worker by its kind: with an agent in its pod, or without one.

`Turn.kind` says which of the two a turn is about, and any rule may ask it. These are facts; what a group of such
workers does is asked of `groups/`.
"""

from __future__ import annotations

from typing import Protocol

from trainjob_api import contract, defaults
from trainjob_api.v1alpha1 import Attempt, TrainJobSpec
from trainjob_operator.core import make
from trainjob_operator.core.children import Children
from trainjob_operator.core.model import PodPhase, PodView
from trainjob_operator.core.pods.naming import positions

SIGNALS = range(129, 129 + 64)
"""Exit codes by which a shell tells of a signal."""


class Kind(Protocol):
    """Stateless."""

    speaks: bool
    """An agent speaks for it: that none does for a while means something."""
    begins_before_pods: bool
    """Its attempt is committed before its pods are made: a member without a pod may be still to come."""
    agent_exits: frozenset[int]
    """Exit codes of its trainer container that are an agent's word for itself: no rule of the user's is about them."""
    blameless_exits: frozenset[int]
    """Exit codes by which a member's container went without a failure of its own."""
    kill_grace_s: int | None
    """Grace of its pod when the others of its group failed; None: the pod's own."""

    def processes(self, spec: TrainJobSpec) -> int:
        """Ranks in its pod."""
        ...

    def has_succeeded(self, attempt: Attempt, kids: Children, slot: int) -> bool:
        """Whether a member's pod tells that it has ended with success, also where that is gone by now."""
        ...

    def pod_that_counts(self, kids: Children, slot: int) -> PodView | None:
        """Its pod, if that still counts among those that are there."""
        ...

    def reason_of_end(self, pod: PodView) -> str:
        """What is said of its pod that ended by itself."""
        ...


class WithAgent:
    """See `Kind`."""

    speaks = True
    begins_before_pods = False
    agent_exits = frozenset(contract.AGENT_EXITS)
    # It found the run complete, or its coordinator for good out of reach: a fresh one finds out.
    blameless_exits = frozenset({contract.EXIT_OK, contract.EXIT_NO_COORDINATOR})
    kill_grace_s: int | None = None

    def processes(self, spec: TrainJobSpec) -> int:
        """As the spec says."""
        return defaults.processes_per_worker(spec)

    def has_succeeded(self, attempt: Attempt, kids: Children, slot: int) -> bool:
        """Its agent tells of that, not its pod."""
        return False

    def pod_that_counts(self, kids: Children, slot: int) -> PodView | None:
        """As long as it lives."""
        return kids.live.get(slot)

    def reason_of_end(self, pod: PodView) -> str:
        """Of the ranks its agent tells; here the agent itself went."""
        return contract.REASON_POD_FAILED


class Plain:
    """See `Kind`."""

    speaks = False
    begins_before_pods = True
    agent_exits: frozenset[int] = frozenset()
    blameless_exits: frozenset[int] = frozenset()
    kill_grace_s: int | None = 5

    def processes(self, spec: TrainJobSpec) -> int:
        """How many it starts in its pod is its own affair."""
        return 1

    def has_succeeded(self, attempt: Attempt, kids: Children, slot: int) -> bool:
        """By the kubelet's word, which status keeps."""
        if slot not in positions(attempt.members):
            return False
        pod = kids.ended.get(slot) or kids.leaving.get(slot) or kids.went.get(slot)
        return (pod is not None and pod.phase is PodPhase.SUCCEEDED) or slot in positions(attempt.succeeded)

    def pod_that_counts(self, kids: Children, slot: int) -> PodView | None:
        """Also when it has ended."""
        return kids.live.get(slot) or kids.ended.get(slot)

    def reason_of_end(self, pod: PodView) -> str:
        """The script's own exit code, if it has one."""
        if pod.exit_code is None and pod.signal is None:
            return contract.REASON_POD_FAILED
        return contract.REASON_SIGNAL if pod.signal is not None or pod.exit_code in SIGNALS else contract.REASON_EXIT


WITH_AGENT: Kind = WithAgent()
PLAIN: Kind = Plain()


def of(made: str | None) -> Kind:
    """Of a worker that was made so (`make.py`)."""
    return PLAIN if make.is_plain(made) else WITH_AGENT
