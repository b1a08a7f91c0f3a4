"""A planned change loses no step: it waits for the next report() that brings a checkpoint, and ends the attempt there.

Called by the rules that end a running attempt because somebody wishes it (`lifecycle.py`, `size/start.py`,
`size/edits.py`) or because a worker is going away (`ends/drains.py`), and by `decide.py`. The wish stands in status;
rank 0's agent hears of it (`instruct.py`), keeps its ranks in report() behind the checkpoint that they have just saved,
and says so; the write that follows ends the attempt. Whatever ends the attempt otherwise ends the wish; a rule that
wishes no more takes it back.
"""

from __future__ import annotations

from datetime import datetime

from trainjob_api import contract
from trainjob_api.v1alpha1 import Boundary
from trainjob_operator.core.answers import Hold, Waker
from trainjob_operator.core.moments import after, aware, elapsed
from trainjob_operator.core.turn import Turn


def wait(turn: Turn, cause: str, gone_by: datetime | None = None) -> Hold | None:
    """Whether a planned end of the running attempt waits; None: it may end now. `gone_by`: a worker is going away, and
    is gone then.
    """
    attempt = turn.running
    if attempt is None or attempt.running_at is None or not turn.kind.speaks or not _saves(turn):
        return None
    known, since = turn.status.boundary, turn.now
    if known is not None:
        gone_by = gone_by or known.gone_by
        # A worker that goes away begins a wish of its own: what its agent is told of its time counts from `since` on.
        if known.gone_by is not None or gone_by is None:
            since = known.since
    wish = Boundary(cause=cause, since=since, gone_by=gone_by)
    turn.wishes_boundary = True
    word = turn.leader_word()
    if known is not None and word is not None and word.boundary == token(known):
        turn.say(f"{cause}: its ranks wait behind a checkpoint that they have just saved")
        return None
    until = until_when(turn, wish)
    if turn.now >= until:
        turn.say(f"{cause}: no report() with a checkpoint came within {elapsed(turn.now, wish.since):.0f} s")
        return None
    if wish != known:
        turn.change(boundary=wish)
    return Hold(why=waits_for(turn, wish), until=until, event=Waker.AGENT, bars_failure=False)


def waits_for(turn: Turn, wish: Boundary) -> str:
    """What a planned change waits for, and how long."""
    until = until_when(turn, wish)
    return f"{wish.cause} waits for the next report() with a checkpoint, until {until:%H:%M:%S} UTC"


def until_when(turn: Turn, wish: Boundary) -> datetime:
    """How long a wish waits: boundaryTimeoutSeconds, and of a pod's grace period what storing leaves."""
    until = after(wish.since, turn.spec.boundary_timeout_seconds)
    return until if wish.gone_by is None else min(until, after(wish.gone_by, -contract.DRAIN_RESERVE_S))


def take_back(turn: Turn) -> None:
    """Nobody wishes any more that the attempt ends; last of the rules."""
    if turn.status.boundary is not None and not turn.wishes_boundary and not turn.is_broken:
        turn.change(boundary=None)


def token(boundary: Boundary) -> str:
    """Names the wish to the agent: the same as long as it stands, whatever its cause becomes."""
    return aware(boundary.since).strftime("%Y%m%dT%H%M%S.%f")


def _saves(turn: Turn) -> bool:
    """Whether this loop reports at all, and so may bring a checkpoint: its first one too, if it saves rarely or when it
    is asked to.
    """
    word = turn.leader_word()
    told = word.progress.get("position") if word is not None and word.progress else None
    return max(turn.status.progress.position, told or 0) > 0
