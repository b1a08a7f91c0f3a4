"""Callbacks of the trainer: what a user's program hears of a run while it runs.

`outcome.hearers` calls them in the thread that called `fit()`; an exception in one stops the job cleanly and leaves
`fit()`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from trainjob.checkpoint.stores.store import Store
    from trainjob.session.checkpoint import Checkpoint


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Which run a callback hears of."""

    name: str
    """The job's name."""
    path: str
    """Its folder on storage."""
    run_config: Any
    """The RunConfig that was given to the trainer."""
    scaling_config: Any
    """The ScalingConfig that was given to the trainer."""
    train_loop_config: Mapping[str, Any] | None = None
    """What the training function is called with, as it was given to the trainer."""
    backend_config: Any = None
    """The trainer's TorchConfig."""
    run_id: str = field(default_factory=lambda: uuid4().hex)
    """Another one for each fit(), also under the same name."""

    store: Store | None = field(default=None, repr=False, compare=False)
    """That folder, opened, where `path` alone does not lead to it."""

    def get_run_config(self) -> Any:
        """The RunConfig that was given to the trainer."""
        return self.run_config


@dataclass(frozen=True, kw_only=True)
class Report:
    """A report of all ranks, as a callback hears of it."""

    metrics: dict[str, Any]
    """Rank 0's, which are the job's."""
    by_rank: list[dict[str, Any]]
    """Each rank's metrics, in their order, where a callback overrides `after_report`; else rank 0's alone."""
    checkpoint: Checkpoint | None
    """The one that came with it, committed; None when there was none, or when retention or a lost upload took it."""
    position: int
    """Its number in the course of the training, from 1. What is done again after a failure has the same numbers."""
    step: int | None = None
    """As it was reported."""
    epoch: int | None = None
    """As it was reported."""
    attempt: int | None = None
    """The attempt that it was made in."""
    run: int | None = None
    """The run that it belongs to: each start of the job is one."""
    first_run: int | None = None
    """The run in which this training began: another one than `run` where that resumed; None where this machine does
    not see the storage."""
    time: float | None = None
    """When it was made, in seconds since the epoch."""


class UserCallback:
    """Derive from this and override what you need.

    ```python
    class Progress(trainjob.UserCallback):
        def after_report(self, run_context, metrics, checkpoint):
            print(run_context.name, metrics[0]["loss"], checkpoint)


    run = trainjob.RunConfig(name="digits", callbacks=[Progress()])
    ```
    """

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        hooks = [name for name in vars(UserCallback) if not name.startswith("_")]
        for name in vars(cls):
            near = get_close_matches(name, hooks, 1, cutoff=0.85)
            if near and name not in hooks:
                warnings.warn(f"{cls.__name__}.{name} is never called; did you mean {near[0]}?", stacklevel=2)

    def on_report(self, run_context: RunContext, report: Report) -> None:
        """Called after each report of all ranks, in their order, with all that is known of it. As it is, it calls
        `after_report`.
        """
        self.after_report(run_context, report.by_rank, report.checkpoint)

    def after_report(
        self, run_context: RunContext, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        """Called after each report of all ranks, in their order.

        `metrics` has one entry for each rank, in their order; rank 0's are the job's. `checkpoint` is the one that
        came with the report, once it is committed to storage; None when there was none.
        """

    def after_exception(self, run_context: RunContext, worker_exceptions: dict[int, Exception]) -> None:
        """Called after each failure that ended an attempt, by the rank that broke first (-1: no rank, a lost pod)."""

    def after_run(self, run_context: RunContext, error: BaseException | None) -> None:
        """Called once, before `fit()` returns or raises; `error`: what it raises."""


def follows_reports(callbacks: Sequence[UserCallback]) -> bool:
    """Whether one of them wants the metrics of each rank: then they are kept, else rank 0's alone."""
    return any(
        getattr(callback.after_report, "__func__", None) is not UserCallback.after_report for callback in callbacks
    )
