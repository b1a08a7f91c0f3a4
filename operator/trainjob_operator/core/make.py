"""What a pod is made of: one word for those fields of the spec that go into it.

An attempt is frozen: the word stands in status.attempt from its begin on, and on its pods as a label. An edit of such a
field takes effect at the next start, and no start has pods of two makes. Asked by `turn.py`, `naming.py` (the label)
and the rules of `size/`. The word is made of the job's own fields, not of the pod that they give: another version of
the operator, which gives another pod, restarts nothing.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from trainjob_api import defaults
from trainjob_api.v1alpha1 import S3, CheckpointSpec, StoreOfAttempt, TrainJob, TrainJobSpec, TrainJobStatus

OTHER_AUTHORITY = "~"
"""Ends the make of a pod that trusts another authority than ours: its agent can speak with nobody, in no attempt."""
_PLAIN = "plain-"
_PARTS = {"checkpoint", "rendezvous", "processes_per_worker", "runtime"}


def of(spec: TrainJobSpec) -> str:
    """`1f2e3d4c-5b6a7988`: digests of the template and of the rest; without the agent `plain-` stands before them.

    What has its default is left out: a field that a later version adds changes no word.
    """
    if spec.runtime.spare_workers:  # how many pods there are goes into none of them
        spec = spec.model_copy(update={"runtime": spec.runtime.model_copy(update={"spare_workers": 0})})
    rest = spec.model_dump(mode="json", by_alias=True, include=_PARTS, exclude_defaults=True, exclude_none=True)
    mode = "" if defaults.uses_agent(spec) else _PLAIN
    return f"{mode}{_digest(spec.template)}-{_digest(rest)}"


def as_made(job: TrainJob) -> TrainJob:
    """The job as its next pods are made. The worker that looks whether it is complete has an agent and the attempt's
    storage, whatever the spec says by now: without an agent nobody could look, and elsewhere no end record stands.
    """
    if job.status.verdict is None:
        return job
    spec = job.spec
    runtime = spec.runtime if defaults.uses_agent(spec) else spec.runtime.model_copy(update={"agent": "auto"})
    made = {"checkpoint": _checkpoint_of(spec, job.status), "runtime": runtime}
    return job.model_copy(update={"spec": spec.model_copy(update=made)})


def storage_of(spec: TrainJobSpec, status: TrainJobStatus) -> str | None:
    """Where the newest attempt's checkpoints go; before the first one, those of the next."""
    attempt = status.attempt
    if attempt is None or attempt.storage is None:
        return spec.checkpoint.storage
    return attempt.storage or None


def store_of(spec: TrainJobSpec) -> StoreOfAttempt | None:
    """How an attempt that begins now reaches its storage: what it keeps of `checkpoint.s3`."""
    if not _is_s3(spec.checkpoint.storage):
        return None
    given = spec.checkpoint.s3
    return StoreOfAttempt() if given is None else StoreOfAttempt(**given.model_dump())


def stays(spec: TrainJobSpec, status: TrainJobStatus) -> bool:
    """Whether the next attempt's checkpoints go where the newest one's went: agents see the end record there."""
    attempt, given = status.attempt, spec.checkpoint
    kept = attempt.s3 if attempt is not None else None
    return storage_of(spec, status) == given.storage and (kept is None or _place(kept) == _place(given.s3 or S3()))


def _checkpoint_of(spec: TrainJobSpec, status: TrainJobStatus) -> CheckpointSpec:
    """`checkpoint` so that it names the newest attempt's storage. Where that is the same place as ever, credentials are
    those of now: the attempt's may have expired.
    """
    storage, given, attempt = storage_of(spec, status), spec.checkpoint, status.attempt
    if stays(spec, status):
        return given
    kept = attempt.s3 if attempt is not None else None
    store = (kept or given.s3) if _is_s3(storage) else None
    return given.model_copy(update={"storage": storage, "s3": store})


def _is_s3(storage: str | None) -> bool:
    return storage is not None and storage.startswith("s3://")


def _place(store: S3) -> tuple[str, str | None]:
    """The same bucket at another endpoint is another bucket."""
    return (store.endpoint_url or "").rstrip("/"), store.region


def of_job(job: TrainJob) -> str:
    """What its next pods are made of."""
    return of(as_made(job).spec)


def is_plain(make: str | None) -> bool:
    """Whether pods of this make have no agent."""
    return make is not None and make.startswith(_PLAIN)


def is_strange(make: str | None) -> bool:
    """Whether the pod trusts another authority than ours; see `OTHER_AUTHORITY`."""
    return make is not None and make.endswith(OTHER_AUTHORITY)


def template_of(make: str) -> str:
    """The part that only a suspension can change."""
    return make.removeprefix(_PLAIN).partition("-")[0]


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
