"""Starting on a shared cluster: a start that gets only a part of its workers gives them back and tries again later.

Called by rules, slots and start. Without it, two jobs that each hold a part of the cluster would wait for each
other for ever. The pause before the next try grows, with a jitter that follows from the job's UID and the number of the
try, so that a turn gives the same answer twice and two jobs do not.
"""

from __future__ import annotations

import hashlib

from trainjob_api import contract
from trainjob_operator.core.lifecycle import end_attempt
from trainjob_operator.core.model import PodView
from trainjob_operator.core.moments import after, aware
from trainjob_operator.core.obstacles import UNSCHEDULABLE, word_of
from trainjob_operator.core.pods.naming import format_slots, parse_slots
from trainjob_operator.core.turn import Turn

GANG_WAIT_S = 60.0
"""So long after its newest pod was created, or the last one got a node, a start waits for the nodes that are
missing.
"""
RETRY_S = (20.0, 40.0, 80.0, 160.0, 300.0)
"""Pause before the next try, by tries in a row; half of it to one and a half times."""


def give_back(turn: Turn) -> None:
    """Some pods of a start have nodes, others find none, and that has not changed for a while: none is kept."""
    if turn.spec.suspend or turn.blocked is not None or is_waiting(turn):
        return None
    starting = _starting(turn)
    pods = [pod for slot in starting if (pod := turn.kids.live.get(slot)) is not None]
    placed = [pod for pod in pods if pod.scheduled]
    waiting = [pod for pod in pods if not pod.scheduled and pod.reason == UNSCHEDULABLE]
    if not placed or not waiting or _holds_the_only_checkpoints(turn):
        return None
    moments = [pod.created_at for pod in waiting if pod.created_at] + [
        pod.scheduled_at for pod in placed if pod.scheduled_at
    ]
    if not moments:
        return None
    until = after(max(aware(moment) for moment in moments), GANG_WAIT_S)
    if turn.now < until:
        turn.wake(until)
        return turn.say(
            f"{len(placed)} of {len(starting)} workers have a node; waiting for the others until {until:%H:%M:%S} UTC"
        )
    return _give_back(turn, starting, placed, waiting[0])


def is_waiting(turn: Turn) -> bool:
    """Whether the next try to get all workers is still to come."""
    retry_at = turn.status.timing.gang_retry_at
    if retry_at is None or turn.now >= aware(retry_at):
        return False
    turn.wake(retry_at)
    return True


def _starting(turn: Turn) -> list[int]:
    """Slots whose pods are on their way up: all of a start, or those that a running attempt is to grow by."""
    listed = parse_slots(turn.status.slots)
    attempt = turn.running
    if attempt is None:
        return list(listed)
    if turn.plain:
        return list(listed) if attempt.running_at is None else []
    members = turn.members()
    return [slot for slot in listed if slot not in members]


def _holds_the_only_checkpoints(turn: Turn) -> bool:
    """Without storage, what was trained lives in the pods: those are not given away."""
    return (
        not turn.plain
        and turn.running is None
        and turn.spec.checkpoint.storage is None
        and turn.status.progress.position > 0
    )


def _give_back(turn: Turn, starting: list[int], placed: list[PodView], waiting: PodView) -> None:
    tries = turn.status.timing.gang_tries + 1
    retry_at = after(turn.now, pause_s(turn.job.metadata.uid, tries))
    turn.gang = (
        f"only {len(placed)} of {len(starting)} workers found a node within {GANG_WAIT_S:.0f} s; their pods "
        f"are given back until {retry_at:%H:%M:%S} UTC; {word_of(waiting)}"
    )
    if turn.plain:
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
