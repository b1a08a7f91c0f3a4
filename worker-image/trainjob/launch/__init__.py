"""From a training function or script to a running job: the trainer's face, the local backend, and the way to a cluster.

The names are loaded when they are first used (PEP 562): `trainjob.launch.worker` runs in every rank and
`trainjob.launch.local.pod` in every agent, and neither may pay for what the launcher needs (aiohttp, pydantic).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainjob.launch.cluster.cluster_run import ClusterRun
    from trainjob.launch.cluster.kubernetes import Kubernetes
    from trainjob.launch.errors import ConfigError, LaunchError
    from trainjob.launch.framework_trainers import (
        JaxTrainer,
        LightGBMTrainer,
        LightningTrainer,
        TensorflowTrainer,
        TransformersTrainer,
        XGBoostTrainer,
    )
    from trainjob.launch.handover.callbacks import RunContext, UserCallback
    from trainjob.launch.handover.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, TorchConfig
    from trainjob.launch.handover.validation import ValidationConfig, ValidationTaskConfig
    from trainjob.launch.in_process.starting import init
    from trainjob.launch.outcome.result import Result
    from trainjob.launch.outcome.verdict import TrainingFailedError
    from trainjob.launch.trainer import DataParallelTrainer, TorchTrainer

__all__ = [
    "CheckpointConfig",
    "ClusterRun",
    "ConfigError",
    "DataParallelTrainer",
    "FailureConfig",
    "JaxTrainer",
    "Kubernetes",
    "LaunchError",
    "LightGBMTrainer",
    "LightningTrainer",
    "Result",
    "RunConfig",
    "RunContext",
    "ScalingConfig",
    "TensorflowTrainer",
    "TorchConfig",
    "TorchTrainer",
    "TrainingFailedError",
    "TransformersTrainer",
    "UserCallback",
    "ValidationConfig",
    "ValidationTaskConfig",
    "XGBoostTrainer",
    "init",
]

_MODULES = {
    "handover.callbacks": ("RunContext", "UserCallback"),
    "cluster.cluster_run": ("ClusterRun",),
    "handover.config": ("CheckpointConfig", "FailureConfig", "RunConfig", "ScalingConfig", "TorchConfig"),
    "handover.validation": ("ValidationConfig", "ValidationTaskConfig"),
    "framework_trainers": (
        *("JaxTrainer", "LightGBMTrainer", "LightningTrainer", "TensorflowTrainer", "TransformersTrainer"),
        "XGBoostTrainer",
    ),
    "in_process.starting": ("init",),
    "errors": ("ConfigError", "LaunchError"),
    "cluster.kubernetes": ("Kubernetes",),
    "outcome.result": ("Result",),
    "trainer": ("DataParallelTrainer", "TorchTrainer"),
    "outcome.verdict": ("TrainingFailedError",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
