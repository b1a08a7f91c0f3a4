"""What can go wrong between a user's call and the end of the job, as errors that say what to do.

Raised by the modules of `trainjob.launch`. The error for a job that ran and failed is `verdict.TrainingFailedError`.
"""

from __future__ import annotations

from trainjob.session.errors import TrainJobError


class LaunchError(TrainJobError):
    """The job could not be started, or its driver broke: nothing was trained because of this, or no more."""


class ConfigError(ValueError):
    """An argument is wrong; the text names the field, its value, and what would be right."""

    def __init__(self, field: str, value: object, advice: str) -> None:
        shown = repr(value)
        super().__init__(f"{field}={shown if len(shown) <= 80 else shown[:77] + '...'}: {advice}")
        self.field = field
