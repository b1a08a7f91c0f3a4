"""Starting on a shared cluster: a start that gets only a part of its workers gives them back and tries again later.

Called by rules, groups, slots and start. Without it, two jobs that each hold a part of the cluster would wait for each
other for ever. The pause before the next try grows, with a jitter that follows from the job's UID and the number of the
try, so that a turn gives the same answer twice and two jobs do not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime

from trainjob_api import contract, defaults
from trainjob_operator.core import obstacles
from trainjob_operator.core.answers import Answer, Hold, Waker
from trainjob_operator.core.lifecycle import end_attempt
from trainjob_operator.core.moments import after, aware
from trainjob_operator.core.obstacles import GATED, UNSCHEDULABLE, word_of
from trainjob_operator.core.pods.naming import format_slots, parse_slots, spare_slots
from trainjob_operator.core.size import room
from trainjob_operator.core.size.least import least
from trainjob_operator.core.size.presence import has_node
from trainjob_operator.core.turn import Turn

GANG_WAIT_S = 60.0
"""So long after its newest pod was created, or the last one got a node, a start waits for the nodes that are
missing.
"""
RESTART_WAIT_S = 300.0
"""The same where workers of an attempt wait for the successor of one that was lost: a machine that reboots, or one that
an autoscaler brings, takes minutes, and what the survivors hold is dear.
"""
RETRY_S = (20.0, 40.0, 80.0, 160.0, 300.0)
"""Pause before the next try, by tries in a row; half of it to one and a half times."""


def give_back(turn: Turn, starting: Sequence[int]) -> Answer:
    """Some pods of a start have nodes, others get none, and that has not changed for a while: none is kept. `starting`:
    its slots.
    """
    if turn.is_suspended or turn.blocked is not None or waits_until(turn) is not None:
        return None
    pods = [pod for slot in starting if (pod := turn.kids.live.get(slot)) is not None]
    placed = [pod for pod in pods if pod.scheduled]
    waiting = [pod for pod in pods if not pod.scheduled and pod.reason in (UNSCHEDULABLE, GATED)]
    why = word_of(waiting[0]) if waiting else _quota(turn, starting)
    if not placed or why is None:
        return None
    moments = [pod.created_at for pod in waiting if pod.created_at] + [
        pod.scheduled_at for pod in placed if pod.scheduled_at
    ]
    if not moments:
        return None
    survivors = turn.running is None and any(pod.slot in turn.former for pod in placed)
    wait_s = RESTART_WAIT_S if survivors else GANG_WAIT_S
    until = after(max(aware(moment) for moment in moments), wait_s)
    if turn.now < until:
        why = f"{len(placed)} of {len(starting)} workers have a node; waiting for the others until {until:%H:%M:%S} UTC"
        return Hold(why=why, until=until, event=Waker.POD)
    _give_back(turn, starting, f"only {len(placed)} of {len(starting)} workers found a node within {wait_s:.0f} s", why)
    return None


def waits_until(turn: Turn) -> datetime | None:
    """When the next try to get all workers comes; None: nothing is waited for."""
    retry_at = turn.status.timing.gang_retry_at
    if room.given_to(turn.job.metadata.uid, turn.observed.neighbours):
        return None  # others have just made room
    return None if retry_at is None or turn.now >= aware(retry_at) else aware(retry_at)


def hold(until: datetime) -> Hold:
    """The wait for that try."""
    return Hold(why=f"waiting until {until:%H:%M:%S} UTC for the next try to get nodes for all workers", until=until)


def beyond_enough(turn: Turn) -> list[int]:
    """Slots whose pods are on their way up: all of a start, or those that are beyond what the job goes on with. A spare
    counts where it has a node and may yet be what a start lacks; others are no part of it.
    """
    apart = [slot for slot in spare_slots(turn.status) if turn.running is not None or not has_node(turn, slot)]
    listed = tuple(slot for slot in parse_slots(turn.status.slots) if slot not in apart)
    members = set(turn.members())
    enough = _enough(turn, listed)
    return [slot for slot in listed if slot not in enough and slot not in members]


def _enough(turn: Turn, listed: tuple[int, ...]) -> set[int]:
    """Workers that have a node and suffice to go on, those of the last attempt first; none if they are too few."""
    if turn.running is not None and turn.spec.elastic is None:
        return set()
    placed = [slot for slot in listed if has_node(turn, slot)]
    need = least(turn) if turn.spec.elastic is None else defaults.largest_size(turn.spec, len(placed)) or least(turn)
    enough = sorted(placed, key=lambda slot: (slot not in turn.former, slot))[:need]
    return set(enough) if len(enough) == need else set()


def _quota(turn: Turn, starting: Sequence[int]) -> str | None:
    """Why pods of the start do not even exist, if a quota lets only a part of them be."""
    refused = obstacles.of_refusals(turn.observed.refusals or ())
    if refused is None or refused.reason != contract.REASON_QUOTA:
        return None
    return refused.words if any(slot in turn.kids.absent for slot in starting) else None


def holds_the_only_checkpoints(turn: Turn) -> bool:
    """Without storage, what was trained lives in the pods: those are not given away."""
    return turn.running is None and not _is_stored(turn) and turn.status.progress.position > 0


def _is_stored(turn: Turn) -> bool:
    return turn.storage is not None


def _give_back(turn: Turn, starting: Sequence[int], found: str, why: str) -> None:
    tries = turn.status.timing.gang_tries + 1
    retry_at = after(turn.now, pause_s(turn.job.metadata.uid, tries))
    turn.gang = f"{found}; their pods are given back until {retry_at:%H:%M:%S} UTC; {why}"
    if not set(starting).isdisjoint(turn.members()):
        end_attempt(turn, contract.REASON_GANG)
    keep = [slot for slot in parse_slots(turn.status.slots) if slot not in starting]
    timing = turn.status.timing.model_copy(
        update={"gang_retry_at": retry_at, "gang_tries": tries, "scheduled_at": None}
    )
    turn.change(slots=format_slots(keep), timing=timing)
    turn.tell("Warning", contract.REASON_GANG, turn.gang)
    turn.say(turn.gang)


def pause_s(uid: str, tries: int) -> float:
    """Seconds until the next try; the same for the same job and try."""
    digest = hashlib.sha256(f"{uid}/{tries}".encode()).digest()
    jitter = int.from_bytes(digest[:4], "big") / 2**32
    return RETRY_S[min(max(tries, 1), len(RETRY_S)) - 1] * (0.5 + jitter)
