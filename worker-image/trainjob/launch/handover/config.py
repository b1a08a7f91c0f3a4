"""The trainer's settings under Ray Train's names: frozen, checked at construction, each error naming its field.

Called by user code; read by `job.py` and `trainer.py`. Nothing here touches the machine.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainjob.launch.errors import ConfigError
from trainjob.launch.handover.callbacks import UserCallback
from trainjob.launch.handover.ray_arguments import WAYS_OUT
from trainjob.session import filesystems
from trainjob.session.arguments import told_of
from trainjob_api import contract

StopCriterion = Callable[..., bool] | Mapping[str, float]
MODULE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
shared_environment: dict[str, str] = {}
"""Of the workers of every job that this process starts: what `ray.init(runtime_env=...)` gave, in scripts of Ray's."""
PLACEMENTS = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


def _whole(name: str, value: object, least: int, advice: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(name, value, advice)


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(name, value, "give True or False")


def _one_of(name: str, value: object, choices: Sequence[object]) -> None:
    if value not in choices:
        raise ConfigError(name, value, f"give one of {', '.join(repr(choice) for choice in choices)}")


def _unused(name: str, why: str) -> None:
    warnings.warn(f"{name} has no effect: {why}", UserWarning, stacklevel=5)


def _amounts(name: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(name, value, 'give a dict such as {"CPU": 4, "GPU": 1, "memory": 8 * 1024**3}')
    for key, amount in value.items():
        if not isinstance(key, str):
            raise ConfigError(f"{name}[{key!r}]", amount, "resource names are strings")
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not math.isfinite(amount) or amount < 0:
            raise ConfigError(f"{name}[{key!r}]", amount, "give a number >= 0")


@told_of(WAYS_OUT)
@dataclass(frozen=True, kw_only=True)
class ScalingConfig:
    """How many ranks train, and on what.

    ```python
    scaling = trainjob.ScalingConfig(num_workers=4, use_gpu=True)  # four ranks, a GPU each
    elastic = trainjob.ScalingConfig(num_workers=(2, 8))  # as many as there are, at least two
    here = trainjob.ScalingConfig(num_workers=0)  # in this very process, for a debugger
    ```
    """

    num_workers: int | tuple[int, int] = 1
    """Ranks, as in Ray Train; (least, most): an elastic job, which trains with fewer ranks while not all can be had.
    They are packed into pods; see `gpus_per_pod`. 0: the function runs in the very process
    that calls `fit()`, for debuggers, profilers and tests; under torchrun in each of its processes.
    """
    use_gpu: bool = False
    """One GPU per rank, unless `resources_per_worker["GPU"]` says otherwise."""
    resources_per_worker: Mapping[str, float] | None = None
    """Of each rank: `CPU`, `GPU`, `memory` (bytes), or an extended resource such as `example.com/fpga`."""
    placement_strategy: str = "PACK"
    """PACK | STRICT_PACK: pods prefer (must) share a node; SPREAD | STRICT_SPREAD: prefer (must) not. On a cluster."""
    accelerator_type: str | None = None
    """GPU model such as `A100`: nodes are chosen by the label `nvidia.com/gpu.product`. On a cluster."""
    label_selector: Mapping[str, str] | None = None
    """Node labels that the pods need. On a cluster."""
    gpus_per_pod: int | None = None
    """GPUs that one pod gets. Absent: the largest number up to 8 that divides `num_workers`, of an elastic job both of
    its numbers; ranks with several GPUs have a pod each. Ranks of one pod share its NVLink.
    """
    trainer_resources: Mapping[str, float] | None = None
    """Accepted for Ray Train's sake: there is no trainer process that would need resources."""

    def __post_init__(self) -> None:
        if isinstance(self.num_workers, tuple | list):
            self._check_range()
        else:
            _whole(
                "ScalingConfig.num_workers",
                self.num_workers,
                0,
                "give the number of ranks, 1 or more, or 0 to train in this very process",
            )
        _flag("ScalingConfig.use_gpu", self.use_gpu)
        _one_of("ScalingConfig.placement_strategy", self.placement_strategy, PLACEMENTS)
        if self.accelerator_type is not None and not isinstance(self.accelerator_type, str):
            raise ConfigError(
                "ScalingConfig.accelerator_type", self.accelerator_type, "give a GPU model as text, for example 'A100'"
            )
        if self.label_selector is not None and not isinstance(self.label_selector, Mapping):
            raise ConfigError(
                "ScalingConfig.label_selector", self.label_selector, "give a dict of node labels for all workers"
            )
        if self.trainer_resources is not None:
            _amounts("ScalingConfig.trainer_resources", self.trainer_resources)
            _unused("ScalingConfig.trainer_resources", "there is no trainer process beside the ranks")
        if self.resources_per_worker is not None:
            _amounts("ScalingConfig.resources_per_worker", self.resources_per_worker)
        self._check_gpus()

    def _check_range(self) -> None:
        found: Sequence[Any] = self.num_workers  # type: ignore[assignment]
        whole = all(isinstance(number, int) and not isinstance(number, bool) for number in found)
        if len(found) != 2 or not whole or not 1 <= found[0] <= found[1]:
            raise ConfigError(
                "ScalingConfig.num_workers",
                self.num_workers,
                "give the least and the most number of ranks, such as (2, 8), or one number",
            )

    @property
    def is_elastic(self) -> bool:
        """Whether it may train with fewer ranks than are wished."""
        return not isinstance(self.num_workers, int)

    @property
    def least(self) -> int:
        """Ranks without which it does not train."""
        return self.num_workers if isinstance(self.num_workers, int) else self.num_workers[0]

    @property
    def most(self) -> int:
        """Ranks that are wished."""
        return self.num_workers if isinstance(self.num_workers, int) else self.num_workers[1]

    def _check_gpus(self) -> None:
        gpus = (self.resources_per_worker or {}).get("GPU", 0)
        if gpus and not self.use_gpu:
            raise ConfigError(
                'ScalingConfig.resources_per_worker["GPU"]', gpus, "set use_gpu=True too, or leave GPU out"
            )
        if self.use_gpu and "GPU" in (self.resources_per_worker or {}) and (gpus < 1 or gpus != int(gpus)):
            raise ConfigError(
                'ScalingConfig.resources_per_worker["GPU"]',
                gpus,
                "a rank has whole GPUs: give 1 or more, or set use_gpu=False",
            )
        if self.gpus_per_pod is not None:
            _whole("ScalingConfig.gpus_per_pod", self.gpus_per_pod, 1, "give a number >= 1")
            if not self.use_gpu:
                raise ConfigError(
                    "ScalingConfig.gpus_per_pod", self.gpus_per_pod, "set use_gpu=True too, or leave it out"
                )
            if self.gpus_per_pod % self.gpus_per_worker:
                raise ConfigError(
                    "ScalingConfig.gpus_per_pod",
                    self.gpus_per_pod,
                    f"give a multiple of the {self.gpus_per_worker} GPUs that each rank has",
                )

    @property
    def gpus_per_worker(self) -> int:
        """GPUs of each rank; 0 without `use_gpu`."""
        return int((self.resources_per_worker or {}).get("GPU", 1)) if self.use_gpu else 0


@told_of(WAYS_OUT)
@dataclass(frozen=True)
class FailureConfig:
    """How much may break.

    ```python
    forever = trainjob.RunConfig(failure_config=trainjob.FailureConfig(max_failures=-1))
    ```
    """

    max_failures: int = 0
    """Failures that are answered with a restart; 0: the first one fails the job, as in Ray Train; -1: no limit."""
    no_progress_attempts: int = 0
    """That many failures in a row without a new report fail the job too, once it has reported, and so does the same
    exception in two workers in a row without one; 0: never.
    """
    controller_failure_limit: int = -1
    """Accepted for Ray Train's sake: there is no controller whose failures would count."""
    max_preemption_failures: int = -1
    """Accepted for Ray Train's sake: preemptions are never counted."""
    relax_collectives_on_preemption: bool = False
    """Accepted for Ray Train's sake: all ranks stop together, after the grace of their pods."""
    preemption_grace_s: float = 0.0
    """Accepted for Ray Train's sake: the pods' own grace counts."""

    def __post_init__(self) -> None:
        if self.max_preemption_failures != -1:
            _unused("FailureConfig.max_preemption_failures", "preemptions are never counted as failures")
        if self.relax_collectives_on_preemption:
            _unused(
                "FailureConfig.relax_collectives_on_preemption", "all ranks are stopped together, and resume together"
            )
        if self.preemption_grace_s:
            _unused("FailureConfig.preemption_grace_s", "the pods' terminationGracePeriodSeconds counts")
        _whole(
            "FailureConfig.max_failures", self.max_failures, -1, "give -1 (no limit), 0 (none) or a number of restarts"
        )
        _whole(
            "FailureConfig.no_progress_attempts",
            self.no_progress_attempts,
            0,
            "give a number of failures, or 0 (off)",
        )


@told_of(WAYS_OUT)
@dataclass(frozen=True)
class CheckpointConfig:
    """Which checkpoints are kept.

    ```python
    best = trainjob.CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="accuracy", checkpoint_score_order="max")
    ```
    """

    num_to_keep: int | None = None
    """How many; None: all. The latest is always kept."""
    checkpoint_score_attribute: str | None = None
    """Reported metric by which the best are kept; a dot reaches into nested metrics. None: the newest are kept."""
    checkpoint_score_order: str = "max"
    """max | min: whether a higher or a lower score is better."""
    strict: bool = False
    """True: report() raises CheckpointError on every rank when two ranks gave different bytes under one file name;
    else the lowest rank's counts, with a warning.
    """
    on_upload_failure: str = "Continue"
    """Continue | Fail: whether training continues when a checkpoint cannot be stored, or report() raises StorageError
    on every rank.
    """

    def __post_init__(self) -> None:
        if self.num_to_keep is not None:
            _whole("CheckpointConfig.num_to_keep", self.num_to_keep, 1, "give 1 or more, or None to keep all")
        if self.checkpoint_score_attribute is not None and not (
            isinstance(self.checkpoint_score_attribute, str) and self.checkpoint_score_attribute
        ):
            raise ConfigError(
                "CheckpointConfig.checkpoint_score_attribute",
                self.checkpoint_score_attribute,
                "give the name of a reported metric",
            )
        _one_of("CheckpointConfig.checkpoint_score_order", self.checkpoint_score_order, ("max", "min"))
        _flag("CheckpointConfig.strict", self.strict)
        _one_of("CheckpointConfig.on_upload_failure", self.on_upload_failure, ("Continue", "Fail"))


@told_of(WAYS_OUT)
@dataclass(frozen=True)
class TorchConfig:
    """The process group that is up before the training loop starts.

    ```python
    config = trainjob.TorchConfig(backend="gloo", timeout_s=600)
    ```
    """

    backend: str | None = None
    """gloo | nccl; None: nccl with `use_gpu`, else gloo."""
    init_method: str = "env"
    """env: through the job's own rendezvous. (`tcp` is accepted and means the same.)"""
    timeout_s: int = 1800
    """Time-out of its collectives in seconds."""

    def __post_init__(self) -> None:
        _one_of("TorchConfig.backend", self.backend, (None, "gloo", "nccl"))
        _one_of("TorchConfig.init_method", self.init_method, ("env", "tcp"))
        _whole("TorchConfig.timeout_s", self.timeout_s, 1, "give whole seconds, 1 or more")


@told_of(WAYS_OUT)
@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The run's name, where it stores, and what it survives.

    ```python
    run = trainjob.RunConfig(
        name="digits",  # the same name resumes
        storage_path="./results",
        failure_config=trainjob.FailureConfig(max_failures=3),
        checkpoint_config=trainjob.CheckpointConfig(num_to_keep=2),
    )
    ```
    """

    name: str | None = None
    """Identity of the run on storage: the same name resumes where a failed or interrupted run stopped. None: a new
    name.
    """
    storage_path: str | os.PathLike[str] | None = None
    """Folder for results and checkpoints, a path or s3://bucket/folder; None: ~/trainjob_results."""
    storage_filesystem: Any = None
    """A pyarrow filesystem on which `storage_path` lies, as Ray Train has it: a local one, or S3 (then `storage_path`
    is bucket/folder; its keys and endpoint come from the environment, as for s3://). It becomes part of `storage_path`.
    """
    failure_config: FailureConfig = field(default_factory=FailureConfig)
    """How many failures are answered with a restart."""
    checkpoint_config: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Which checkpoints are kept."""
    callbacks: Sequence[UserCallback] = ()
    """Called in the launcher with each report and with the failure."""
    stop: StopCriterion | None = None
    """`{"accuracy": 0.98}` (stop when a metric reaches its value), or a function of the reported metrics that
    returns True to stop.
    """
    worker_runtime_env: Mapping[str, Any] | None = None
    """`{"env_vars": {...}}`: environment of the workers."""
    verbose: int | None = None
    """0: `fit()` shows the workers' own output alone. Else it shows what `tj run` shows: a panel on a terminal, lines
    elsewhere."""
    hang_action: str = contract.HANG_DEFAULT
    """When no step comes any more, or a rank's process is stopped: `Report` names the ranks to look at, `Restart` ends
    the attempt too (counted as a failure), `Off`: nobody looks.
    """
    hang_after_s: int | None = None
    """Without a `report()` or `log()` for so long the job hangs; None: learned from its own pace, never below five
    minutes.
    """
    prefork: str = contract.PREFORK_DEFAULT
    """Start ranks as forks of a process that has imported torch already, so that a killed one is back without importing
    it again: `auto` (on CPUs and NVIDIA GPUs, where nothing speaks against it), `Always` or `Never`.
    """
    preload: Sequence[str] | None = None
    """Modules that this process imports, such as `["torch", "transformers"]`; None: torch and what its first step
    needs.
    """
    spare_workers: int = 0
    """Workers that are up beside those that train, hold what they ask for, and take the place of one that is lost at
    once. With `num_workers=0` there can be none.
    """
    logging_config: Any = None
    """Accepted for Ray Train's sake: the output of all ranks is shown with a prefix, whatever its level."""

    def __post_init__(self) -> None:
        if self.logging_config is not None:
            _unused("RunConfig.logging_config", "the ranks' output is shown as it is; use the logging module in them")
        self._check_start()
        self._fold_filesystem()
        if self.name is not None and not (isinstance(self.name, str) and self.name.strip()):
            raise ConfigError("RunConfig.name", self.name, "give a text that is not empty, or leave it out")
        for name, wanted in (("failure_config", FailureConfig), ("checkpoint_config", CheckpointConfig)):
            given = getattr(self, name)
            if given is None:
                object.__setattr__(self, name, wanted())
            elif not isinstance(given, wanted):
                raise ConfigError(f"RunConfig.{name}", given, f"give a {wanted.__name__}")
        self._check_storage()
        self._check_stop()
        callbacks = tuple(self.callbacks or ())
        for callback in callbacks:
            if not isinstance(callback, UserCallback):
                raise ConfigError("RunConfig.callbacks", callback, "callbacks are instances of trainjob.UserCallback")
        object.__setattr__(self, "callbacks", callbacks)
        self._check_environment()

    def _check_start(self) -> None:
        _one_of(
            "RunConfig.prefork",
            self.prefork,
            (contract.PREFORK_AUTO, contract.PREFORK_ALWAYS, contract.PREFORK_NEVER),
        )
        actions = (contract.HANG_REPORT, contract.HANG_RESTART, contract.HANG_OFF)
        _one_of("RunConfig.hang_action", self.hang_action, actions)
        if self.verbose is not None and not isinstance(self.verbose, int):
            raise ConfigError("RunConfig.verbose", self.verbose, "give 0 for the workers' own output alone, or None")
        _whole("RunConfig.spare_workers", self.spare_workers, 0, "give a number of workers, 0 or more")
        if self.hang_after_s is not None:
            _whole("RunConfig.hang_after_s", self.hang_after_s, 1, "give whole seconds, 1 or more")
        if self.preload is None:
            return
        names = self.preload
        if isinstance(names, str) or not all(isinstance(n, str) and MODULE_NAME.fullmatch(n) for n in names):
            raise ConfigError("RunConfig.preload", names, 'give names of modules, such as ["torch", "pandas"]')
        object.__setattr__(self, "preload", tuple(names))

    def _fold_filesystem(self) -> None:
        if self.storage_filesystem is None:
            return
        if self.storage_path is None:
            raise ConfigError("RunConfig.storage_filesystem", self.storage_filesystem, "give storage_path too")
        try:
            path = filesystems.located(os.fspath(self.storage_path), self.storage_filesystem)
        except ValueError as error:
            raise ConfigError(
                "RunConfig.storage_filesystem",
                self.storage_filesystem,
                f"{error}: give storage_path alone, a folder or s3://bucket/folder",
            ) from error
        object.__setattr__(self, "storage_path", path)
        object.__setattr__(self, "storage_filesystem", None)

    def _check_storage(self) -> None:
        if self.storage_path is None:
            return
        if not isinstance(self.storage_path, str | os.PathLike) or not os.fspath(self.storage_path):
            raise ConfigError("RunConfig.storage_path", self.storage_path, "give the path of a folder")
        place, _, query = os.fspath(self.storage_path).partition("?")
        if place.startswith("s3://") and "=" in query:
            raise ConfigError(
                "RunConfig.storage_path",
                self.storage_path,
                "what follows the ? is not read: set AWS_ENDPOINT_URL_S3 and AWS_REGION in the environment (on a "
                f'cluster Kubernetes(s3={{"endpointURL": ..., "region": ...}})), and give {place}',
            )
        if filesystems.is_stored_elsewhere(os.fspath(self.storage_path)):
            raise ConfigError(
                "RunConfig.storage_path",
                self.storage_path,
                "this version stores on paths and at s3://: give a folder, for example /data/runs, or s3://bucket/folder",
            )

    def _check_stop(self) -> None:
        if self.stop is None or callable(self.stop):
            return
        if not isinstance(self.stop, Mapping) or not self.stop:
            raise ConfigError("RunConfig.stop", self.stop, 'give {"metric": value} or a function of the metrics')
        _amounts_any("RunConfig.stop", self.stop)

    def _check_environment(self) -> None:
        if self.worker_runtime_env is None:
            return
        if not isinstance(self.worker_runtime_env, Mapping):
            raise ConfigError(
                "RunConfig.worker_runtime_env", self.worker_runtime_env, 'give {"env_vars": {"NAME": "value"}}'
            )
        variables = self.worker_runtime_env.get("env_vars", {})
        if not isinstance(variables, Mapping) or not all(
            isinstance(k, str) and isinstance(v, str) for k, v in variables.items()
        ):
            raise ConfigError('RunConfig.worker_runtime_env["env_vars"]', variables, "names and values are strings")
        others = sorted(str(key) for key in self.worker_runtime_env if key != "env_vars")
        if others:
            _unused(
                f"RunConfig.worker_runtime_env[{', '.join(others)}]",
                "workers use the environment of the launcher (local) or of the image (cluster)",
            )

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for the workers."""
        return {**shared_environment, **(self.worker_runtime_env or {}).get("env_vars", {})}


def _amounts_any(name: str, value: Mapping[Any, Any]) -> None:
    for key, amount in value.items():
        if not isinstance(key, str) or isinstance(amount, bool) or not isinstance(amount, int | float):
            raise ConfigError(f"{name}[{key!r}]", amount, "give a number under the metric's name")
