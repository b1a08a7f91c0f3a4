"""Which end came first in a group without agents, where kubelets alone tell of ends, each when it comes to it.

Called by `failures.py`. Who is heard first is not who broke first: the others' ends are waited for a moment, and what
speaks of a lost peer is no first cause while another end is there. Of deletions and pods that are gone nobody waits to
hear.
"""

from __future__ import annotations

import re
from datetime import datetime

from trainjob_api import contract
from trainjob_operator.core.answers import Hold, Waker
from trainjob_operator.core.ends.incident import Incident
from trainjob_operator.core.ends.pod_ends import is_lost, lost_at, of_pod
from trainjob_operator.core.moments import after, aware
from trainjob_operator.core.pods.naming import pod_name
from trainjob_operator.core.turn import Turn

KUBELETS_WAIT_S = 3.0
"""From the first end: a kubelet looks at its containers each second, and then has its word to bring."""
VICTIMS_WAIT_S = 15.0
"""The same where all that have ended speak of a peer that went away: one of the others was first, and its kubelet may
have much to do. Of a machine that went away nobody may ever tell.
"""
_LOST_PEER = re.compile(contract.LOST_PEER_TEXT, re.DOTALL)


def first_end(turn: Turn) -> Incident | Hold | None:
    """Of the running attempt's members."""
    succeeded = turn.succeeded()
    lost = [slot for slot in turn.members() if slot not in succeeded and is_lost(turn, slot)]
    if not lost:
        return None
    until = _waits_until(turn, lost) if len(lost) + len(succeeded) < len(turn.members()) else None
    if until is not None and turn.now < until:
        name = pod_name(turn.job.metadata.name, lost[0])
        why = f"{name} ended; waiting for word of others that ended before it"
        return Hold(why=why, until=until, event=Waker.POD)
    return of_pod(turn, min(lost, key=lambda slot: (_speaks_of_peer(turn, slot), lost_at(turn, slot), slot)))


def _waits_until(turn: Turn, lost: list[int]) -> datetime | None:
    """Until when other kubelets may speak; None: what is known suffices, or the moments are not to be trusted."""
    ended = [turn.kids.ended.get(slot) for slot in lost]
    moments = [pod.finished_at for pod in ended if pod is not None and pod.finished_at is not None]
    if len(moments) < len(lost):
        return None
    first = min(aware(moment) for moment in moments)
    wait_s = VICTIMS_WAIT_S if all(_speaks_of_peer(turn, slot) for slot in lost) else KUBELETS_WAIT_S
    return after(first, wait_s) if first <= turn.now else None


def _speaks_of_peer(turn: Turn, slot: int) -> bool:
    """Its last words are of another rank that went away."""
    pod = turn.kids.ended.get(slot)
    return pod is not None and _LOST_PEER.search(pod.message or "") is not None
