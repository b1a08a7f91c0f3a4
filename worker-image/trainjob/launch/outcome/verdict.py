"""What a failure in a job's status becomes in the launcher: one line, or the error that `fit()` raises; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainjob.session.errors import TrainJobError

if TYPE_CHECKING:
    from trainjob.launch.outcome.result import Result
    from trainjob_api.v1alpha1 import Failure, TrainJob


class TrainingFailedError(TrainJobError):
    """The job failed; the text names the first cause: rank, type, message, and the user's own frames."""

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        reason: str = "",
        traceback: str | None = None,
        result: Result | None = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        """The rank that broke first; None when it was no rank (a lost pod, a deadline)."""
        self.reason = reason
        """One CamelCase word, as in status.lastFailure.reason."""
        self.worker_traceback = traceback
        """The traceback of that rank, user frames first."""
        self.result = result
        """What the job left behind: metrics and checkpoints up to the failure."""


def describe(failure: Failure) -> str:
    """The first cause in one line; the message names rank and pod where there was one."""
    return failure.message or f"{failure.pod or 'a worker'}: {failure.reason}"


def failed_error(failure: Failure | None, headline: str) -> TrainingFailedError:
    """The error for a failure, with the user's own frames."""
    if failure is None:
        return TrainingFailedError(headline)
    lines = [headline] if headline else []
    lines.append(f"First cause, attempt {failure.attempt}: {describe(failure)}")
    if failure.traceback:
        lines.append(failure.traceback.rstrip())
    return TrainingFailedError("\n".join(lines), rank=failure.rank, reason=failure.reason, traceback=failure.traceback)


def of_failed(job: TrainJob) -> TrainingFailedError:
    """The error for a job that has failed."""
    failed = job.status.condition("Failed")
    said = f"{failed.reason}: {failed.message}" if failed is not None else "it ended without a word"
    return failed_error(job.status.last_failure, f"TrainJob {job.metadata.name} failed: {said}")
