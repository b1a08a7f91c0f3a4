"""What is worth a line between two states of a job; pure.

The displays call it for every status they are given and print what it returns: plain output prints all kinds, the live
panel only what should scroll by and stay (it shows progress by itself).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from trainjob.checkpoint.records.identity import is_newer
from trainjob.screen import failure as failures
from trainjob.screen import wording
from trainjob_api import contract, defaults, nonfinite, same_error, slots

if TYPE_CHECKING:
    from trainjob.screen.pace import Pace
    from trainjob_api.v1alpha1 import Attempt, Condition, Failure, Progress, TrainJob, TrainJobStatus

WAITING = ("ResourcesCreated", "PodsScheduled", "WorkersReady")
"""Conditions that say what a start waits for, in the order in which they become true."""


class Kind(Enum):
    """How a line is treated: PROGRESS and CHECKPOINT are rationed, the others always shown."""

    STATE = "state"
    FAILURE = "failure"
    PROGRESS = "progress"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class Change:
    """One line about the job."""

    kind: Kind
    text: str


def changes(before: TrainJob | None, after: TrainJob, pace: Pace, now: float) -> list[Change]:
    """Lines for what is new in `after`, in the order in which it happened; none for what was there before."""
    old = before.status if before else None
    return [
        *_ended(old, after),
        *_waiting(old, after.status),
        *_began(old, after),
        *_progressed(old, after.status, pace, now),
        *_lost_its_numbers(old, after.status),
        *_is_to_end(old, after),
        *_saved(old, after.status),
        *_degraded(old, after.status),
        *_completed(old, after.status),
    ]


def freshest(before: TrainJob | None, after: TrainJob) -> TrainJob:
    """`after`, with the progress and checkpoints of `before` where these are newer: a committed status may come
    behind what was seen live.
    """
    if before is None:
        return after
    old, new = before.status, after.status
    update: dict[str, Any] = {}
    reported = new.progress.last_report_time
    if old.progress.last_report_time and (reported is None or old.progress.last_report_time > reported):
        update["progress"] = old.progress
    if old.checkpoint.latest and (
        new.checkpoint.latest is None or is_newer(old.checkpoint.latest.id, new.checkpoint.latest.id)
    ):
        update["checkpoint"] = old.checkpoint
    return after.model_copy(update={"status": new.model_copy(update=update)}) if update else after


def _ended(old: TrainJobStatus | None, job: TrainJob) -> list[Change]:
    failure, before = job.status.last_failure, old.last_failure if old else None
    if failure is None or failure == before or job.status.holds("Failed"):
        return []  # of the last one the summary tells
    used, most = job.status.failures.counted, job.spec.failure_policy.max_failures
    budget = (
        f"{wording.count(used, 'failure')} so far"
        if most < 0
        else "a restart cannot help"
        if failure.reason == contract.REASON_START
        else f"failure {used} of {most} allowed"
        if used <= most
        else f"more than the {most} allowed"
    )
    found = [f"attempt {failure.attempt} failed: {failures.headline(failure)} [{failure.reason}; {budget}]"]
    if _is_the_same(failure, before):
        found.append(
            f"attempt {failure.attempt} ended by the same cause as attempt {failure.attempt - 1}"
            + _how_to_end(job, most - used)
        )
    return [Change(Kind.FAILURE, text) for text in found]


_MANY = 3
"""Restarts that are left: a person need not wait for them."""


def _how_to_end(job: TrainJob, left: int) -> str:
    """Where the budget does not end it soon."""
    if 0 <= left < _MANY and job.spec.failure_policy.max_failures >= 0:
        return ""
    return (
        f". If a restart cannot mend that, `tj stop {job.metadata.name}` ends the job; --max-failures (maxFailures) "
        "limits the restarts"
    )


def _is_the_same(failure: Failure, before: Failure | None) -> bool:
    if before is None or before.attempt != failure.attempt - 1 or before.reason != failure.reason:
        return False
    if failure.reason != contract.REASON_USER_ERROR:
        return same_error.same_sentence(failures.headline(failure), failures.headline(before))
    if not failure.traceback or not before.traceback:
        return False
    return same_error.same(failure.traceback, before.traceback)


def _began(old: TrainJobStatus | None, job: TrainJob) -> list[Change]:
    attempt, before = job.status.attempt, old.attempt if old else None
    if attempt is None:
        return []
    found = []
    if before is None or before.number != attempt.number:
        ranks = wording.count(attempt.world_size, "rank")
        found.append(
            Change(
                Kind.STATE,
                f"attempt {attempt.number} started: {wording.count(attempt.workers, 'worker')}, {ranks} "
                f"[{attempt.cause}]",
            )
        )
    if before is not None and before.number < attempt.number:
        found += [Change(Kind.STATE, text) for text in _replaced(before, job)]
    same = before is not None and before.number == attempt.number and before.resumed_from == attempt.resumed_from
    if attempt.resumed_from and not same:
        found.append(Change(Kind.STATE, f"attempt {attempt.number} resumes from checkpoint {attempt.resumed_from}"))
    return found


def _replaced(before: Attempt, job: TrainJob) -> list[str]:
    """Which worker takes whose place in an attempt that begins, and why; a change of size is told elsewhere."""
    attempt, failure, name = job.status.attempt, job.status.last_failure, job.metadata.name
    assert attempt is not None
    earlier, now = slots.listed(before.members), slots.listed(attempt.members)
    if len(earlier) != len(now):
        return []
    gone, new = ([slot for slot in one if slot not in other] for one, other in ((earlier, now), (now, earlier)))
    found = []
    for old, fresh in zip(gone, new, strict=True):
        broke = failure is not None and failure.pod == f"{name}-{old}" and failure.attempt == before.number
        why = f": {failures.headline(failure)}" if broke and failure is not None else f" [{attempt.cause}]"
        found.append(f"worker {name}-{fresh} takes the place of {name}-{old}{why}")
    return found


def _is_to_end(old: TrainJobStatus | None, job: TrainJob) -> list[Change]:
    wish, before, attempt = job.status.boundary, old.boundary if old else None, job.status.attempt
    if wish is None or attempt is None or (before is not None and before.cause == wish.cause):
        return []
    when = wording.boundary(job.spec.boundary_timeout_seconds)
    return [Change(Kind.STATE, f"attempt {attempt.number} is to end [{wish.cause}], {when}")]


def _waiting(old: TrainJobStatus | None, new: TrainJobStatus) -> list[Change]:
    if new.attempt is not None and new.attempt.state == "Running":
        return []
    text = waits_for(new)
    return [Change(Kind.STATE, f"waiting: {text}")] if text and (old is None or waits_for(old) != text) else []


def waits_for(status: TrainJobStatus) -> str | None:
    """The message of the first condition that a start still waits for; pods that are just being created are not
    worth a word.
    """
    if status.finished or status.holds("Suspended"):
        return None
    missing = (
        condition
        for name in WAITING
        if (condition := status.condition(name)) is not None and condition.status != "True"
    )
    first = next(missing, None)
    return None if first is None or first.reason == contract.REASON_CREATING else first.message or first.reason


def _progressed(old: TrainJobStatus | None, new: TrainJobStatus, pace: Pace, now: float) -> list[Change]:
    progress, before = new.progress, old.progress if old else None
    if progress.last_report_time is None:
        return []
    if before is not None and progress.position <= before.position and progress.step in (None, before.step):
        return []  # nothing but time, or a new attempt that has not reported yet
    return [Change(Kind.PROGRESS, progress_line(progress, pace, now))]


def progress_line(progress: Progress, pace: Pace, now: float) -> str:
    """`step 180/450 (40%)  accuracy=0.975 loss=0.11  12.4 ms/step  ETA 3.4s`, with what is known."""
    parts = [position(progress), metrics(progress)]
    rate, left = pace.seconds_per_step, pace.seconds_left(progress.total_steps, now)
    parts.append(wording.per_step(rate) if rate is not None else "")
    parts.append(f"ETA {wording.duration(left)}" if left else "")
    return "  ".join(part for part in parts if part)


def position(progress: Progress) -> str:
    """`step 180/450 (40%)`; the number of reports where the script names no steps."""
    if progress.step is None:
        return f"report {progress.position}"
    total = "" if progress.total_steps is None else f"/{progress.total_steps}"
    share = percent(progress)
    return f"step {progress.step}{total}" + ("" if share is None else f" ({share}%)")


def percent(progress: Progress) -> int | None:
    """Of the steps that the script announced; what the status says, else computed."""
    if progress.percent is not None:
        return progress.percent
    if progress.step is None or not progress.total_steps:
        return None
    return min(100, progress.step * 100 // progress.total_steps)


def metrics(progress: Progress) -> str:
    """`loss=nan accuracy=0.5`: the newest, with one that is no number now, which JSON has not."""
    seen, room = progress.non_finite, len(progress.metrics) < contract.METRICS_LIMIT  # else it may be cut off, not NaN
    known = progress.metrics
    return wording.metrics(nonfinite.with_first(known, seen.metric, seen.value) if seen and room else known)


def not_a_number(progress: Progress) -> str | None:
    """The sentence for a metric that is no number any more."""
    seen = progress.non_finite
    return None if seen is None else wording.non_finite(seen.metric, seen.value, seen.step, seen.position, seen.count)


def _lost_its_numbers(old: TrainJobStatus | None, new: TrainJobStatus) -> list[Change]:
    text, before = not_a_number(new.progress), old.progress.non_finite if old else None
    return [Change(Kind.FAILURE, f"warning: {text}")] if text and before is None else []


def _saved(old: TrainJobStatus | None, new: TrainJobStatus) -> list[Change]:
    latest, before = new.checkpoint.latest, old.checkpoint.latest if old else None
    if latest is None or (before is not None and before.id == latest.id):
        return []
    step = "" if latest.step is None else f" at step {latest.step}"
    return [Change(Kind.CHECKPOINT, f"checkpoint {latest.id}{step} saved ({wording.size(latest.bytes)})")]


def _degraded(old: TrainJobStatus | None, new: TrainJobStatus) -> list[Change]:
    now, before = trouble(new), trouble(old) if old else None
    if now is None or (before is not None and before.message == now.message):
        return []
    return [Change(Kind.FAILURE, f"warning: {now.message or now.reason}")]


def trouble(status: TrainJobStatus) -> Condition | None:
    """What a running job lacks, or waits for that is no part of a usual start: storage that does not answer."""
    said = status.condition("Degraded")
    return said if said is not None and said.status == "True" else None


def unstored(status: TrainJobStatus) -> Condition | None:
    """Why storage does not take checkpoints; of a job that was stopped, did not until its end."""
    said = trouble(status)
    return said if said is not None and said.reason == contract.REASON_CHECKPOINT_FAILING else None


def _completed(old: TrainJobStatus | None, new: TrainJobStatus) -> list[Change]:
    if not new.holds("Complete") or (old is not None and old.holds("Complete")):
        return []
    done = "  ".join(
        part
        for part in (
            "complete",
            position(new.progress) if new.progress.position else "",
            metrics(new.progress),
        )
        if part
    )
    return [Change(Kind.STATE, done)]


GONE_HERE = "gone with the workers; --storage keeps it"
"""Where a checkpoint is that was stored nowhere, for a job of this machine."""

KEEPS = (
    "trainjob.report(metrics, checkpoint=trainjob.Checkpoint.from_dict(state)) keeps what was trained, and lets a "
    "killed job resume"
)


def completed(job: TrainJob, seconds: float | None, gone: str = GONE_HERE) -> list[str]:
    """The lines for a job that completed, after so many seconds where that is known."""
    status, latest = job.status, job.status.checkpoint.latest
    attempts = status.attempt.number if status.attempt else 0
    took = "" if seconds is None else f" in {wording.duration(seconds)}"
    lines = [f"{job.metadata.name} completed{took} with {wording.count(attempts, 'attempt')}"]
    if said := metrics(status.progress):
        lines.append(f"  {said}")
    if trouble := not_a_number(status.progress):
        lines.append(f"  warning: {trouble}")
    if latest is not None:
        lines.append(f"  checkpoint {latest.id}: {latest.uri or gone}")
    elif status.attempt is not None and status.attempt.resumed_from is not None:
        lines.append(f"  nothing new was saved; checkpoint {status.attempt.resumed_from} is there from before")
    elif defaults.uses_agent(job.spec):
        what = "no checkpoint was reported" if status.progress.position else "report() was never called"
        lines.append(f"  {what}: {KEEPS}")
    return lines
