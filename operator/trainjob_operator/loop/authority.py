"""Pods that trust an authority which this installation has no more: their agents refuse to speak with the operator.

The Secret with the CA was deleted, and another was made. Agents hear of it by an annotation of their pod, which they
see as a file. Pods of earlier versions have none, and some may not be patched: these count as made of something else
than pods are made of now: what trains goes on, and the next start replaces them, whichever way it comes about. Used by
the reconciler.
"""

from __future__ import annotations

from dataclasses import replace

from trainjob_api import contract
from trainjob_operator.cluster import Cluster, ClusterError, Conflict, JobKey, Manifest, NotFound, Rejected
from trainjob_operator.core.children import is_finished
from trainjob_operator.core.lifecycle import name_pods
from trainjob_operator.core.make import OTHER_AUTHORITY, is_strange
from trainjob_operator.core.model import Event, Observed, PodView
from trainjob_operator.manifests import authority_digest

TOLD_AT_ONCE = 64
"""Pods that one turn tells; the others come with the next."""


REFUSED_REST_S = 7200.0
"""A pod whose patch was refused (a right that is missing, an admission policy) is tried again after so long."""
UNANSWERED_REST_S = 30.0
"""A job, when the API server or a webhook before it did not answer."""


class Authority:
    """Who could be told, of all jobs; what a new leader does not know it finds out anew."""

    def __init__(self) -> None:
        self._refused: dict[JobKey, dict[str, float]] = {}
        """UIDs of pods that the API server lets nobody tell, and when they are tried again."""
        self._rests_until: dict[JobKey, float] = {}

    def with_strangers(self, key: JobKey, pods: tuple[PodView, ...], ca: str | None) -> tuple[PodView, ...]:
        """The pods; those that trust another CA than this (PEM) and cannot be told, with a make that no start takes."""
        if ca is None:
            return pods
        ours, deaf = authority_digest(ca), self._refused.get(key, {})
        if all(pod.authority in (None, ours) for pod in pods):
            return pods
        return tuple(
            pod
            if pod.authority in (None, ours) or (pod.authority_follows and pod.uid not in deaf)
            else replace(pod, make=f"{pod.make or ''}{OTHER_AUTHORITY}")
            for pod in pods
        )

    async def tell(
        self, cluster: Cluster, observed: Observed, ca: str | None, now: float
    ) -> tuple[list[Manifest], float | None]:
        """Tell agents that can hear of it which CA is the coordinator's now; their pods as they are then, and the
        seconds until another turn is worth it. Their kubelets take a minute or two to bring it to them. Raises nothing
        of the cluster's: what trains is looked after all the same.
        """
        key = observed.job.key
        late, deaf = _late(observed, ca), self._refused.get(key, {})
        due = [pod for pod in late if deaf.get(pod.uid, now) <= now]
        if not late:
            self.forget(key)
        if not due or now < self._rests_until.get(key, now):
            return [], None
        told, news = [], False
        for pod in due[:TOLD_AT_ONCE]:
            patch = {"metadata": {"annotations": {contract.ANNOTATION_AUTHORITY: ca}}}
            try:
                told.append(await cluster.patch_pod(key[0], pod.name, pod.uid, patch))
                news = deaf.pop(pod.uid, None) is not None or news
            except (NotFound, Conflict):
                continue  # it is gone
            except Rejected:
                news = news or pod.uid not in deaf
                self._refused.setdefault(key, deaf)[pod.uid] = now + REFUSED_REST_S
            except ClusterError:
                self._rests_until[key] = now + UNANSWERED_REST_S
                return told, UNANSWERED_REST_S
        return told, 0.0 if news or len(due) > TOLD_AT_ONCE else None

    def forget(self, key: JobKey) -> None:
        """All are told, or the job is gone."""
        self._refused.pop(key, None)
        self._rests_until.pop(key, None)


def _late(observed: Observed, ca: str | None) -> list[PodView]:
    """Pods that trust another CA than this and could hear of it."""
    ours = None if ca is None else authority_digest(ca)
    if ours is None or observed.job.status.finished:
        return []
    return [
        pod
        for pod in observed.pods
        if pod.owned and pod.authority_follows and pod.authority != ours and not pod.deleting and not is_finished(pod)
    ]


def strangers(observed: Observed) -> tuple[PodView, ...]:
    """Those that `Authority.with_strangers` has found, and that people should know of."""
    finished = observed.job.status.finished
    return tuple(
        pod for pod in observed.pods if pod.owned and not pod.deleting and not finished and is_strange(pod.make)
    )


def authority_lost(observed: Observed, pods: tuple[PodView, ...]) -> Event:
    """What people should know, and do."""
    namespace, name = observed.job.key
    return Event(
        "Warning",
        contract.REASON_AUTHORITY_LOST,
        f"the coordinator's CA is another one than {name_pods([pod.name for pod in pods])} trust: the Secret with it "
        "was deleted. Training there continues, but its agents cannot speak with the operator: no failure and no "
        f"end is heard before the pod ends. `tj restart {name} -n {namespace}` replaces these pods now; else they are "
        "replaced at the next start",
    )
