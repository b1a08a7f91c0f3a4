"""Another size than the wished one: with which workers an elastic job goes on now, and for whom it still waits.

Called by `start.py`. A job that was not told `spec.elastic` has one size, and none of this. Three waits, each with its
end: a worker that was lost has `shrinkAfterSeconds` for its successor; further workers must have been up for
`growAfterSeconds`, unless all are up that somebody has wished since the attempt began; a start that could begin waits a
moment for workers that are visibly on their way.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from trainjob_api import defaults
from trainjob_api.v1alpha1 import Attempt, Growth
from trainjob_operator.core import obstacles
from trainjob_operator.core.answers import Hold, Waker
from trainjob_operator.core.ends.causes import cause_of
from trainjob_operator.core.lifecycle import name_workers
from trainjob_operator.core.model import PodPhase, PodView
from trainjob_operator.core.moments import after, aware
from trainjob_operator.core.size import gang
from trainjob_operator.core.size.least import begins_afresh, least
from trainjob_operator.core.turn import Turn

PLACING_S = 5.0
"""A start waits so long for a pod of which the scheduler has said nothing yet."""
COMING_UP_S = 30.0
"""And so long, from when it could begin, for one that has got a node: its image is pulled, its agent starts."""


def chosen(turn: Turn, ready: Sequence[int], size: int) -> tuple[int, ...]:
    """So many of those that are ready, members of the last attempt first; in their order."""
    return tuple(sorted(sorted(ready, key=lambda slot: (slot not in turn.former, slot))[:size]))


def hold(turn: Turn, size: int, late: Sequence[int]) -> Hold | None:
    """The wait of a start that could begin with `size` workers, fewer than wished, for those that are `late`; None: it
    waits no longer.
    """
    elastic, last = turn.spec.elastic, turn.status.attempt
    if elastic is None or not late:
        return None
    names, afresh = name_workers(turn, list(late)), last is None or last.ended_at is None or _begins_afresh(turn, last)
    suffices = not afresh and size >= least(turn)
    if any(_has_not_found_us(turn, slot) for slot in late if not suffices or slot in turn.former):
        why = f"waiting until {turn.listens_until:%H:%M:%S} UTC for the word of {names}: this leader is new to them"
        return Hold(why=why, until=turn.listens_until, event=Waker.AGENT)
    if last is None or last.ended_at is None or afresh:
        since = _could_begin_since(turn, size)
        moments = [until for slot in late if (until := _on_its_way_until(turn, slot, since)) is not None]
        if not moments:
            return None
        why = f"{size} of {turn.spec.workers} workers are there; waiting a moment for those that are coming up: {names}"
        return Hold(why=why, until=min(moments), event=Waker.AGENT)
    if suffices:
        return None  # as many as trained before: they wait for no wish
    if gang.holds_the_only_checkpoints(turn) and any(slot in turn.former and slot in turn.kids.live for slot in late):
        why = f"waiting for {names}: without checkpoint.storage what was trained last is there alone"
        return Hold(why=why, event=Waker.AGENT)
    until = _shrinks_at(turn, last.ended_at, elastic.shrink_after_seconds, late)
    has_no_room = cause_of(last.end_cause).preemption and not any(_may_come(turn, slot) for slot in late)
    if turn.now >= until or has_no_room:
        return None
    why = (
        f"waiting until {until:%H:%M:%S} UTC for {names} (elastic.shrinkAfterSeconds), then training continues smaller"
    )
    return Hold(why=why, until=until, event=Waker.AGENT)


def is_raised(turn: Turn) -> bool:
    """Whether more are wished than when the running attempt began: a person's word, which waits for no time to pass."""
    attempt = turn.running
    return attempt is not None and attempt.wished is not None and turn.spec.workers > attempt.wished


def grows_at(turn: Turn, members: Collection[int], ready: Collection[int], growth: Growth | None) -> datetime | None:
    """When training goes on with those that are ready beside its members; None: they do not make an allowed size. What
    is known of it, `growth`, stays in status.
    """
    size = defaults.largest_size(turn.spec, len(ready)) or 0
    if turn.spec.elastic is None or size <= len(members):
        return None
    # Further ones that come up are no reason to write again.
    known = growth or Growth(workers=size, since=turn.now)
    turn.change(growth=known)
    return after(known.since, turn.spec.elastic.grow_after_seconds)


def _begins_afresh(turn: Turn, last: Attempt) -> bool:
    """An edit that replaces all pods leaves nobody who goes on, either."""
    return begins_afresh(turn) or last.make not in (None, turn.make)


def _could_begin_since(turn: Turn, size: int) -> datetime:
    """Since when there have been enough for this start; kept in status."""
    known = turn.status.growth or Growth(workers=size, since=turn.now)
    turn.change(growth=known)
    return aware(known.since)


def _shrinks_at(turn: Turn, ended_at: datetime, shrink_s: float, late: Sequence[int]) -> datetime:
    """When the successors of lost workers have had their time. While the job backs off none is made, and one that is
    visibly coming up is not left for a moment's sake; after one that failed no other is waited for anew.
    """
    failure, retry_at = turn.status.last_failure, turn.status.timing.retry_at
    if failure is not None and aware(failure.time) > aware(ended_at):
        return after(ended_at, shrink_s)
    until = after(max(aware(ended_at), aware(retry_at or ended_at)), shrink_s)
    coming = [at for slot in late if (at := _on_its_way_until(turn, slot)) is not None] if shrink_s > 0 else []
    return max([until, *coming])


def _on_its_way_until(turn: Turn, slot: int, since: datetime | None = None) -> datetime | None:
    """Until when a worker that is visibly coming up is waited for; its image may take long, but who could begin `since`
    then waits only a moment.
    """
    pod = turn.kids.live.get(slot)
    if pod is None:
        refused = turn.observed.refusals or turn.observed.unanswered
        return after(turn.now, PLACING_S) if slot not in turn.kids.ended and not refused else None
    if _is_held_up(pod):
        return None
    seen, wait_s = (pod.scheduled_at or pod.created_at, COMING_UP_S) if pod.scheduled else (pod.created_at, PLACING_S)
    if pod.scheduled and since is not None:
        seen = max(aware(seen or since), since)
    until = after(seen, wait_s) if seen is not None else turn.now
    return until if until > turn.now else None


def _has_not_found_us(turn: Turn, slot: int) -> bool:
    """It runs, and nobody has heard its agent since this leader began to listen."""
    pod = turn.kids.live.get(slot)
    return (
        pod is not None
        and pod.phase is PodPhase.RUNNING
        and turn.kids.agent(pod) is None
        and turn.now < turn.listens_until
    )


def _may_come(turn: Turn, slot: int) -> bool:
    pod = turn.kids.live.get(slot)
    return not _is_held_up(pod) if pod is not None else not turn.observed.refusals


def _is_held_up(pod: PodView) -> bool:
    """The scheduler finds no node for it."""
    return not pod.scheduled and pod.reason in (obstacles.UNSCHEDULABLE, obstacles.GATED)
