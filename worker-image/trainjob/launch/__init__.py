"""From a training function or script to a running job: the trainer's face, the local backend, and the way to a cluster.

The names are loaded when they are first used (PEP 562): `trainjob.launch.worker` runs in every rank and
`trainjob.launch.pod` in every agent, and neither may pay for what the launcher needs (aiohttp, pydantic).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainjob.launch.callbacks import RunContext, UserCallback
    from trainjob.launch.cluster_run import ClusterRun
    from trainjob.launch.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, TorchConfig
    from trainjob.launch.errors import ConfigError, LaunchError
    from trainjob.launch.kubernetes import Kubernetes
    from trainjob.launch.result import Result
    from trainjob.launch.trainer import TorchTrainer
    from trainjob.launch.verdict import TrainingFailedError

__all__ = [
    "CheckpointConfig",
    "ClusterRun",
    "ConfigError",
    "FailureConfig",
    "Kubernetes",
    "LaunchError",
    "Result",
    "RunConfig",
    "RunContext",
    "ScalingConfig",
    "TorchConfig",
    "TorchTrainer",
    "TrainingFailedError",
    "UserCallback",
]

_MODULES = {
    "callbacks": ("RunContext", "UserCallback"),
    "cluster_run": ("ClusterRun",),
    "config": ("CheckpointConfig", "FailureConfig", "RunConfig", "ScalingConfig", "TorchConfig"),
    "errors": ("ConfigError", "LaunchError"),
    "kubernetes": ("Kubernetes",),
    "result": ("Result",),
    "trainer": ("TorchTrainer",),
    "verdict": ("TrainingFailedError",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
