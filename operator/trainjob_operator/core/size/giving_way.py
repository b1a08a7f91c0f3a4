"""Elastic jobs make room for a job of their namespace that cannot start: pods beyond one's least size give way to what
another needs at least.

Called by the rules in `decide.py`, and asked by `slots.py`, `start.py` and `gang.py`. Who gives how much is `room.py`'s
answer. The workers go at a boundary, so no step is lost and nothing is counted; until the other job trains this one
does without them, and what it does without stands in status: an operator that starts again knows it. If the other one
has not started after a while, the workers are taken back, and it is given none for an hour.
"""

from __future__ import annotations

from datetime import datetime

from trainjob_api import contract, defaults
from trainjob_api.v1alpha1 import GaveWay
from trainjob_operator.core import boundaries, make, obstacles
from trainjob_operator.core.answers import Answer
from trainjob_operator.core.lifecycle import end_attempt
from trainjob_operator.core.model import PodView, Standing
from trainjob_operator.core.moments import after, aware, elapsed
from trainjob_operator.core.pods.naming import parse_slots, spare_slots
from trainjob_operator.core.size import gang, room
from trainjob_operator.core.size.least import least
from trainjob_operator.core.size.presence import has_node
from trainjob_operator.core.turn import Turn

LACKS_AFTER_S = 30.0
"""A pod that fits nowhere waits so long before others make room: nodes come up, pods end."""
STARTS_WITHIN_S = 300.0
"""A job that was made room for has so long to train."""
IN_VAIN_S = 3600.0
"""Else it is made no room for during this time."""
IN_VAIN_LIMIT = 8
_NO_ROOM = ("Insufficient ", "Too many pods")
"""How the scheduler says that there would be a node if it held less."""


def give_way(turn: Turn) -> Answer:
    """End what was given, or give: at the next boundary."""
    _take_back(turn)
    if not _may_give(turn) or turn.blocked is not None or turn.held or turn.status.gave_way is not None:
        return None
    gift = room.gift_of(standing(turn), turn.observed.neighbours) if turn.observed.neighbours else None
    if gift is None:
        return None
    members, fewer = len(turn.members()), max(0, gift.workers - len(_spares(turn)))
    size = defaults.largest_size(turn.spec, members - fewer)
    if size is None or (not fewer and size != members):
        return None
    if fewer:
        hold = boundaries.hold(turn, contract.REASON_GAVE_WAY)
        if hold is not None:
            return hold
    freed = max(gift.workers, members - size)
    known = GaveWay(to=gift.to.name, uid=gift.to.uid, workers=size, freed=freed, beside=gift.to.has, since=turn.now)
    less = f"training continues with {size} of {members} workers" if fewer else "there are no spare workers meanwhile"
    message = f"TrainJob {gift.to.name} has no room for {gift.to.lacks} workers that it needs to start: {less}"
    if fewer:
        end_attempt(turn, contract.REASON_GAVE_WAY)
    turn.change(gave_way=known)
    turn.tell("Normal", contract.REASON_GAVE_WAY, message)
    turn.say(message)
    return None


def _take_back(turn: Turn) -> None:
    """The other job trains, or wants no room any more, or had its time."""
    known = turn.status.gave_way
    if known is None:
        return
    other = next((job for job in turn.observed.neighbours if job.uid == known.uid), None)
    until = after(known.since, STARTS_WITHIN_S)
    fits = turn.spec.elastic is not None and known.workers in defaults.sizes(turn.spec)
    if fits and not turn.spec.suspend and turn.now < until and (other is None or not other.content):
        turn.wait(f"makes room for {known.to} until it trains, at most until {until:%H:%M:%S} UTC", until=until)
        return
    turn.change(gave_way=None)
    if turn.now >= until and other is not None and not other.content:
        recent = {uid: at for uid, at in turn.status.gave_way_in_vain.items() if _counts(turn, at)}
        newest = sorted(recent.items(), key=lambda item: aware(item[1]))[-(IN_VAIN_LIMIT - 1) :]
        turn.change(gave_way_in_vain={**dict(newest), known.uid: turn.now})
        message = f"{known.to} did not start within {STARTS_WITHIN_S:.0f} s: no room is made for it for an hour"
        turn.tell("Warning", contract.REASON_GAVE_WAY, message)
        turn.say(message)


# --- How a job stands -------------------------------------------------------------------------------------------------


def standing(turn: Turn) -> Standing:
    """What the other jobs of the namespace are to know of this one."""
    metadata, known = turn.job.metadata, turn.status.gave_way
    rests = turn.outcome is not None or turn.status.finished or turn.is_suspended
    pods = [pod for slot in parse_slots(turn.status.slots) if (pod := turn.kids.live.get(slot)) is not None]
    lacks, above = 0 if rests else _lacks(turn, pods), _above(turn)
    has = sum(pod.scheduled for pod in pods) if lacks else 0
    wants = _may_give(turn) and any(not pod.scheduled for pod in pods)
    return Standing(
        name=metadata.name,
        uid=metadata.uid,
        created_at=metadata.creation_timestamp,
        priority=next((pod.priority for pod in pods if pod.priority is not None), None),
        requests=room.requests_of(turn.spec) if lacks or above or wants else (),  # nobody compares any others
        lacks=lacks,
        has=has,
        content=rests or turn.running is not None,
        above=above,
        wants=wants,
        gave_to=known.uid if known is not None else None,
        gave=known.freed if known is not None else 0,
        gave_beside=known.beside if known is not None else 0,
        in_vain=frozenset(uid for uid, at in turn.status.gave_way_in_vain.items() if _counts(turn, at)),
    )


def _may_give(turn: Turn) -> bool:
    """It trains and can train with fewer; without storage what the others hold would go with them."""
    attempt = turn.running
    may = turn.spec.elastic is not None and turn.storage is not None and not make.is_plain(turn.make)
    return may and attempt is not None and attempt.running_at is not None


def _above(turn: Turn) -> int:
    """Spares go first."""
    more = max(0, len(turn.members()) - room.least_size(turn.spec))
    return more + len(_spares(turn)) if _may_give(turn) else 0


def _spares(turn: Turn) -> list[int]:
    """Those that hold room."""
    return [slot for slot in spare_slots(turn.status) if has_node(turn, slot)]


def _lacks(turn: Turn, pods: list[PodView]) -> int:
    """Of what it needs to begin, and has had no room for during a while."""
    if turn.running is not None or turn.blocked is not None or turn.status.verdict is not None:
        return 0
    waits = [pod for pod in pods if _finds_no_room(pod)]
    since = min((aware(pod.created_at) for pod in waits if pod.created_at is not None), default=None)
    refused = obstacles.of_refusals(turn.observed.refusals or ())
    lasts = since is not None and elapsed(turn.now, since) >= LACKS_AFTER_S
    if since is not None and not lasts:
        turn.wake(after(since, LACKS_AFTER_S))
    over_quota = refused is not None and refused.reason == contract.REASON_QUOTA
    if not (lasts or over_quota or gang.waits_until(turn) is not None):
        return 0
    need = room.least_size(turn.spec) if turn.spec.elastic is not None else least(turn)
    return max(0, need - sum(pod.scheduled for pod in pods))


def _finds_no_room(pod: PodView) -> bool:
    return (
        not pod.scheduled
        and pod.reason == obstacles.UNSCHEDULABLE
        and any(word in (pod.message or "") for word in _NO_ROOM)
    )


def _counts(turn: Turn, at: datetime) -> bool:
    return elapsed(turn.now, at) < IN_VAIN_S
