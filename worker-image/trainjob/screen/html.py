"""A job's state at one moment as HTML, for a notebook; pure. The words are those of the panel.

Everything that comes from the job is escaped: names, metrics and messages are the user's. No script and no style sheet:
what a notebook shows of somebody else's saved output is stripped of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from trainjob.screen.changes import percent
from trainjob.screen.panel import metrics, state, steps, troubles

if TYPE_CHECKING:
    from trainjob.screen.pace import Pace
    from trainjob.screen.panel import Moment
    from trainjob_api.v1alpha1 import TrainJob

ATTEMPTS_SHOWN = 5
"""The newest; `tj history` has them all."""

_COLOURS = {
    "Complete": "green",
    "Failed": "crimson",
    "Restarting": "darkorange",
    "Suspended": "darkorange",
    "Stopping": "darkorange",
}
_COLUMNS = ("attempt", "began by", "ended by", "ranks", "from")


def view(job: TrainJob, pace: Pace, moment: Moment, said: Sequence[str]) -> str:
    """State, progress, metrics, trouble, attempts, and the lines that were said of it, the newest last."""
    colour = _COLOURS.get(job.status.phase or "", "steelblue")
    parts = [
        f"<b>{escape(job.metadata.name)}</b>&ensp;{escape(state(job, moment))}",
        _progress(job, pace, moment),
        escape(metrics(job, moment)),
        *(f'<span style="color: crimson">{escape(line)}</span>' for line in troubles(job, moment)),
    ]
    facts = "".join(f"<div>{part}</div>" for part in parts if part)
    return (
        f'<div style="border-left: 4px solid {colour}; padding-left: 0.8em; margin: 0.4em 0">'
        f"{facts}{_attempts(job)}{lines(said)}</div>"
    )


def _progress(job: TrainJob, pace: Pace, moment: Moment) -> str:
    share = percent(job.status.progress)
    bar = "" if share is None else f'<progress max="100" value="{max(0, min(100, share))}"></progress>&ensp;'
    text = steps(job, pace, moment)
    return f"{bar}{escape(text)}" if text else ""


def _attempts(job: TrainJob) -> str:
    """Once there were two: of one the lines above say all."""
    found = [(one.attempt, one.cause, one.end_cause, one.world_size, one.resumed_from) for one in job.status.history]
    now = job.status.attempt
    if now is not None and now.number not in [one[0] for one in found]:
        found.append((now.number, now.cause, now.end_cause, now.world_size, now.resumed_from))
    if len(found) < 2:
        return ""
    head = "".join(f'<th style="text-align: left">{name}</th>' for name in _COLUMNS)
    rows = "".join(
        "<tr>" + "".join(f'<td style="text-align: left">{escape(str(cell or ""))}</td>' for cell in row) + "</tr>"
        for row in found[-ATTEMPTS_SHOWN:]
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


def lines(said: Sequence[str]) -> str:
    """What was said, line by line."""
    return f"<pre>{escape(chr(10).join(said))}</pre>" if said else ""
