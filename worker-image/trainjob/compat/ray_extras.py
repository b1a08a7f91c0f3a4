"""The few of Ray's names that have no counterpart of ours and are accepted all the same."""

from __future__ import annotations

import warnings
from enum import Enum
from typing import Any

_initialized = False


class LoggingConfig:
    """Accepted by RunConfig, which says that it has no effect."""

    def __init__(self, log_level: str = "INFO") -> None:
        self.log_level = log_level


class CheckpointConsistencyMode(Enum):
    """Accepted by `get_all_reported_checkpoints()`: everything that it lists is committed."""

    COMMITTED = "COMMITTED"
    VALIDATED = "VALIDATED"


def init(*args: Any, **kwargs: Any) -> None:
    """Accepted: there is nothing to connect to. Says so once, and what to do with variables for the workers."""
    global _initialized
    if not _initialized:
        environment = kwargs.get("runtime_env")
        variables = " Give RunConfig(worker_runtime_env={'env_vars': {...}}) for the workers' variables."
        warnings.warn(
            "ray.init() does nothing here: TrainJob has no cluster of its own to connect to; its arguments are not "
            "used." + (variables if environment else ""),
            stacklevel=2,
        )
    _initialized = True


def is_initialized() -> bool:
    """Whether init() was called, and shutdown() was not."""
    return _initialized


def shutdown(*args: Any, **kwargs: Any) -> None:
    """Accepted: there is nothing to shut down."""
    global _initialized
    _initialized = False
