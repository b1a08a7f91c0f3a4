"""What a failure in a job's status becomes in the launcher: one line, or the error that `fit()` raises; pure."""

from __future__ import annotations

import builtins
import re
from typing import TYPE_CHECKING, cast

from trainjob.screen import failure as words
from trainjob.screen.asked import Asker, job_in_words_of
from trainjob.session.errors import TrainJobError
from trainjob_api import contract

if TYPE_CHECKING:
    from trainjob.launch.outcome.result import Result
    from trainjob_api.v1alpha1 import Failure, TrainJob, TrainJobStatus


_RAISED = re.compile(r"\braised (\w+)(?::|$)", re.M)


class TrainingFailedError(TrainJobError):
    """The job failed; the text names the first cause: rank, type, message, and the user's own frames.

    ```python
    def divide(config):
        return 1 / config["by"]


    trainer = TorchTrainer(divide, train_loop_config={"by": 0}, run_config=RunConfig(verbose=0))
    try:
        trainer.fit()
    except TrainingFailedError as error:
        print(error.rank, error.reason)  # 0 UserCodeError
        print(error.worker_traceback)
        assert isinstance(error.worker_failures[0], ZeroDivisionError)
    ```
    """

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
        self.worker_failures: dict[int, Exception] = {}
        """The exception by the rank that broke first; an instance of its builtin type (ValueError, ...) too."""
        self.result = result
        """What the job left behind: metrics and checkpoints up to the failure."""


def describe(failure: Failure) -> str:
    """The first cause in one line; the message names rank and pod where there was one."""
    return failure.message or f"{failure.pod or 'a worker'}: {failure.reason}"


def failed_error(failure: Failure) -> TrainingFailedError:
    """The error for a failure, with the user's own frames. An instance of the exception's own type too, where Python
    brings that type along.
    """
    text = f"attempt {failure.attempt}: {describe(failure)}"
    if failure.traceback:
        text += "\n" + failure.traceback.rstrip()
    return _typed(failure)(text, rank=failure.rank, reason=failure.reason, traceback=failure.traceback)


RESTARTS = "with RunConfig(failure_config=FailureConfig(max_failures=3)) ranks that die are started again"
_OF_THE_SCRIPT = (contract.REASON_USER_ERROR, contract.REASON_EXIT, contract.REASON_RANK_ENDED_EARLY)
"""What a restart seldom cures."""


def _never_again(job: TrainJob) -> bool:
    """fit() restarts nothing unless it is told to, as Ray's does."""
    return job.spec.failure_policy.max_failures == 0


def has_saved(status: TrainJobStatus) -> bool:
    """There is a checkpoint from which the next start resumes, of this run or of one before."""
    attempt = status.attempt
    return status.checkpoint.latest is not None or (attempt is not None and attempt.resumed_from is not None)


def _what_now(failure: Failure, *, resumes: bool) -> str:
    effect = "resumes from the newest checkpoint" if resumes else "starts from the beginning"
    if failure.reason not in _OF_THE_SCRIPT:
        return f"{RESTARTS}; the same fit() {effect} now."
    mend = words.advice(failure.reason, failure, words.Retry(command="", script="", storage="", asker=Asker.PYTHON))
    return f"{mend}{'' if mend.endswith('?') else '.'} The same fit() then {effect}."


def of_failed(job: TrainJob, *, on_a_cluster: bool = False) -> TrainingFailedError:
    """The error for a job that has failed: the first cause, its traceback, what kept it from continuing, and what to do
    where that can be told.
    """
    job = job_in_words_of(Asker.PYTHON, job)
    failed, failure = job.status.condition("Failed"), job.status.last_failure
    said = failed.message if failed is not None else "it ended without a word"
    reason = f"{failed.reason}: " if failed is not None else ""
    opening = f"TrainJob {job.metadata.name} failed: "
    if failure is None:
        return TrainingFailedError(f"{opening}{reason}{said}")
    lines = [f"{opening}{describe(failure)}"]
    lines += [frames] if (frames := words.frames(failure)) else []
    why = words.why_no_more(said, failure)
    lines += [f"[{reason}{why}]"] if why else []
    resumes = has_saved(job.status)
    advice = words.by_its_words(failure, on_a_cluster=on_a_cluster, in_python=True, resumes=resumes)
    lines += [f"next: {advice}{'' if advice.endswith('?') else '.'}"] if advice else []
    if not advice and failed is not None and failed.reason == contract.REASON_LIMIT and _never_again(job):
        lines.append(f"next: {_what_now(failure, resumes=resumes)}")
    error = TrainingFailedError("\n".join(lines), rank=failure.rank, reason=failure.reason, traceback=failure.traceback)
    if failure.rank is not None:
        error.worker_failures = {failure.rank: failed_error(failure)}
    return error


def _typed(failure: Failure) -> type[TrainingFailedError]:
    match = _RAISED.search(failure.message)
    kind = getattr(builtins, match[1], None) if match and failure.reason == contract.REASON_USER_ERROR else None
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        return TrainingFailedError
    try:
        made = type(kind.__name__, (TrainingFailedError, kind), {"__module__": TrainingFailedError.__module__})
        return cast("type[TrainingFailedError]", made)
    except TypeError:  # its instances are laid out in a way of their own
        return TrainingFailedError
