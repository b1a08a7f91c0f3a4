"""What a spec means where it leaves something out: pure functions on a TrainJob.

Called by the core, the launcher and the CLI. The defaults are here and in the models, not in the CRD's schema, so that
a later version may change them. Every function is total: a template that makes no sense gives an empty answer and never
an error, because the operator meets objects that were stored before a rule existed (`validation.py` says what is
wrong).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainjob_api import contract
from trainjob_api.command import is_mpi, parse_python
from trainjob_api.v1alpha1 import TrainJob, TrainJobSpec

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
"""Resource names that count as GPUs; the first that the container asks for is taken."""
EPHEMERAL_STORAGE = "ephemeral-storage"
"""The resource that the kubelet evicts for: what containers and emptyDirs on disk have written."""


def trainer_container(spec: TrainJobSpec) -> tuple[int, dict[str, Any]]:
    """Position and content of the container that trains: the one named `trainer`, else the first; (0, {}) when there
    is none.
    """
    pod_spec = spec.template.get("spec")
    containers = pod_spec.get("containers") if isinstance(pod_spec, Mapping) else None
    listed = [(at, c) for at, c in enumerate(containers) if isinstance(c, dict)] if isinstance(containers, list) else []
    named = [(at, c) for at, c in listed if c.get("name") == contract.TRAINER_CONTAINER]
    return next(iter(named or listed), (0, {}))


def command_of(container: Mapping[str, Any]) -> list[str]:
    """`command` and `args` in one list; empty when the image's own entrypoint would run."""
    command = container.get("command")
    if not isinstance(command, list) or not command:
        return []
    args = container.get("args")
    return [str(word) for word in [*command, *(args if isinstance(args, list) else [])]]


def is_plain_python(command: Sequence[str]) -> bool:
    """Whether this is `python script` or `python -m module`, of which there is one process per rank; no launcher, no
    shell.
    """
    return parse_python(command) is not None


def gpu_limit(container: Mapping[str, Any]) -> int:
    """GPUs in the container's `resources.limits`."""
    limits = _limits(container)
    return next((count for count in (_whole(limits.get(name)) for name in GPU_RESOURCES) if count > 0), 0)


def _limits(container: Mapping[str, Any]) -> Mapping[str, Any]:
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, Mapping) else None
    return limits if isinstance(limits, Mapping) else {}


def _whole(quantity: Any) -> int:
    text = str(quantity)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0


def uses_agent(spec: TrainJobSpec) -> bool:
    """Whether the agent runs in the pods; otherwise plain mode: environment injection only."""
    return spec.runtime.agent != "Disabled"


def processes_per_worker(spec: TrainJobSpec) -> int:
    """Ranks in each pod. auto: the trainer's GPU limit for a plain Python command and for mpirun, else 1."""
    if spec.processes_per_worker != "auto":
        return spec.processes_per_worker
    _, container = trainer_container(spec)
    if uses_agent(spec) and starts_ranks(command_of(container)):
        return max(1, gpu_limit(container))
    return 1


def starts_ranks(command: Sequence[str]) -> bool:
    """Whether the agents decide how many ranks there are in each pod: they start them, or tell mpirun."""
    return is_plain_python(command) or is_mpi(command)


def sizes(spec: TrainJobSpec) -> Sequence[int]:
    """Numbers of workers that the job may train with, the smallest first, the wished one last."""
    elastic, wished = spec.elastic, spec.workers
    if elastic is None:
        return (wished,)
    allowed: Sequence[int] = sorted(elastic.allowed_sizes) or range(elastic.min_workers, elastic.max_workers + 1)
    fitting = [size for size in allowed if elastic.min_workers <= size <= min(wished, elastic.max_workers)]
    return fitting or (wished,)


def largest_size(spec: TrainJobSpec, workers: int) -> int | None:
    """With how many of so many workers the job may train; None: they are too few."""
    return next((size for size in reversed(sizes(spec)) if size <= workers), None)


def rendezvous_backend(spec: TrainJobSpec) -> str:
    """gloo | nccl. auto: nccl where the trainer has GPUs (also ROCm's name for its own), so that all ranks agree
    without looking.
    """
    if spec.rendezvous.backend != "auto":
        return spec.rendezvous.backend
    return "nccl" if gpu_limit(trainer_container(spec)[1]) else "gloo"


def job_storage(job: TrainJob) -> str | None:
    """The job's own folder on its storage, `<storage>/<namespace>/<name>`; None without storage."""
    storage = job.spec.checkpoint.storage
    if not storage:
        return None
    return f"{storage.rstrip('/')}/{job.metadata.namespace}/{job.metadata.name}"


def recycles(spec: TrainJobSpec) -> bool:
    """Whether a worker may keep files of a former checkpoint for the next to be written over, as long as its volume
    shows room for one more: a size that only the kubelet knows, and evicts for, is kept to by having nothing to spare.
    """
    staging = spec.checkpoint.staging
    pod_spec = spec.template.get("spec")
    containers = pod_spec.get("containers") if isinstance(pod_spec, Mapping) else None
    listed = [c for c in containers if isinstance(c, Mapping)] if isinstance(containers, list) else []
    bounded = any(EPHEMERAL_STORAGE in _limits(container) for container in listed)
    return staging.medium == "Memory" or (staging.size_limit is None and not bounded)


def agent_spec(job: TrainJob) -> contract.AgentSpec:
    """What the agents of this job act on."""
    checkpoint = job.spec.checkpoint
    return contract.AgentSpec(
        processes_per_worker=processes_per_worker(job.spec),
        rendezvous_port=job.spec.rendezvous.port,
        storage=job_storage(job),
        resume_from=checkpoint.resume_from,
        keep=checkpoint.keep,
        score_attribute=checkpoint.score_attribute,
        score_order=checkpoint.score_order,
        strict=checkpoint.strict,
        on_upload_failure=checkpoint.on_upload_failure,
        workers=job.spec.workers,
        prefork=job.spec.runtime.prefork,
        preload=job.spec.runtime.preload,
        recycle=recycles(job.spec),
    )
