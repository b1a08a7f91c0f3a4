"""What is known of one job and its pods: small while it rests, newer states in place of older ones. See `known.py`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from trainjob_api.v1alpha1 import Metadata, TrainJob
from trainjob_operator.cluster import Manifest, Seen
from trainjob_operator.core.children import is_finished
from trainjob_operator.core.model import PodView
from trainjob_operator.core.pods.naming import parse_slots
from trainjob_operator.loop.observe import Served, Sight, in_order
from trainjob_operator.manifests import pod_view_of, read_job

READ_AGAIN_S = 7200.0
"""A job whose pods were listed so long ago is read again at its next turn: a net below the watch."""
SERVICE_FRESH_S = 10.0
"""A Service that was read so recently need not be read again before an attempt begins."""


@dataclass(frozen=True)
class _Pod:
    version: int
    view: PodView


@dataclass
class KnownJob:
    """What is known of one job, the one with this UID."""

    uid: str
    version: int
    wish: int
    """Of what people may want of the job, a hash: our own writes leave it as it is."""
    stored: bytes = b""
    """The job as JSON, a tenth of what it takes as objects; empty: only `job` is known."""
    at_rest: bool = False
    """It was told to be finished or suspended."""
    job: TrainJob | None = None
    """The same, read; of a finished job only while its turn runs."""
    pods: dict[str, _Pod] = field(default_factory=dict)
    """By UID."""
    listed_at: float | None = None
    """When `pods` were all there are; None: they may not be."""
    left: set[int] = field(default_factory=set)
    """Slots whose pods were told to be gone since then, and had been deleted or had ended: no read would find them. One
    that shows neither may run on without its label.
    """

    def put(self, name: str, manifest: Manifest) -> PodView | None:
        """The pod, if it is newer than what is known of it."""
        metadata = manifest["metadata"]
        version, before = version_of(metadata), self.pods.get(metadata["uid"])
        if before is not None and before.version >= version:
            return None
        view = pod_view_of(manifest, name, self.uid)
        self.pods[metadata["uid"]] = _Pod(version, view)
        self.left.discard(view.slot)
        return view

    def drop(self, name: str, manifest: Manifest) -> bool:
        """The pod is told to be gone, and was so last; whether it was known."""
        metadata = manifest["metadata"]
        known, last = self.pods.pop(metadata["uid"], None), pod_view_of(manifest, name, self.uid)
        is_over = known is not None and last.owned and (last.deleting or is_finished(last))
        self.left = self.left | {last.slot} if is_over else self.left - {last.slot}
        return known is not None

    def read(self) -> TrainJob:
        """The job. Raises UnreadableJob."""
        if self.job is None:
            self.job = read_job(json.loads(self.stored))
        return self.job

    def sight(
        self,
        now: float,
        went: Callable[[TrainJob, Iterable[PodView]], Mapping[int, PodView]],
        served: Callable[[TrainJob, float], Served],
    ) -> Sight | None:
        """The job and its children; None: they must be read. Raises UnreadableJob."""
        job = self.read()
        if self.listed_at is None:
            return None
        pods = in_order(pod.view for pod in self.pods.values())
        finished = job.status.finished
        if not finished:
            theirs = self.left | {pod.slot for pod in pods if pod.owned}
            complete = all(slot in theirs for slot in parse_slots(job.status.slots))
            if now - self.listed_at >= READ_AGAIN_S or not complete:
                return None
        found = served(job, now)
        return Sight(
            job=job,
            pods=pods,
            service=found.service,
            service_age_s=0.0 if finished else found.age_s,
            went=went(job, pods),
        )


@dataclass
class Writing:
    """One status write under way. The watch may tell of it before it is answered, and that is no news: what is told of
    the job meanwhile and may be the write itself is judged once the answer is known. What people did (an edit, an
    annotation, a deletion) is heard at once, for a write may hang. A turn may begin while progress is written: of the
    two the first hears, and what is told after that is judged at once.
    """

    told: list[Seen] = field(default_factory=list)
    news: bool = False
    """Afterwards: somebody else wrote the job meanwhile; it wants a turn."""


def version_of(metadata: Manifest) -> int:
    """See `is_older`."""
    return int(metadata["resourceVersion"])


def wish_in(metadata: Manifest) -> int:
    annotations: dict[str, str] = metadata.get("annotations") or {}
    deleting = metadata.get("deletionTimestamp") is not None
    return hash((metadata.get("generation", 1), deleting, frozenset(annotations.items())))


def wish_of(metadata: Metadata) -> int:
    """The same, of a job that was read."""
    deleting = metadata.deletion_timestamp is not None
    return hash((metadata.generation, deleting, frozenset(metadata.annotations.items())))


def is_at_rest(manifest: Manifest) -> bool:
    """Of a job in whatever shape it is stored: others may have written it."""
    spec, status = manifest.get("spec"), manifest.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    ended = any(
        isinstance(condition, dict)
        and condition.get("type") in ("Complete", "Failed")
        and condition.get("status") == "True"
        for condition in (conditions if isinstance(conditions, list) else ())
    )
    return ended or (isinstance(spec, dict) and spec.get("suspend") is True)


def packed(manifest: Manifest) -> bytes:
    return json.dumps(manifest, separators=(",", ":")).encode()
