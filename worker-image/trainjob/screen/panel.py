"""The live panel as text: a job's state at one moment in at most six lines; pure.

`live.py` puts a border and colours around it. Everything here fits any width and any terminal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainjob.screen import changes, wording
from trainjob.screen import failure as failures
from trainjob.screen import pace as paces
from trainjob.screen.changes import not_a_number, percent, position, waits_for

if TYPE_CHECKING:
    from trainjob.screen.pace import Pace
    from trainjob_api.v1alpha1 import TrainJob

BAR_WIDTH = 28
WARNING = "warning: "
"""How a line begins that is to be seen."""


@dataclass(frozen=True)
class Moment:
    """When the panel is drawn, in the clock of the status (seconds since the epoch)."""

    now: float
    started: float
    """When the command began."""
    ascii_only: bool = False
    last: bool = False
    """Nothing is drawn after it: an age would go stale."""
    asked: bool = False
    """It is one look: nothing moves that shows that steps are taken."""
    phase: str | None = None
    """A word in place of the status's, from who knows more: a launcher that was killed wrote no status."""


def panel(job: TrainJob, pace: Pace, moment: Moment) -> list[str]:
    """State, progress, metrics and checkpoint, then what it waits for or what failed last."""
    lines = [state(job, moment), _bar(job, pace, moment), metrics(job, moment), *troubles(job, moment)]
    return [line for line in lines if line]


def troubles(job: TrainJob, moment: Moment) -> list[str]:
    """A metric that is no number any more, what a start waits for, what failed last."""
    lines = []
    nan, trouble = not_a_number(job.status.progress), changes.trouble(job.status)
    waiting = waits_for(job.status) if job.status.attempt is None else None
    if nan:
        lines.append(f"{WARNING}{nan}")
    if trouble is not None and moment.phase is None:  # else it is over, or about to be
        since = wording.age(trouble.last_transition_time.timestamp(), moment.now)
        lines.append(f"{WARNING}for {since}: {trouble.message or trouble.reason}")
    if waiting:
        lines.append(f"waiting: {waiting}")
    if job.status.last_failure is not None:
        lines.append(
            f"last failure: attempt {job.status.last_failure.attempt}, {failures.headline(job.status.last_failure)}"
        )
    return lines


def state(job: TrainJob, moment: Moment) -> str:
    """Phase, workers, ranks, restarts used, time since the command began."""
    status, most = job.status, job.spec.failure_policy.max_failures
    attempt = status.attempt
    used = status.failures.counted
    if status.finished and attempt is not None:
        used = min(used, attempt.number - 1)  # the failure that ended the job was followed by no restart
    parts = [moment.phase or status.phase or "Starting"]
    if not status.finished and moment.phase is None:
        parts.append(f"{status.workers.ready}/{status.workers.desired or job.spec.workers} workers")
        if status.workers.spares is not None:
            parts.append(f"{status.workers.spares} spares")
    if attempt is not None:
        parts.append(f"{wording.count(attempt.world_size, 'rank')}, attempt {attempt.number}")
    if most:
        of_all = f"{min(used, most)} of {wording.count(most, 'restart')} used"
        parts.append(wording.count(used, "restart") if most < 0 else of_all)
    else:
        parts.append("no restarts allowed")
    parts.append(wording.duration(moment.now - moment.started))
    return "   ".join(parts)


def _bar(job: TrainJob, pace: Pace, moment: Moment) -> str:
    progress = job.status.progress
    if progress.last_report_time is None:
        return _last_step(job, pace, moment)
    share = percent(progress)
    full, empty = ("#", ".") if moment.ascii_only else ("━", "─")
    done = 0 if share is None else BAR_WIDTH * min(100, share) // 100
    drawn = "" if share is None else full * done + empty * (BAR_WIDTH - done) + "  "
    return drawn + steps(job, pace, moment)


def steps(job: TrainJob, pace: Pace, moment: Moment) -> str:
    """How far it is, how fast it goes, how long it will take; empty before the first report."""
    progress = job.status.progress
    if progress.last_report_time is None:
        return ""
    rate, left = pace.seconds_per_step, pace.seconds_left(progress.total_steps, moment.now)
    parts = [position(progress), "" if rate is None else wording.per_step(rate)]
    # Where no step comes nobody knows when it will be done.
    goes_on = not job.status.finished and moment.phase is None and not paces.is_quiet(job.status, pace, moment.now)
    parts.append(f"ETA {wording.duration(left)}" if left and goes_on else "")
    parts.append(_last_step(job, pace, moment))
    return "  ".join(part for part in parts if part)


def _last_step(job: TrainJob, pace: Pace, moment: Moment) -> str:
    """A view that moves says it only when it does not."""
    status = job.status
    if moment.last or moment.phase is not None:
        return ""
    return paces.last_step(status, pace, moment.now) if moment.asked or paces.is_quiet(status, pace, moment.now) else ""


def metrics(job: TrainJob, moment: Moment) -> str:
    """The newest metrics and the newest checkpoint."""
    progress, latest = job.status.progress, job.status.checkpoint.latest
    parts = [changes.metrics(progress)]
    if latest is not None:
        step = "" if latest.step is None else f" at step {latest.step}"
        dated = latest.time if not moment.last else None
        age = "" if dated is None else f", {wording.age(dated.timestamp(), moment.now)} ago"
        parts.append(f"checkpoint {latest.id}{step}{age}")
    return "   ".join(part for part in parts if part)
