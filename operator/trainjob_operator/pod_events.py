"""What the events about a pod tell: why it does not start, who took it away, which node it was on.

Pure functions, called by `observe.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from trainjob_operator.cluster import Manifest
from trainjob_operator.core.evictions import over_own_limit
from trainjob_operator.core.model import PodView
from trainjob_operator.core.moments import aware
from trainjob_operator.words import bounded, time_of

STARTING_WARNINGS = (
    "FailedMount",
    "FailedAttachVolume",
    "FailedMapVolume",
    "FailedCreatePodSandBox",
    "NetworkNotReady",
)
"""Events about a pod that say what no field of it says."""
TAKEN_AWAY = ("Preempted", "TaintManagerEviction", "Evicted", "NodeNotReady")
"""Events about a pod that say that it was taken away (scheduler, taint eviction, kubelet), or that its node had
fallen silent. An eviction for a limit of the pod's own is none of them.
"""
CALLED_OFF = "Cancelling deletion"
"""How the taint eviction's event begins when it lets a pod stay after all; its reason is the same."""
_ASSIGNED = re.compile(r"Successfully assigned \S+ to (\S+)")
"""The scheduler's event."""


def with_warnings(pod: PodView, events: Iterable[Manifest]) -> PodView:
    """The pod, with the newest Warning that tells why it does not start; a time-out's text tells less than what
    timed out.
    """
    telling = [event for event in events if event.get("reason") in STARTING_WARNINGS]
    telling.sort(
        key=lambda event: (
            "timed out" not in str(event.get("message")),
            str(event.get("lastTimestamp") or event.get("eventTime") or ""),
        )
    )
    if not telling:
        return pod
    return replace(
        pod, reason=bounded(telling[-1].get("reason")), message=bounded(telling[-1].get("message")), from_event=True
    )


def disruption_in(events: Iterable[Manifest], since: datetime) -> str | None:
    """Of the events about a pod that is gone, from that moment on: who took it away. A pod of an earlier job may
    have had its name before.
    """
    told = [
        (at, event)
        for event in events
        if event.get("reason") in TAKEN_AWAY
        and over_own_limit(str(event.get("message"))) is None
        and (at := _event_time(event)) is not None
        and aware(at) >= aware(since)
    ]
    told.sort(key=lambda entry: aware(entry[0]))
    if not told or str(told[-1][1].get("message")).startswith(CALLED_OFF):
        return None
    return bounded(f"{told[-1][1].get('reason')}: {told[-1][1].get('message')}")


def node_in(events: Iterable[Manifest]) -> str | None:
    """Of the events about a pod that is gone: the node it was on, by what the kubelet there (its containers are being
    stopped) or the scheduler said last.
    """
    told = sorted(
        (aware(at), node)
        for event in events
        if (at := _event_time(event)) is not None and (node := _node_of_event(event)) is not None
    )
    return told[-1][1] if told else None


def _node_of_event(event: Manifest) -> str | None:
    source = event.get("source") or {}
    if source.get("component") == "kubelet" and source.get("host"):
        return bounded(str(source["host"]))
    found = _ASSIGNED.fullmatch(str(event.get("message"))) if event.get("reason") == "Scheduled" else None
    return bounded(found[1]) if found is not None else None


def _event_time(event: Manifest) -> datetime | None:
    return time_of(event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp"))
