"""The pods of a job, sorted once a turn; the rules read these buckets and never the raw list.

Called by `turn.py`. Decides nothing but what belongs where.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainjob_api.v1alpha1 import TrainJobStatus
from trainjob_operator.core import make
from trainjob_operator.core.model import AgentView, Observed, PodPhase, PodView
from trainjob_operator.core.pods.naming import parse_slots, pod_name

SLOT_LIMIT = 10**9
"""No slot of ours is ever as high; a label that says so is not ours."""


@dataclass(frozen=True, kw_only=True)
class Children:
    """Pods by what they are to this job. Listed: their slot stands in status and they bear its name."""

    listed: tuple[int, ...]
    """The slots in status."""
    live: Mapping[int, PodView]
    """Listed, neither finished nor going away."""
    ended: Mapping[int, PodView]
    """Listed, finished by themselves or crashing again and again."""
    leaving: Mapping[int, PodView]
    """Listed, somebody deletes them."""
    went: Mapping[int, PodView]
    """Members whose pods are gone, as they were last, where the watch told it."""
    absent: frozenset[int]
    """Listed slots without a pod, their names free."""
    stale: tuple[PodView, ...]
    """Ours, not listed, holding what they were given, not yet being deleted."""
    parting: tuple[PodView, ...]
    """Ours, not listed, holding what they were given: the stale ones and those on their way out."""
    finished: tuple[PodView, ...]
    """Ours, all their containers finished, listed or not."""
    highest: int
    """The highest slot of any pod with the job's name label, foreign ones included; -1: there is none."""
    agents: Mapping[str, AgentView]
    """What agents said, by the UID of their pod; only of our own pods."""

    def agent(self, pod: PodView | None) -> AgentView | None:
        """What the agent in this pod last said."""
        return self.agents.get(pod.uid) if pod is not None else None

    def digest(self, members: Sequence[int]) -> str | None:
        """Of the UIDs of these slots' pods in order; None when one has no pod. A name may be borne by two pods in
        turn, a UID is not.
        """
        pods = [self.live.get(slot) or self.ended.get(slot) or self.leaving.get(slot) for slot in members]
        if any(pod is None for pod in pods):
            return None
        return hashlib.sha256(" ".join(pod.uid for pod in pods if pod is not None).encode()).hexdigest()[:16]

    def speaking(self, slot: int) -> AgentView | None:
        """What the agent of a slot's pod last said, the pod alive, finished or on its way out."""
        return self.agent(self.live.get(slot) or self.ended.get(slot) or self.leaving.get(slot))


def is_finished(pod: PodView) -> bool:
    """Whether the trainer container has ended for good."""
    return pod.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)


def holds_resources(pod: PodView) -> bool:
    """Whether a container of the pod still runs, or is to run: what it asked for is taken on its node."""
    return pod.lingers or not is_finished(pod)


def is_over(pod: PodView) -> bool:
    """Whether nothing can be expected of the pod any more."""
    return pod.crashing or is_finished(pod)


def is_announced(pod: PodView) -> bool:
    """Whether Kubernetes says that the pod, or its node, is about to be taken away."""
    return not pod.deleting and (pod.disrupted or pod.notice is not None)


def sort_children(observed: Observed) -> Children:
    """Put every pod into its bucket. Plain pods have no agents, whoever claims to be one."""
    status, name = observed.job.status, observed.job.metadata.name
    listed = parse_slots(status.slots)
    slots = frozenset(listed)
    ours = [pod for pod in observed.pods if pod.owned]
    placed: dict[int, PodView] = {}
    for pod in ours:
        # A name exists once in a cluster; should a list show it twice, the living one is meant.
        if (
            pod.slot in slots
            and pod.name == pod_name(name, pod.slot)
            and (pod.slot not in placed or placed[pod.slot].deleting)
        ):
            placed[pod.slot] = pod
    uids = {pod.uid for pod in placed.values()}
    # Of somebody else, or ours with a label that tells another slot than its name.
    taken = {pod.name for pod in observed.pods if pod.uid not in uids}
    parting = tuple(pod for pod in ours if pod.uid not in uids and holds_resources(pod))
    now = make.of_job(observed.job)
    by_uid = {pod.uid: pod for pod in ours if not make.is_plain(made_of(status, pod, now))}
    return Children(
        listed=listed,
        live={slot: pod for slot, pod in placed.items() if not pod.deleting and not is_over(pod)},
        ended={slot: pod for slot, pod in placed.items() if not pod.deleting and is_over(pod)},
        leaving={slot: pod for slot, pod in placed.items() if pod.deleting},
        went=observed.went,
        absent=frozenset(slot for slot in slots if slot not in placed and pod_name(name, slot) not in taken),
        stale=tuple(pod for pod in parting if not pod.deleting),
        parting=parting,
        finished=tuple(pod for pod in ours if not holds_resources(pod)),
        highest=max((pod.slot for pod in observed.pods if pod.slot < SLOT_LIMIT), default=-1),
        agents={
            view.pod_uid: view
            for slot, view in observed.agents.items()
            if view.pod_uid in by_uid and by_uid[view.pod_uid].slot == slot
        },
    )


def made_of(status: TrainJobStatus, pod: PodView, now: str) -> str:
    """What a pod was made of; `now`: what pods are made of at present.

    One that does not say was made for the attempt that took it as it was.
    """
    attempt = status.attempt
    taken = attempt.make if attempt is not None and pod.slot in parse_slots(attempt.members) else None
    return pod.make or taken or now
