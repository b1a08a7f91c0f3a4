"""`trainjob.errors`: the errors that user code may want to catch; those of the launcher are loaded when they are
named.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from trainjob.session import unknown_name
from trainjob.session.errors import (
    AgentLostError,
    BarrierMismatchError,
    BarrierTimeoutError,
    CheckpointDamagedError,
    CheckpointError,
    CollectiveError,
    NotInWorkerError,
    RankGoneError,
    StagingFullError,
    StorageError,
    TrainJobError,
)

if TYPE_CHECKING:
    from trainjob.launch import ConfigError, LaunchError, TrainingFailedError

_OF_THE_LAUNCHER = ("ConfigError", "LaunchError", "TrainingFailedError")

__all__ = [
    "AgentLostError",
    "BarrierMismatchError",
    "BarrierTimeoutError",
    "CheckpointDamagedError",
    "CheckpointError",
    "CollectiveError",
    "ConfigError",
    "LaunchError",
    "NotInWorkerError",
    "RankGoneError",
    "StagingFullError",
    "StorageError",
    "TrainJobError",
    "TrainingFailedError",
]


def __getattr__(name: str) -> object:
    """The launcher's errors (PEP 562): ranks import this module, and never the launcher."""
    if name in _OF_THE_LAUNCHER:
        return getattr(importlib.import_module("trainjob.launch"), name)
    raise unknown_name.error(__name__, name, __all__)
