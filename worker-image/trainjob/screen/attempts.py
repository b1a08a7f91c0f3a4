"""The attempts of a job as a person asks for them: why each ended, what was lost, how long nothing trained. For `tj
history` and `tj status`, here and on a cluster; pure. How each began, part by part, is `clock`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from trainjob.screen import changes, clock, table, wording
from trainjob.screen.asked import reason_here
from trainjob_api import same_error
from trainjob_api.v1alpha1 import Attempt, Condition, HistoryEntry, TrainJobStatus

HEADER = ("ATTEMPT", "BEGAN BY", "RANKS", "FROM", "FIRST REPORT", "RAN", "LOST", "ENDED BY", "WHY")
RUNS = "(runs)"
LEAST_ROOM = 24
"""Characters of a cause that are shown however narrow the terminal is."""


def lines(
    status: TrainJobStatus,
    now: float,
    *,
    last: str = RUNS,
    here: bool = False,
    width: int | None = None,
    until: float | None = None,
) -> list[str]:
    """The table, the running attempt last; empty before the first. `last`: how that one stands, where its launcher is
    gone, and `until` when it is known to have run; `here`: it is a job of this machine. Columns that have nothing to
    say are left out. A cause is said once; one for which a terminal of `width` columns has no room stands whole below
    the table.
    """
    named: Callable[[str], str] = reason_here if here else str
    rows = [_ended(entry, named) for entry in status.history]
    attempt, left = status.attempt, changes.unstored(status) if here else None
    if left is not None and rows and attempt is not None and attempt.number == status.history[-1].attempt:
        rows[-1][-1] = rows[-1][-1] or left.message
    if attempt is not None and attempt.number not in [entry.attempt for entry in status.history]:
        rows.append(_running(attempt, now, last, changes.trouble(status) if last == RUNS else left, named, until))
    if not rows:
        return []
    rows = _said_once(rows)
    kept = [at for at, name in enumerate(HEADER) if name == "ATTEMPT" or any(row[at] for row in rows)]
    header, cells = [HEADER[at] for at in kept], [[row[at] for at in kept] for row in rows]
    below = [] if width is None or header[-1] != "WHY" else _cut(header, cells, width)
    return [*table.lines(header, cells), *below]


def _said_once(rows: list[list[str]]) -> list[list[str]]:
    """What ended an attempt before too is named by that one."""
    first: dict[str, str] = {}
    found = []
    for row in rows:
        number = first.setdefault(same_error.by_any_process(row[-1]), row[0])
        found.append([*row[:-1], row[-1] if number == row[0] or not row[-1] else f"as attempt {number}"])
    return found


def _cut(header: list[str], cells: list[list[str]], width: int) -> list[str]:
    """Shortens the causes in the cells; the lines that say those whole."""
    before = sum(max(len(row[at]) for row in (header, *cells)) + len(table.GAP) for at in range(len(header) - 1))
    room = max(LEAST_ROOM, width - before)
    below = [f"attempt {row[0]}: {row[-1]}" for row in cells if len(row[-1]) > room]
    for row in cells:
        row[-1] = wording.cut(row[-1], room)
    return below


def _ended(entry: HistoryEntry, named: Callable[[str], str]) -> list[str]:
    return [
        *_begin(entry, named),
        _length(entry.started_at, entry.ended_at.timestamp()) if entry.ended_at is not None else "",
        "" if entry.lost_seconds is None else wording.duration(entry.lost_seconds),
        named(entry.end_cause or ""),
        (entry.message or "").strip().partition("\n")[0],
    ]


def _running(
    attempt: Attempt,
    now: float,
    last: str,
    trouble: Condition | None,
    named: Callable[[str], str],
    until: float | None = None,
) -> list[str]:
    why = trouble.message or trouble.reason if trouble is not None else ""
    known = now if last == RUNS else until
    return [*_begin(attempt, named), "" if known is None else _length(attempt.started_at, known), "", last, why]


def _begin(one: HistoryEntry | Attempt, named: Callable[[str], str]) -> list[str]:
    parts = one.parts_ms
    return [
        str(one.number if isinstance(one, Attempt) else one.attempt),
        clock.began_by(named(one.cause), one.from_spares),
        str(one.world_size),
        one.resumed_from or "",
        wording.duration(clock.total_ms(parts) / 1000) if parts and parts.first_step is not None else "",
    ]


def _length(since: datetime, until: float) -> str:
    return wording.duration(until - since.timestamp())
