"""Where the time of a job went: every millisecond since its first turn is in exactly one place. Pure; called by
`lifecycle.py` at each boundary (an attempt ends, a suspension begins or ends, the job ends) and by `status.py` when
something is written anyway.

The time up to the last boundary is settled and stands in status; the rest is dealt out anew at each write, since what
is known of it grows (a first step is told after it was made). Whole milliseconds are dealt out, so that the parts sum
to the whole exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from trainjob_api import contract
from trainjob_api.v1alpha1 import Attempt, Goodput, HangView, Seconds
from trainjob_operator.core.moments import after, aware, by_agent_clock, elapsed
from trainjob_operator.core.parts import LONGEST_MS, bounded_ms, first_step_ms, heard_run, ready_ms
from trainjob_operator.core.turn import Turn

STARTING, DOWN, SUSPENDED, PRODUCTIVE = "starting", "down", "suspended", "productive"
PLACES = tuple(Seconds.model_fields)
LOSSES = tuple(name for name in PLACES if name not in (PRODUCTIVE, SUSPENDED))
IMPORTS_S = 60.0
"""So long what ranks do without a word of a step is taken for their imports, if they break in it."""
SAME_S = 1.0
"""Two words of when a hang began that are no further apart mean one hang."""
_FRESH_STARTS = (contract.REASON_STARTED, contract.REASON_RESUMED)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is known of the running attempt's work, as milliseconds since the last boundary."""

    began: int | None = None
    """When its ranks could step; None: not that anybody knows."""
    checkpoint: int = 0
    """For how long all ranks waited for a checkpoint to be saved."""
    stalled: int = 0
    """For how long no step came, beyond what is usual."""
    saved: int | None = None
    """When the newest checkpoint was safe."""
    idle: int = 0
    """What of `checkpoint` and `stalled` came after that: no work that could be lost."""


def deal(total: int, before: str, work: Work, *, broke: int | None = None, loses: bool = False) -> dict[str, int]:
    """`total` milliseconds, each in one place. `before`: what the time is until the work begins; `broke`: when it
    ended; `loses`: what was done since the newest checkpoint is to be done again.
    """
    parts = dict.fromkeys(PLACES, 0)
    end = total if broke is None else _within(broke, 0, total)
    if work.began is None:
        parts[before] = end
    else:
        began = _within(work.began, 0, end)
        parts[before], rest = began, end - began
        parts["checkpoint_stall"] = min(rest, max(0, work.checkpoint))
        rest -= parts["checkpoint_stall"]
        parts["stalled"] = min(rest, max(0, work.stalled))
        rest -= parts["stalled"]
        kept = began if work.saved is None else _within(work.saved, began, end)
        parts["lost"] = min(rest, max(0, end - kept - max(0, work.idle))) if loses else 0
        parts[PRODUCTIVE] = rest - parts["lost"]
    parts[DOWN] += total - end
    return parts


def settle(turn: Turn, *, broke: datetime | None = None, loses: bool = False) -> None:
    """A boundary: what this time was does not change any more. Before whatever changes with it is written to status."""
    books = _books(turn)
    turn.change(goodput=_entered(turn, books, broke=broke, loses=loses, at_boundary=True))


def lost_s(turn: Turn) -> float:
    """Seconds of steps that were to be done again, up to the last boundary."""
    return 0.0 if turn.status.goodput is None else turn.status.goodput.settled.lost


def show(turn: Turn) -> None:
    """The books as of now."""
    books = _books(turn)
    turn.change(goodput=books if turn.outcome is not None else _entered(turn, books))


def _books(turn: Turn) -> Goodput:
    return turn.status.goodput or Goodput(at=turn.now, settled_at=turn.now)


def _entered(
    turn: Turn, books: Goodput, *, broke: datetime | None = None, loses: bool = False, at_boundary: bool = False
) -> Goodput:
    since = aware(books.settled_at)
    now = max(turn.now, since, aware(books.at))
    total = _ms(now, since)
    parts = deal(
        total,
        _idle(turn),
        _work(turn, since, broke),
        broke=None if broke is None else max(0, _ms(broke, since)),
        loses=loses,
    )
    whole = {name: _whole(getattr(books.settled, name)) + parts[name] for name in PLACES}
    seconds = Seconds(**{name: value / 1000 for name, value in whole.items()})
    active = sum(whole.values()) - whole[SUSPENDED]
    largest = max(LOSSES, key=lambda name: whole[name])
    shown = {
        "at": now,
        "seconds": seconds,
        "ratio": round(whole[PRODUCTIVE] / active, 4) if active > 0 else None,
        "summary": f"{100 * whole[PRODUCTIVE] / active:.1f}%" if active > 0 else None,
        "largest_loss": Seconds.model_fields[largest].serialization_alias if whole[largest] > 0 else None,
    }
    return books.model_copy(update={**shown, **({"settled": seconds, "settled_at": now} if at_boundary else {})})


def _idle(turn: Turn) -> str:
    """What time is in which no rank can step."""
    attempt = turn.status.attempt
    if turn.status.timing.active_since is None and turn.status.goodput is not None:
        return SUSPENDED
    if attempt is None:
        return STARTING
    if attempt.state == "Running":
        return STARTING if attempt.cause in _FRESH_STARTS else DOWN
    return STARTING if attempt.end_cause == contract.REASON_SUSPENDED else DOWN


def _work(turn: Turn, since: datetime, broke: datetime | None) -> Work:
    attempt = turn.running
    began = None if attempt is None else _began(turn, attempt, broke)
    if attempt is None or began is None:
        return Work()
    view = turn.leader_last_word
    effort = (view.effort if view is not None else None) or {}
    saved = effort.get("saved")
    heard = heard_run(view) if view is not None else None
    safe = None if saved is None or heard is None else _ms(heard, since) + bounded_ms(saved)
    return Work(
        began=_ms(began, since),
        checkpoint=bounded_ms(effort.get("checkpoint")),
        stalled=max(bounded_ms(effort.get("stalled")), _stalled_ms(turn, since, broke)),
        saved=safe,
        idle=max(bounded_ms(effort.get("idle")), _hung_ms(turn, since, safe or 0, broke)),
    )


def _hung_ms(turn: Turn, since: datetime, safe: int, broke: datetime | None) -> int:
    """How much of the hang that lasts came after the newest checkpoint was safe."""
    hang = _hang_since(turn)
    if hang is None:
        return 0
    return max(0, _ms(turn.now if broke is None else broke, since) - max(safe, _ms(hang, since), 0))


def _stalled_ms(turn: Turn, since: datetime, broke: datetime | None) -> int:
    """For how long ranks hung, as far as it was told: what was shown stays when a hang is over, since the agent counts
    no short pause, and knows of no usual one in an attempt without enough steps.
    """
    books = _books(turn)
    shown = max(0, _whole(books.seconds.stalled) - _whole(books.settled.stalled))
    hang = _hang_since(turn)
    if hang is None:
        return shown
    begun = max(hang, since)
    known = turn.job.status.hang
    was_shown = known is not None and _is_of(known, turn) and elapsed(hang, known.since) < SAME_S
    this_shown = max(0, _ms(aware(books.at), begun)) if was_shown else 0
    return max(0, shown - this_shown) + max(0, _ms(turn.now if broke is None else broke, begun))


def _hang_since(turn: Turn) -> datetime | None:
    """Since when ranks hang, or had hung when status was written last; None: they did not."""
    known, was = turn.job.status.hang, turn.job.status.condition("Degraded")
    told = [by_agent_clock(view.hang["since"], view.clock_offset) for view in turn.words() if view.hang is not None]
    if told:
        return min(turn.now if moment is None else min(moment, turn.now) for moment in told)
    if known is None or not _is_of(known, turn) or was is None or was.reason != contract.REASON_HANG:
        return None
    return min(aware(known.since), turn.now)


def _is_of(known: HangView, turn: Turn) -> bool:
    """Whether that hang was in the running attempt."""
    return turn.running is not None and known.attempt == turn.running.number


def _began(turn: Turn, attempt: Attempt, broke: datetime | None) -> datetime | None:
    """When its ranks could step. Of a job that never reports only its ranks' start is known; what broke soon after that
    was likely still at its imports.
    """
    ready = ready_ms(attempt.parts_ms)
    if ready is not None:
        return after(attempt.started_at, ready / 1000)
    reports = turn.status.progress.last_report_time is not None or any(
        first_step_ms(entry.parts_ms) is not None for entry in turn.status.history
    )
    if reports or attempt.running_at is None:
        return None
    return None if broke is not None and elapsed(broke, attempt.running_at) < IMPORTS_S else attempt.running_at


def _within(value: int, least: int, most: int) -> int:
    return max(least, min(value, most))


def _whole(seconds: float) -> int:
    # Cut before it is rounded: a status may say what is beyond all numbers.
    return round(min(max(0.0, seconds * 1000), LONGEST_MS))


def _ms(moment: datetime, since: datetime) -> int:
    """Whole milliseconds between two moments, counted so that lengths that follow each other add up."""
    return (aware(moment) - _EPOCH) // timedelta(milliseconds=1) - (aware(since) - _EPOCH) // timedelta(milliseconds=1)
