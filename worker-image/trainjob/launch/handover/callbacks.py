"""Callbacks of the trainer: what a user's program hears of a run while it runs.

`trainer.py` calls them in the thread that called `fit()`; an exception in one stops the job cleanly and leaves `fit()`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
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

    def get_run_config(self) -> Any:
        """The RunConfig that was given to the trainer."""
        return self.run_config


class UserCallback:
    """Derive from this and override what you need."""

    def after_report(
        self, run_context: RunContext, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        """Called after each report of all ranks, in their order.

        `metrics` has one entry for each rank, in their order; rank 0's are the job's. `checkpoint` is the one that
        came with the report, once it is committed to storage; None when there was none.
        """

    def after_exception(self, run_context: RunContext, worker_exceptions: dict[int, Exception]) -> None:
        """Called after each failure that ended an attempt, by the rank that broke first (-1: no rank, a lost pod)."""


def follows_reports(callbacks: Sequence[UserCallback]) -> bool:
    """Whether one of them hears of reports: then each rank's metrics are kept, else rank 0's alone."""
    return any(
        getattr(callback.after_report, "__func__", None) is not UserCallback.after_report for callback in callbacks
    )
