"""What the agents of the running attempt say of its training: where it stands, its checkpoints, what it resumed from.

Called by the rules, and once more when an attempt ends. Nothing here is a verdict; a change of progress alone is
written at most once in PROGRESS_EVERY_S. Words about older attempts do not enter (`Turn.word`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from typing import Any

from trainjob_api import contract, nonfinite
from trainjob_api.contract import CheckpointReport, ProgressReport
from trainjob_api.v1alpha1 import Attempt, CheckpointStatus, CheckpointView, NonFinite, Progress, TrainJobStatus
from trainjob_operator.core.model import AgentView
from trainjob_operator.core.moments import after, aware, by_agent_clock
from trainjob_operator.core.pods.naming import format_slots
from trainjob_operator.core.turn import Turn

PROGRESS_EVERY_S = 10.0
KEY_LIMIT = 64
"""Characters of a metric's name."""
URI_LIMIT = 512
"""Characters of a checkpoint's place."""
COUNT_LIMIT = 2**53
"""Larger numbers are not shown: JSON readers lose their last digits."""


def note_attempt(turn: Turn, runs: Callable[[Turn], bool]) -> None:
    """Which run the attempt belongs to, what it resumed from, and when its ranks ran: written as soon as known."""
    attempt = turn.running
    if attempt is None:
        return
    started = attempt.running_at
    if started is None and turn.members() and runs(turn):
        started = turn.now
    if started is None:
        return  # members tell of the run one by one while they join: that goes with the write that says they run
    seen = {"succeeded": format_slots(turn.succeeded()), "running_at": started, **origin(turn, attempt)}
    if seen != {name: getattr(attempt, name) for name in seen}:
        turn.change(attempt=attempt.model_copy(update=seen))


def origin(turn: Turn, attempt: Attempt) -> dict[str, Any]:
    """Which run the attempt belongs to, and what it resumed from, as far as its members have told."""
    words = list(turn.words())
    source = next((view.resumed_from for view in words if view.resumed_from), attempt.resumed_from)
    return {
        "run": next((view.run for view in words if view.run is not None), attempt.run),
        "resumed_from": source[:URI_LIMIT] if source else None,
    }


def take_progress(turn: Turn, *, at_end: bool = False) -> None:
    """Enter newer progress and checkpoints; at an attempt's end at once, else when the last entry is old enough."""
    leader = _teller(turn)
    if leader is None:
        return
    old = turn.status.progress
    said, score = leader.progress, turn.spec.checkpoint.score_attribute
    fresh = progress_of(old, said, _reported_at(turn, leader), score) if said else old
    checkpoint = checkpoints(turn.status.checkpoint, leader)
    if fresh == old and checkpoint == turn.status.checkpoint:
        return
    due = after(old.written_at, PROGRESS_EVERY_S) if old.written_at else turn.now
    if not at_end and turn.now < due:
        turn.progress_due = due
        return
    turn.change(progress=fresh.model_copy(update={"written_at": turn.now}), checkpoint=checkpoint)
    return


def _teller(turn: Turn) -> AgentView | None:
    """Who tells how far training is: of a complete run whoever knows it; before, the agent of rank 0 alone."""
    complete = next((view for view in turn.complete_words() if view.progress), None)
    if complete is not None or turn.running is None:
        return complete
    return next((view for view in turn.words() if view.progress), None) or turn.leader_last_word


def has_progressed(status: TrainJobStatus, leader: AgentView | None = None) -> bool:
    """Whether the newest attempt brought a report that none before it had reached, by what is written or by the word
    of rank 0's agent. Asked before its end is written."""
    said = leader.progress if leader is not None else None
    told = _count(said.get("position")) if said and has_reported(said) else None
    return max(status.progress.position, told or 0) > reached_before(status)


def reached_before(status: TrainJobStatus) -> int:
    """How far the attempts before the newest one came, until its end is written."""
    return (status.history[-1].position or 0) if status.history else 0


def has_reported(report: ProgressReport) -> bool:
    """Whether the attempt has called report() or log(): until then its position is that of the checkpoint that it
    resumed from, and no time stands beside it.
    """
    said = report.get("step") is not None or bool(report.get("metrics"))
    return said or report.get("time") != 0.0


def _reported_at(turn: Turn, leader: AgentView) -> datetime:
    """When the newest report was, on our clock; it is written up to PROGRESS_EVERY_S later. A moment that cannot
    be, for a clock that was set, is that of the writing.
    """
    told = by_agent_clock(leader.progress.get("time"), leader.clock_offset) if leader.progress else None
    known = (turn.running.started_at if turn.running else None, turn.status.progress.last_report_time)
    possible = told is not None and all(aware(each) <= told for each in known if each) and told <= turn.now
    return told if told is not None and possible else turn.now


def progress_of(old: Progress, report: ProgressReport, at: datetime, score: str | None) -> Progress:
    """What rank 0's agent tells, by `score` in short, reported at `at`; the old progress itself if nothing but time has
    passed.
    """
    if not has_reported(report):
        return old  # what the attempt before told stays on display; where it resumed from is no report
    step, total = _count(report.get("step")), _count(report.get("total_steps"))
    metrics = {
        name[:KEY_LIMIT]: float(value) for name, value in (report.get("metrics") or {}).items() if math.isfinite(value)
    }
    broken = _non_finite(report)
    scored = nonfinite.with_first(metrics, broken.metric, broken.value) if broken is not None else metrics
    fresh = Progress(
        position=max(old.position, _count(report.get("position")) or 0),
        step=step,
        total_steps=total,
        epoch=_count(report.get("epoch")),
        percent=max(0, min(100, step * 100 // total)) if step is not None and total else None,
        last_report_time=old.last_report_time,
        seconds_per_step=_seconds_per_step(report),
        metrics=dict(list(metrics.items())[: contract.METRICS_LIMIT]),
        summary=_summary(scored, score),
        written_at=old.written_at,
        non_finite=broken,
    )
    return old if fresh == old else fresh.model_copy(update={"last_report_time": at})


def _seconds_per_step(report: ProgressReport) -> float | None:
    """With the digits that are shown: more would only make status longer."""
    told = report.get("seconds_per_step")
    return float(f"{told:.4g}") if told is not None and 0 < told < COUNT_LIMIT else None


def _non_finite(report: ProgressReport) -> NonFinite | None:
    seen = report.get("non_finite")
    if not seen:
        return None
    return NonFinite(
        metric=seen["metric"][:KEY_LIMIT],
        value=seen["value"],
        step=_count(seen["step"]),
        position=_count(seen["position"]) or 0,
        count=_count(seen["count"]) or 1,
    )


def _summary(metrics: dict[str, float], score: str | None) -> str | None:
    """`loss=0.231`: one metric for a table's column."""
    name = next((name for name in (score, "loss", *metrics) if name in metrics), None)
    return f"{name}={metrics[name]:.4g}" if name is not None else None


def _count(value: int | None) -> int | None:
    return value if value is not None and -COUNT_LIMIT < value < COUNT_LIMIT else None


def checkpoints(old: CheckpointStatus, view: AgentView) -> CheckpointStatus:
    """`old`, with what rank 0's agent tells of checkpoints on storage."""
    latest = _checkpoint(view.latest, view, old.latest)
    best = _checkpoint(view.best, view, old.best)
    return CheckpointStatus(
        latest=latest, best=best, count=_count(view.checkpoint_count) or 0 if view.latest else old.count
    )


def _checkpoint(report: CheckpointReport | None, view: AgentView, old: CheckpointView | None) -> CheckpointView | None:
    """The old one, if none is told, or if what is told of the same one is its id alone."""
    if not report or not report.get("id") or (old is not None and report == {"id": old.id, "bytes": 0, "metrics": {}}):
        return old
    uri = report.get("uri")
    # Where the moment is shown the agent's clock will do: a correction that drifts would change status each time.
    time = by_agent_clock(report.get("time"), type(view.clock_offset)())
    return CheckpointView(
        id=report["id"][:KEY_LIMIT],
        step=_count(report.get("step")),
        uri=uri[:URI_LIMIT] if uri else None,
        time=aware(time) if time else None,
        bytes=_count(report.get("bytes")) or 0,
    )
