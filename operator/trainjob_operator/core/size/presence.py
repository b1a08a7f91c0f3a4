"""Which workers are there, so that the next attempt can begin with them.

Asked by `start.py`, `spares.py`, `gang.py`, `giving_way.py` and `groups/`. Decides nothing.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from trainjob_operator.core.ends.silence import lost_to_peers, silent_slots
from trainjob_operator.core.moments import after, aware
from trainjob_operator.core.pods.naming import parse_slots
from trainjob_operator.core.turn import Turn

DOUBTED_LOOK_S = 1.0
"""How often the word of a worker that its peers lost is looked for. (Longer silence is told by `silence.py`.)"""


def has_node(turn: Turn, slot: int) -> bool:
    """Whether the slot's pod holds room."""
    pod = turn.kids.live.get(slot)
    return pod is not None and pod.scheduled


def is_synced(turn: Turn, slot: int) -> bool:
    """Whether the agent of the slot's pod has been heard, and the pod is here to stay."""
    view = turn.kids.agent(turn.kids.live.get(slot))
    return view is not None and bool(view.address) and not view.draining


def is_warm(turn: Turn, slot: int) -> bool:
    """Whether its agent has made what ranks are forks of, or needs nothing of that kind: who waits beside those that
    train can take part at once. (The agent gives up making it after a minute.)
    """
    view = turn.kids.agent(turn.kids.live.get(slot))
    return view is not None and not view.warming


class Late(NamedTuple):
    """Those of a team that cannot be members of the next attempt yet."""

    slots: list[int]
    until: datetime | None = None
    """When one of them is looked at again whose next word may be nothing new."""


def missing(turn: Turn, team: tuple[int, ...]) -> Late:
    """Who of a team is waited for."""
    former = parse_slots(turn.status.attempt.members) if turn.status.attempt else ()
    lost, silent = lost_to_peers(turn, former), silent_slots(turn)
    doubted = {slot for slot in team if slot in lost and _is_doubted(turn, slot)}
    late = [slot for slot in team if slot in silent or slot in doubted or not _is_there(turn, slot)]
    return Late(late, after(turn.now, DOUBTED_LOOK_S) if doubted else None)


def _is_doubted(turn: Turn, slot: int) -> bool:
    """Its peers could not reach it: it is asked to speak for itself before anyone waits for it in a join."""
    view, last = turn.kids.agent(turn.kids.live.get(slot)), turn.status.attempt
    if view is None or last is None or not is_synced(turn, slot):
        return False
    return last.ended_at is None or aware(view.heard_at) <= aware(last.ended_at)


def _is_there(turn: Turn, slot: int) -> bool:
    view, last = turn.kids.agent(turn.kids.live.get(slot)), turn.status.attempt
    if view is None or not is_synced(turn, slot):
        return False
    if last is None:
        return view.quiet
    # In the write that ends an attempt its ranks may still live: agents reap them before they join the next one.
    return view.quiet or (view.attempt == last.number and (turn.just_ended is not None or turn.running is not None))
