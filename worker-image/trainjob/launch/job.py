"""Builds the TrainJob that a trainer or `tj run script.py` stands for.

Called by `trainer.py` and the command line. Pure: touches no file and starts nothing; `local.py` checks what the
machine has.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainjob.launch.errors import ConfigError, LaunchError
from trainjob.launch.handover.config import CheckpointConfig, RunConfig, ScalingConfig, TorchConfig
from trainjob_api import contract
from trainjob_api.v1alpha1 import (
    CheckpointSpec,
    Elastic,
    FailurePolicy,
    Hang,
    Metadata,
    Rendezvous,
    Runtime,
    TrainJob,
    TrainJobSpec,
)

DEFAULT_STORAGE = "~/trainjob_results"
LOCAL_IMAGE = "local"
"""Stands in the template of jobs that this machine runs itself: no image is pulled."""
LOCAL_MODULES_FIRST = ("-P",)
"""Python's option for processes of ours: a module of the folder they start in must not hide the launcher's or ours."""
GPU_RESOURCE = "nvidia.com/gpu"
PRODUCT_LABEL = "nvidia.com/gpu.product"
GPUS_PER_POD = 8

PRODUCTS: Mapping[str, tuple[str, ...]] = {
    "A10G": ("NVIDIA-A10G",),
    "A100": (
        "NVIDIA-A100-SXM4-40GB",
        "NVIDIA-A100-SXM4-80GB",
        "NVIDIA-A100-PCIE-40GB",
        "NVIDIA-A100-80GB-PCIe",
        "NVIDIA-A100-PCIE-80GB",
    ),
    "A100-40G": ("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB"),
    "A100-80G": ("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe", "NVIDIA-A100-PCIE-80GB"),
    "H100": ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe", "NVIDIA-H100-NVL"),
    "H200": ("NVIDIA-H200", "NVIDIA-H200-NVL"),
    "L4": ("NVIDIA-L4",),
    "L40S": ("NVIDIA-L40S",),
    "T4": ("Tesla-T4",),
    "V100": ("Tesla-V100-SXM2-16GB", "Tesla-V100-SXM2-32GB", "Tesla-V100-PCIE-16GB", "Tesla-V100-PCIE-32GB"),
}
"""Ray's names of GPU models -> the node label's values by NVIDIA's feature discovery; other names are taken as label
values.
"""


@dataclass(frozen=True, kw_only=True)
class ScriptJob:
    """`tj run`: a script or module, and how to run it."""

    command: tuple[str, ...]
    """The whole command line: interpreter, script or -m module, arguments."""
    workers: int = 1
    name: str | None = None
    storage: str | None = None
    """None: no storage, checkpoints live as long as the job; the command line fills in DEFAULT_STORAGE."""
    max_failures: int = 3
    resume_from: str = "auto"
    keep: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus_per_worker: int = 0


def from_script(script: ScriptJob) -> TrainJob:
    """The TrainJob of `tj run`."""
    limits = {GPU_RESOURCE: str(script.gpus_per_worker)} if script.gpus_per_worker else {}
    container = _container(escaped(script.command), script.environment, {"limits": limits} if limits else {})
    spec = TrainJobSpec(
        workers=script.workers,
        processes_per_worker="auto",
        template={"spec": {"containers": [container]}},
        checkpoint=CheckpointSpec(
            storage=storage_root(script.storage) if script.storage else None,
            resume_from=script.resume_from,
            keep=script.keep,
        ),
        failure_policy=FailurePolicy(max_failures=script.max_failures),
    )
    return TrainJob(
        metadata=Metadata(name=job_name(script.name) if script.name else unique_name(_stem(script.command))), spec=spec
    )


@dataclass(frozen=True, kw_only=True)
class TrainerJob:
    """`TorchTrainer`: the worker's command and the trainer's settings."""

    command: tuple[str, ...]
    name: str
    scaling: ScalingConfig
    run: RunConfig
    torch: TorchConfig
    resume_from: str = "auto"


def from_trainer(trainer: TrainerJob) -> TrainJob:
    """The TrainJob of a TorchTrainer. Raises ConfigError for a size that cannot be packed into pods."""
    workers, processes = pack(trainer.scaling)
    pod_spec: dict[str, Any] = {
        "containers": [_container(trainer.command, trainer.run.environment, resources(trainer.scaling, processes))]
    }
    if trainer.scaling.label_selector:
        pod_spec["nodeSelector"] = dict(trainer.scaling.label_selector)
    wanted = affinity(trainer.scaling, trainer.name, workers)
    if wanted:
        pod_spec["affinity"] = wanted
    kept: CheckpointConfig = trainer.run.checkpoint_config
    spec = TrainJobSpec(
        workers=workers,
        elastic=elastic(trainer.scaling, processes),
        processes_per_worker=processes,
        template={"spec": pod_spec},
        rendezvous=Rendezvous(
            backend="auto" if trainer.torch.backend is None else _backend(trainer.torch.backend),
            timeout_seconds=trainer.torch.timeout_s,
        ),
        checkpoint=CheckpointSpec(
            storage=storage_root(trainer.run.storage_path or DEFAULT_STORAGE),
            resume_from=trainer.resume_from,
            keep=kept.num_to_keep,
            score_attribute=kept.checkpoint_score_attribute,
            score_order="min" if kept.checkpoint_score_order == "min" else "max",
            strict=kept.strict,
            on_upload_failure="Fail" if kept.on_upload_failure == "Fail" else "Continue",
        ),
        failure_policy=FailurePolicy(
            max_failures=trainer.run.failure_config.max_failures,
            no_progress_attempts=trainer.run.failure_config.no_progress_attempts,
        ),
        hang=Hang.model_validate(
            {"action": trainer.run.hang_action, "after_seconds": trainer.run.hang_after_s or "auto"}
        ),
        runtime=Runtime.model_validate(
            {
                "prefork": trainer.run.prefork,
                "preload": trainer.run.preload and list(trainer.run.preload),
                "spare_workers": trainer.run.spare_workers,
            }
        ),
    )
    return TrainJob(metadata=Metadata(name=trainer.name), spec=spec)


def pack(scaling: ScalingConfig) -> tuple[int, int]:
    """(pods, ranks in each). On the CPU a pod per rank; ranks with several GPUs have a pod each. Ranks with one GPU
    share pods: as many as `gpus_per_pod` says, else the largest number up to GPUS_PER_POD that divides their number, of
    an elastic job both the smallest and the largest. Raises ConfigError where `gpus_per_pod` does not divide them.
    """
    if scaling.gpus_per_worker != 1:
        if scaling.gpus_per_pod not in (None, scaling.gpus_per_worker):
            raise ConfigError(
                "ScalingConfig.gpus_per_pod",
                scaling.gpus_per_pod,
                "ranks with several GPUs have a pod each: leave it out",
            )
        return scaling.most, 1
    least, most = scaling.least, scaling.most
    if scaling.gpus_per_pod is not None:
        if (most % scaling.gpus_per_pod and most > scaling.gpus_per_pod) or (
            scaling.is_elastic and least % scaling.gpus_per_pod
        ):
            raise ConfigError(
                "ScalingConfig.gpus_per_pod",
                scaling.gpus_per_pod,
                f"give a number that divides num_workers={scaling.num_workers}: all pods are alike",
            )
        each = min(scaling.gpus_per_pod, most)
    else:
        together = math.gcd(least, most)
        each = next(n for n in range(min(GPUS_PER_POD, together), 0, -1) if together % n == 0)
    return most // each, each


def elastic(scaling: ScalingConfig, processes: int) -> Elastic | None:
    """The sizes in pods of so many ranks; None: there is one."""
    if not scaling.is_elastic:
        return None
    return Elastic(min_workers=scaling.least // processes, max_workers=scaling.most // processes)


def resources(scaling: ScalingConfig, ranks: int) -> dict[str, dict[str, str]]:
    """Requests and limits of a pod with that many ranks."""
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    for name, amount in (scaling.resources_per_worker or {}).items():
        if name == "CPU" and amount:
            requests["cpu"] = _quantity(amount * ranks)
        elif name == "memory" and amount:
            requests["memory"] = _quantity(amount * ranks)
        elif name not in ("CPU", "GPU", "memory") and amount:
            if "/" not in name:
                raise ConfigError(
                    f"ScalingConfig.resources_per_worker[{name!r}]",
                    amount,
                    "an extended resource has a full name, such as example.com/fpga; leave others out",
                )
            limits[name] = _quantity(amount * ranks)
    if scaling.gpus_per_worker:
        limits[GPU_RESOURCE] = str(scaling.gpus_per_worker * ranks)
    return {kind: amounts for kind, amounts in (("requests", requests), ("limits", limits)) if amounts}


def affinity(scaling: ScalingConfig, name: str, pods: int) -> dict[str, Any]:
    """Pod and node affinity for `placement_strategy` and `accelerator_type`."""
    found: dict[str, Any] = {}
    if scaling.accelerator_type:
        values = list(PRODUCTS.get(scaling.accelerator_type, (scaling.accelerator_type,)))
        terms = [{"matchExpressions": [{"key": PRODUCT_LABEL, "operator": "In", "values": values}]}]
        found["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    if pods > 1:
        term = {"labelSelector": {"matchLabels": {contract.LABEL_JOB: name}}, "topologyKey": "kubernetes.io/hostname"}
        kind = "podAffinity" if scaling.placement_strategy.endswith("PACK") else "podAntiAffinity"
        if scaling.placement_strategy.startswith("STRICT"):
            found[kind] = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        else:
            found[kind] = {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]
            }
    return found


def job_name(text: str) -> str:
    """The name of the object for a name that a person gave: itself when it is one, else made of its letters and digits.

    Names that would fall together ("Run A", "run_a", "run-a") get a few digits of their hash; the same text gives the
    same name always.
    """
    name = re.sub(r"[^a-z0-9-]+", "-", text.lower().replace("_", "-")).strip("-")
    if not name or not name[0].isalpha():
        name = f"job-{name}".rstrip("-")
    if name == text and len(name) <= contract.NAME_LIMIT:
        return name
    digest = hashlib.sha256(text.encode()).hexdigest()[:6]
    return f"{name[: contract.NAME_LIMIT - 7].rstrip('-')}-{digest}"


def unique_name(stem: str) -> str:
    """A new name for a job that was given none."""
    suffix = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    base = re.sub(r"[^a-z0-9-]+", "-", stem.lower()).strip("-")
    base = base if base and base[0].isalpha() else f"job-{base}".rstrip("-")
    return f"{base[: contract.NAME_LIMIT - len(suffix) - 1].rstrip('-')}-{suffix}"


def is_s3(place: str) -> bool:
    """Whether this is in a bucket and no path."""
    return place.startswith("s3://")


LOCAL_NAMESPACE = "default"
"""Of jobs on this machine: their folders are <storage path>/default/<name>, as on a cluster."""


def storage_root(path: str | os.PathLike[str]) -> str:
    """The storage path as workers see it: absolute, without `~` and file://; s3:// as it is."""
    text = os.fspath(path)
    if is_s3(text):
        return text.rstrip("/") if text != "s3://" else text
    return os.path.abspath(os.path.expanduser(text.removeprefix("file://")))


def folders_of(path: str | os.PathLike[str]) -> list[str]:
    """Where a run's folder may lie: at `path`, or, if that is a storage path and the name that the run was given, where
    such a run of this machine is. Raises LaunchError.
    """
    folder = storage_root(path).rstrip("/")
    if folder == "s3:":
        raise LaunchError("s3:// names no bucket: give s3://bucket/folder")
    above, given = os.path.split(folder)
    return [folder, *([os.path.join(above, LOCAL_NAMESPACE, job_name(given))] if above and given else [])]


def escaped(command: tuple[str, ...]) -> tuple[str, ...]:
    """The words as they stand: in a pod's command `$(NAME)` would be replaced."""
    return tuple(word.replace("$", "$$") for word in command)


def _container(command: tuple[str, ...], environment: Mapping[str, str], wanted: Mapping[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = {"name": contract.TRAINER_CONTAINER, "image": LOCAL_IMAGE, "command": list(command)}
    if environment:
        container["env"] = [{"name": name, "value": value} for name, value in environment.items()]
    if wanted:
        container["resources"] = dict(wanted)
    return container


def _backend(name: str) -> Any:
    return name  # TorchConfig has checked it against the same words


def _stem(command: tuple[str, ...]) -> str:
    from trainjob_api.command import parse_python

    parsed = parse_python(command)
    target = parsed.target if parsed else command[0]
    stem = target.rsplit(".", 1)[-1] if parsed and parsed.is_module else os.path.splitext(os.path.basename(target))[0]
    return stem or "train"


def _quantity(amount: float) -> str:
    return str(int(amount)) if amount == int(amount) else f"{round(amount * 1000)}m"
