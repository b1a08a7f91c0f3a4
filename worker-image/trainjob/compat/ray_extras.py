"""The few of Ray's names that have no counterpart of ours and are accepted all the same."""

from __future__ import annotations

import warnings
from typing import Any

_initialized = False


class LoggingConfig:
    """Accepted by RunConfig, which says that it has no effect."""

    def __init__(self, log_level: str = "INFO") -> None:
        self.log_level = log_level


def init(*args: Any, **kwargs: Any) -> None:
    """Accepted: there is nothing to connect to, which it says once. Of its arguments `runtime_env={"env_vars": {...}}`
    counts: the workers of the jobs that this process starts get these variables.
    """
    from trainjob.launch.handover import config  # the launcher's side: a rank imports this module too

    global _initialized
    runtime_env = dict(kwargs.get("runtime_env") or {})
    variables = config.RunConfig(worker_runtime_env={"env_vars": runtime_env.pop("env_vars", {})}).environment
    if not _initialized:
        rest = f" Nor is runtime_env's {', '.join(sorted(runtime_env))}." if runtime_env else ""
        warnings.warn(
            "ray.init() connects to nothing here: TrainJob has no cluster of its own; its arguments are not used, but "
            f"for runtime_env['env_vars'], which the workers get.{rest}",
            stacklevel=2,
        )
    config.shared_environment.update(variables)
    _initialized = True


def is_initialized() -> bool:
    """Whether init() was called, and shutdown() was not."""
    return _initialized


def shutdown(*args: Any, **kwargs: Any) -> None:
    """Accepted: what init() gave to workers is forgotten."""
    from trainjob.launch.handover import config

    global _initialized
    config.shared_environment.clear()
    _initialized = False
