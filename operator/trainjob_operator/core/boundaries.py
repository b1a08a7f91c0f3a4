"""A planned change loses no step: it waits for the next report() that brings a checkpoint, and ends the attempt there.

Called by the rules that end a running attempt because somebody wishes it (`lifecycle.py`, `size/start.py`,
`size/edits.py`) or because a worker is going away (`ends/drains.py`), and by `decide.py`. The wish stands in status;
rank 0's agent hears of it (`instruct.py`), keeps its ranks in report() behind the checkpoint that they have just saved,
and says so; the write that follows ends the attempt. Whatever ends the attempt otherwise ends the wish; a rule that
wishes no more takes it back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from trainjob_api import contract
from trainjob_api.v1alpha1 import Attempt, Boundary
from trainjob_operator.core.answers import Hold, Waker
from trainjob_operator.core.moments import after, aware, elapsed
from trainjob_operator.core.pods.naming import format_slots
from trainjob_operator.core.progress import has_reported
from trainjob_operator.core.turn import Turn


@dataclass(frozen=True)
class MayEnd:
    """Now, and why."""

    why: str


NOTHING_SAVED = MayEnd("nothing runs that saves checkpoints")
"""The wait itself is in vain."""


def hold(turn: Turn, cause: str) -> Hold | None:
    """For who ends the running attempt by plan: what it waits for first; None: it may end now."""
    found = wait(turn, cause)
    return found if isinstance(found, Hold) else None


def wait(turn: Turn, cause: str, grace_s: float | None = None, leaving: Iterable[int] = ()) -> Hold | MayEnd:
    """Whether a planned end of the running attempt waits. `leaving`: these workers are to go; `grace_s`: they have so
    long from their SIGTERM on.
    """
    attempt = turn.running
    if attempt is None or not turn.kind.speaks:
        return NOTHING_SAVED
    if not (_trains(turn, attempt) and _saves(turn)):
        unheard = len(turn.unheard()) if grace_s is None else 0
        return _until_heard(turn, cause, unheard) if unheard else NOTHING_SAVED
    known = turn.status.boundary
    wish = known or Boundary(cause=cause, since=turn.now)
    if grace_s is None and is_endless(wish) and cause != wish.cause:
        wish = Boundary(cause=cause, since=turn.now)  # it has a limit, which begins with it
    goes = {} if grace_s is None else _goes_away(turn, wish, grace_s)
    slots = format_slots(leaving) or wish.leaving
    wish = wish.model_copy(update={"cause": cause, "leaving": slots, **goes})
    turn.wishes_boundary = True
    word = turn.leader_word()
    if known is not None and word is not None and word.boundary == token(known):
        return _may_end(turn, f"{cause}: its ranks wait behind a checkpoint that they have just saved")
    until = until_when(turn, wish)
    if until is not None and turn.now >= until:
        waited_s = elapsed(turn.now, wish.since)
        return _may_end(turn, f"{cause}: no report() with a checkpoint came within {waited_s:.0f} s")
    if wish != known:
        turn.change(boundary=wish)
    return Hold(why=waits_for(turn, wish), until=until, event=Waker.AGENT, bars_failure=False)


def _until_heard(turn: Turn, cause: str, workers: int) -> Hold:
    """It may have trained for long while no operator was there, and no status tells of it."""
    turn.wishes_boundary = True
    why = f"{cause} waits for the word of {workers} workers: this leader is new to them"
    return Hold(why=why, until=turn.listens_until, event=Waker.AGENT, bars_failure=False)


def _may_end(turn: Turn, why: str) -> MayEnd:
    turn.say(why)
    return MayEnd(why)


def waits_for(turn: Turn, wish: Boundary) -> str:
    """What a planned change waits for, and how long."""
    until = until_when(turn, wish)
    limit = "" if until is None else f", until {until:%H:%M:%S} UTC"
    return f"{wish.cause} waits for the next report() with a checkpoint{limit}"


def is_endless(wish: Boundary) -> bool:
    """Whether it is a notice that names no time."""
    return wish.gone_by is None and wish.cause == contract.REASON_PREEMPTED


def until_when(turn: Turn, wish: Boundary) -> datetime | None:
    """How long a wish waits: boundaryTimeoutSeconds, and of a pod's grace period what storing leaves. None: a worker
    is to go, nobody knows when, and until then nothing is won by stopping.
    """
    timeout_s = turn.spec.boundary_timeout_seconds
    if is_endless(wish):
        return None
    if wish.gone_by is None:
        return after(wish.since, timeout_s)
    # The notice before it, however long it stood, takes no time from the grace period.
    told = max(aware(wish.since), after(wish.gone_by, -(wish.grace_seconds or 0.0)))
    return min(after(told, timeout_s), after(wish.gone_by, -contract.DRAIN_RESERVE_S))


def _goes_away(turn: Turn, wish: Boundary, grace_s: float) -> dict[str, object]:
    """The first of those that go counts. By our clock, from when we first see it: the API server's may differ."""
    gone_by, grace = after(turn.now, grace_s), grace_s
    if wish.gone_by is not None:
        gone_by = min(gone_by, aware(wish.gone_by))
    if wish.grace_seconds is not None:
        grace = min(grace, wish.grace_seconds)
    return {"gone_by": gone_by, "grace_seconds": grace}


def take_back(turn: Turn) -> None:
    """Nobody wishes any more that the attempt ends; last of the rules."""
    if turn.status.boundary is not None and not turn.wishes_boundary and not turn.is_broken:
        turn.change(boundary=None)


def token(boundary: Boundary) -> str:
    """Names the wish to the agent: the same as long as it stands, whatever its cause becomes."""
    return aware(boundary.since).strftime("%Y%m%dT%H%M%S.%f")


def _trains(turn: Turn, attempt: Attempt) -> bool:
    """Whether its ranks run: all members have said so, or rank 0's agent tells of a report, which needs all of them."""
    word = turn.leader_word()
    return attempt.running_at is not None or (
        word is not None and word.progress is not None and has_reported(word.progress)
    )


def _saves(turn: Turn) -> bool:
    """Whether this loop reports at all, and so may bring a checkpoint: its first one too, if it saves rarely or when it
    is asked to.
    """
    word = turn.leader_word()
    told = word.progress.get("position") if word is not None and word.progress else None
    return max(turn.status.progress.position, told or 0) > 0
