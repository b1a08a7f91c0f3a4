"""What is said of a job, in the words of who asked for it: fields of a manifest, options of `tj run`, or arguments in
Python. Pure.

Agents, the control loop and the storage name settings by their fields, as they stand in the object. Applied where their
words come out: by the local backend, and by the error that `fit()` raises.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

from trainjob.agent.processes import memory
from trainjob_api import contract

if TYPE_CHECKING:
    from trainjob_api.v1alpha1 import TrainJob


class Asker(Enum):
    """Who reads it."""

    MANIFEST = "manifest"
    SHELL = "shell"
    PYTHON = "python"


_WORDS = (
    (r"resumeFrom is none", "--fresh was given", "resume_from_checkpoint is none"),
    (r"checkpoint\.resumeFrom|resumeFrom", "--resume-from", "resume_from_checkpoint"),
    (r"checkpoint\.storage", "--storage", "RunConfig.storage_path"),
    (r"checkpoint\.strict", "--strict", "CheckpointConfig.strict"),
    (r"checkpoint\.keep", "--keep", "CheckpointConfig.num_to_keep"),
    (r"checkpoint\.onUploadFailure|onUploadFailure", "--on-upload-failure", "CheckpointConfig.on_upload_failure"),
    (r"checkpoint\.scoreAttribute", None, "CheckpointConfig.checkpoint_score_attribute"),
    (r"failurePolicy\.maxFailures", "--max-failures", "FailureConfig.max_failures"),
    (r"hang\.action", "--hang", "RunConfig.hang_action"),
    (r"hang\.afterSeconds", "--hang-after", "RunConfig.hang_after_s"),
    (r"runtime\.prefork", "--prefork", "RunConfig.prefork"),
    (r"runtime\.preload", "--preload", "RunConfig.preload"),
    (r"runtime\.spareWorkers", "--spare-workers", "RunConfig.spare_workers"),
)
"""(field, option, argument); None: there is no option."""


_ON_A_CLUSTER = f" {memory.WAY_OUT}"
"""A way out of others; here `next:` has one."""


def in_words_of(asker: Asker, text: str) -> str:
    """The text, with fields under the names by which this reader sets them."""
    if asker is Asker.MANIFEST:
        return text
    text = text.replace(_ON_A_CLUSTER, "")
    for field, option, argument in _WORDS:
        name = option if asker is Asker.SHELL else argument
        if name is not None:
            text = re.sub(rf"(?<![\w.])(?:spec\.)?(?:{field})(?![\w])", name, text)
    return text


_HERE = {
    contract.REASON_SUSPENDED: "Stopped",
    contract.REASON_POD_FAILED: "WorkerFailed",
    contract.REASON_POD_LOST: "WorkerLost",
}


def reason_here(reason: str) -> str:
    """As it is shown of a job of this machine: it has no pods, and to be stopped is how it is suspended."""
    return _HERE.get(reason, reason)


def shown_here(job: TrainJob) -> TrainJob:
    """The job of this machine with its reasons as they are shown; programs get those of the API."""
    status = job.status
    update: dict[str, object] = {}
    if (attempt := status.attempt) is not None:
        ended = None if attempt.end_cause is None else reason_here(attempt.end_cause)
        update["attempt"] = attempt.model_copy(update={"cause": reason_here(attempt.cause), "end_cause": ended})
    if (failure := status.last_failure) is not None:
        update["last_failure"] = failure.model_copy(update={"reason": reason_here(failure.reason)})
    update["history"] = [
        each.model_copy(
            update={
                "cause": reason_here(each.cause),
                "end_cause": reason_here(each.end_cause) if each.end_cause else None,
            }
        )
        for each in status.history
    ]
    return job.model_copy(update={"status": status.model_copy(update=update)})


def job_in_words_of(asker: Asker, job: TrainJob) -> TrainJob:
    """The job, with what its status says put so."""
    if asker is Asker.MANIFEST:
        return job
    status = job.status
    update: dict[str, object] = {
        "conditions": [
            each.model_copy(update={"message": in_words_of(asker, each.message)}) for each in status.conditions
        ]
    }
    update["history"] = [
        # What a rank raised is the user's own text.
        each
        if each.message is None or each.end_cause == contract.REASON_USER_ERROR
        else each.model_copy(update={"message": in_words_of(asker, each.message)})
        for each in status.history
    ]
    if (failure := status.last_failure) is not None:
        # What a rank raised is the user's own text.
        if failure.traceback is None:
            failure = failure.model_copy(update={"message": in_words_of(asker, failure.message)})
        update["last_failure"] = failure
    return job.model_copy(update={"status": status.model_copy(update=update)})
