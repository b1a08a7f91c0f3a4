"""What can go wrong between a user's call and the end of the job, as errors that say what to do.

Raised by the modules of `trainjob.launch`; `trainjob.TrainingFailedError` is the public name of the one that `fit()` raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainjob.session.errors import TrainJobError

if TYPE_CHECKING:
    from trainjob.launch.result import Result


class LaunchError(TrainJobError):
    """The job could not be started, or its driver broke: nothing was trained because of this, or no more."""


class ConfigError(ValueError):
    """An argument is wrong; the text names the field, its value, and what would be right."""

    def __init__(self, field: str, value: object, advice: str) -> None:
        shown = repr(value)
        super().__init__(f"{field}={shown if len(shown) <= 80 else shown[:77] + '...'}: {advice}")
        self.field = field


class TrainingFailedError(TrainJobError):
    """The job failed; the text names the first cause: rank, type, message, and the user's own frames."""

    def __init__(self, message: str, *, rank: int | None = None, reason: str = "", traceback: str | None = None, result: Result | None = None) -> None:
        super().__init__(message)
        self.rank = rank
        """The rank that broke first; None when it was no rank (a lost pod, a deadline)."""
        self.reason = reason
        """One CamelCase word, as in status.lastFailure.reason."""
        self.worker_traceback = traceback
        """The traceback of that rank, user frames first."""
        self.result = result
        """What the job left behind: metrics and checkpoints up to the failure."""
