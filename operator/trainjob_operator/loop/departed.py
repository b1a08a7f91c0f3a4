"""Pods that are gone, as they were last: the watch's word on a deletion carries the object, and of a pod that a read
does not find any more what was told of it before.

Kept by `known.py` through gaps and doubts, since no read brings it back: a pod that was evicted and is gone before any
look tells here alone that it was; one that ended before it was deleted, how. Only pods of slots that the job still has,
or that are members of its attempt, are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.cluster import JobKey, Manifest
from trainjob_operator.core.children import is_finished
from trainjob_operator.core.model import PodView
from trainjob_operator.core.pods.naming import parse_slots, pod_name
from trainjob_operator.manifests import owner_of, pod_view_of


class _Gone(NamedTuple):
    owner: str | None
    """UID of the job."""
    pod: PodView
    told: bool
    """That it is gone; else it was there when it was told of last."""


class Departed:
    """Of all jobs."""

    def __init__(self) -> None:
        self._gone: dict[JobKey, dict[str, _Gone]] = {}
        """By pod name: a name is borne again by the next pod of its slot, if there ever is one."""

    def note(self, key: JobKey, manifest: Manifest) -> None:
        """The watch shows a pod of this job no more, and it was so last. One that was deleted without a grace period
        may show so only by what struck it before; one that shows nothing may run, and have lost its label.
        """
        owner = owner_of(manifest)
        pod = pod_view_of(manifest, key[1], owner or "")
        told = "deletionTimestamp" in manifest["metadata"] or pod.disrupted or is_finished(pod)
        self._gone.setdefault(key, {})[pod.name] = _Gone(owner, pod, told)

    def there(self, key: JobKey, manifest: Manifest, pod: PodView) -> None:
        """There is a pod of that name: this one, as it is now."""
        self._gone.setdefault(key, {})[pod.name] = _Gone(owner_of(manifest), pod, told=False)

    def names(self, key: JobKey) -> frozenset[str]:
        """Of pods that were deleted."""
        return frozenset(name for name, gone in self._gone.get(key, {}).items() if gone.told)

    def members(self, job: TrainJob) -> Mapping[int, PodView]:
        """Members of the running attempt, by slot: if they are gone, they were so last."""
        known, attempt = self._gone.get(job.key), job.status.attempt
        if not known or attempt is None or attempt.state != "Running":
            return {}
        found = {slot: known.get(pod_name(job.metadata.name, slot)) for slot in parse_slots(attempt.members)}
        return {slot: gone.pod for slot, gone in found.items() if gone is not None and gone.owner == job.metadata.uid}

    def keep(self, job: TrainJob) -> None:
        """Drop what the job has no use for any more."""
        known, attempt = self._gone.get(job.key), job.status.attempt
        if known is None:
            return
        slots = {*parse_slots(job.status.slots), *parse_slots(attempt.members if attempt is not None else "")}
        names = {pod_name(job.metadata.name, slot) for slot in slots}
        left = {name: gone for name, gone in known.items() if name in names}
        if left:
            self._gone[job.key] = left
        else:
            del self._gone[job.key]

    def forget(self, key: JobKey) -> None:
        """The job is gone, or is another's to look after."""
        self._gone.pop(key, None)
