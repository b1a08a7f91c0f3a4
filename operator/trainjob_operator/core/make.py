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
from trainjob_api.v1alpha1 import TrainJob, TrainJobSpec, TrainJobStatus

OTHER_AUTHORITY = "~"
"""Ends the make of a pod that trusts another authority than ours: its agent can speak with nobody, in no attempt."""
_PLAIN = "plain-"
_PARTS = {"checkpoint", "rendezvous", "processes_per_worker", "runtime"}


def of(spec: TrainJobSpec) -> str:
    """`1f2e3d4c-5b6a7988`: digests of the template and of the rest; without the agent `plain-` stands before them.

    What has its default is left out: a field that a later version adds changes no word.
    """
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
    checkpoint = spec.checkpoint.model_copy(update={"storage": storage_of(spec, job.status)})
    runtime = spec.runtime if defaults.uses_agent(spec) else spec.runtime.model_copy(update={"agent": "auto"})
    return job.model_copy(update={"spec": spec.model_copy(update={"checkpoint": checkpoint, "runtime": runtime})})


def storage_of(spec: TrainJobSpec, status: TrainJobStatus) -> str | None:
    """Where the newest attempt's checkpoints go; before the first one, those of the next."""
    attempt = status.attempt
    if attempt is None or attempt.storage is None:
        return spec.checkpoint.storage
    return attempt.storage or None


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
