"""What a trainer is told of validation: a function of a checkpoint, run beside the training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainjob.launch.errors import ConfigError
from trainjob.launch.handover.ray_arguments import WAYS_OUT
from trainjob.session.arguments import told_of


@told_of(WAYS_OUT)
@dataclass(frozen=True)
class ValidationTaskConfig:
    """How one checkpoint is validated; given to `report(validation=...)`.

    ```python
    task = trainjob.ValidationTaskConfig(fn_kwargs={"samples": 100}, timeout_s=600)


    def save(metrics, state):  # in the training loop
        trainjob.report(metrics, checkpoint=Checkpoint.from_dict(state), validation=task)
    ```
    """

    fn_kwargs: Mapping[str, Any] | None = None
    """Keyword arguments of the function: values that JSON has."""
    timeout_s: float | None = None
    """Seconds after which the function is ended and the checkpoint counts as not validated; None: no limit."""

    def __post_init__(self) -> None:
        given = self.fn_kwargs
        if given is not None and not (isinstance(given, Mapping) and all(isinstance(key, str) for key in given)):
            raise ConfigError("ValidationTaskConfig.fn_kwargs", given, "give a dict of keyword arguments")
        if self.timeout_s is not None and not (isinstance(self.timeout_s, int | float) and self.timeout_s > 0):
            raise ConfigError("ValidationTaskConfig.timeout_s", self.timeout_s, "give seconds above 0, or None")


@told_of(WAYS_OUT)
@dataclass(frozen=True)
class ValidationConfig:
    """The function that validates checkpoints for which `report(validation=True)` asks.

    It runs in a process of its own on rank 0's worker, one checkpoint after the other, while the training continues;
    without GPUs unless `ray_remote_kwargs={"num_gpus": ...}` says that it shares rank 0's. `fit()` waits for it at the
    end. What it returns joins the checkpoint's metrics, by which the best are then kept. It needs storage that rank 0
    reaches.

    ```python
    def measured(checkpoint):
        saved = checkpoint.to_dict()  # here: load the model, run it over the validation data
        return {"accuracy": saved["epoch"] / 3}


    def train(config):
        for epoch in range(3):
            saved = Checkpoint.from_dict({"epoch": epoch})
            trainjob.report({"epoch": epoch}, checkpoint=saved, validation=True)


    trainer = TorchTrainer(train, validation_config=ValidationConfig(fn=measured), run_config=RunConfig(verbose=0))
    best = trainer.fit().get_best_checkpoint("accuracy", "max")
    print(best.metrics)  # {"epoch": 2, "accuracy": 0.66...}
    ```
    """

    fn: Callable[..., Mapping[str, Any]]
    """`fn(checkpoint, **fn_kwargs)` returns a dict of metrics. When it raises, the training continues."""
    task_config: ValidationTaskConfig | None = None
    """For checkpoints whose report() gives none of their own; what it gives is put over this."""
    ray_remote_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Accepted for Ray Train's sake; only `num_gpus` counts."""

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise ConfigError("ValidationConfig.fn", self.fn, "give a function of a checkpoint")
        if self.task_config is None:
            object.__setattr__(self, "task_config", ValidationTaskConfig())
        elif not isinstance(self.task_config, ValidationTaskConfig):
            raise ConfigError("ValidationConfig.task_config", self.task_config, "give a ValidationTaskConfig")
        if self.ray_remote_kwargs is None:
            object.__setattr__(self, "ray_remote_kwargs", {})
