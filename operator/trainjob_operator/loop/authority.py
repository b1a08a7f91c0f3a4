"""Pods that trust an authority which this installation has no more: their agents refuse to speak with the operator.

The Secret with the CA was deleted, and another was made. Such pods are known by what was put into them. They count as
made of something else than pods are made of now: what trains goes on, and the next start replaces them, whichever way
it comes about. Used by the reconciler.
"""

from __future__ import annotations

from dataclasses import replace

from trainjob_api import contract
from trainjob_operator.core.lifecycle import name_pods
from trainjob_operator.core.make import OTHER_AUTHORITY, is_strange
from trainjob_operator.core.model import Event, Observed, PodView
from trainjob_operator.manifests import authority_digest


def with_strangers(pods: tuple[PodView, ...], ca: str | None) -> tuple[PodView, ...]:
    """The pods; those that trust another CA than this (PEM) with a make that no start takes."""
    if ca is None:
        return pods
    ours = authority_digest(ca)
    if all(pod.authority in (None, ours) for pod in pods):
        return pods
    return tuple(
        pod if pod.authority in (None, ours) else replace(pod, make=f"{pod.make or ''}{OTHER_AUTHORITY}")
        for pod in pods
    )


def strangers(observed: Observed) -> tuple[PodView, ...]:
    """Those that `with_strangers` has found, and that people should know of."""
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
        "was deleted. What trains there goes on, but its agents cannot speak with the operator: no failure and no end "
        f"is heard before the pod ends. `tj restart {name} -n {namespace}` replaces these pods now; else they are "
        "replaced at the next start",
    )
