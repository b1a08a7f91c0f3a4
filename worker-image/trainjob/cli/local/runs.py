"""The runs of a name as `tj history` and `tj status` show them: a row each, the newest first."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from trainjob.cli.local import find
from trainjob.launch.local.registry import earlier, records
from trainjob.launch.local.registry.records import Record
from trainjob.screen import changes, failure, table, wording
from trainjob_api.v1alpha1 import TrainJob

HEADER = ("RUN", "STARTED", "TOOK", "STATUS", "ATTEMPTS", "CHECKPOINT", "WHY")
KILLED = "its launcher was killed"
"""Of a run about which nobody wrote more."""
WHY_LIMIT = 80
"""Characters of a cause; `--run` shows the whole of it."""


def lines(newest: Record, now: float) -> list[str]:
    """The table and how one of them is shown; empty where there was one run alone."""
    known = find.every_run(newest)
    if len(known) == 1:
        return []
    rows = [_row(each, is_newest=each is newest, now=now) for each in known]
    kept = [at for at, name in enumerate(HEADER) if name == "RUN" or any(row[at] for row in rows)]
    shown = table.lines([HEADER[at] for at in kept], [[row[at] for at in kept] for row in rows])
    name, other = newest.name, earlier.name_of(known[1])
    return [*shown, f"`tj history {name} --run {other}` shows that run; so do `tj status` and `tj logs` with --run"]


def opening(record: Record) -> str:
    """Which run what follows is of."""
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.started))
    return f"run {earlier.name_of(record)}   {record.shown_state}   started {started}"


def as_json(newest: Record, chosen: Sequence[Record]) -> list[dict[str, Any]]:
    """A row each for programs."""
    return [
        {
            "kind": "run",
            "run": each.number,
            "name": earlier.name_of(each),
            "status": each.state,
            "started": each.started,
            "ended": each.ended,
            "attempts": _attempts(job),
            "checkpoint": checkpoint(each, job, is_newest=each is newest),
            "message": _cause(each, job),
        }
        for each in chosen
        for job in [find.job_of(each)]
    ]


def checkpoint(record: Record, job: TrainJob | None, *, is_newest: bool) -> str | None:
    """The newest of that run's. One that never came to storage stored none."""
    if not is_newest and record.number is None:
        return None
    return find.newest_checkpoint(record, job)


def _row(record: Record, *, is_newest: bool, now: float) -> list[str]:
    job = find.job_of(record)
    over = record.ended or (now if record.state == records.RUNNING else find.last_sign(record, job))
    why = _cause(record, job) or ""
    return [
        earlier.name_of(record),
        f"{wording.age(record.started, now)} ago",
        wording.duration(over - record.started) if over else "",
        record.shown_state,
        str(_attempts(job) or ""),
        checkpoint(record, job, is_newest=is_newest) or "",
        wording.cut(why, WHY_LIMIT),
    ]


def _attempts(job: TrainJob | None) -> int:
    if job is None:
        return 0
    return max((job.status.attempt.number if job.status.attempt else 0, *(e.attempt for e in job.status.history)))


def _cause(record: Record, job: TrainJob | None) -> str | None:
    left = None if job is None else changes.unstored(job.status)
    if record.state in (records.STOPPED, records.KILLED) and left is not None:
        return left.message
    if record.state == records.KILLED:
        return KILLED
    if job is None or record.state != "Failed":
        return None
    failed = job.status.condition("Failed")
    if job.status.last_failure is not None:
        return failure.headline(job.status.last_failure)
    return None if failed is None else failed.message.partition("\n")[0]
