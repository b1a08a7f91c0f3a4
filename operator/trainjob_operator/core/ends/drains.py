"""A worker whose pod is going away (a drained node, an eviction, a spot notice, kubectl delete) still trains: the time
until then is time for a checkpoint.

Called by `failures.py`: before such a pod becomes an incident (`waits`), and where nothing has broken, for agents that
were told to end (`ahead`); and by `decide.py`, for pods that stand and are to go where nobody wishes another end
(`notice`). The ranks are told as for any planned change (`boundaries.py`); what is saved then is
stored before the pod is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainjob_api import contract
from trainjob_operator.core import boundaries
from trainjob_operator.core.answers import Hold
from trainjob_operator.core.children import is_announced, is_over
from trainjob_operator.core.ends.incident import Incident
from trainjob_operator.core.ends.pod_ends import of_announced
from trainjob_operator.core.ends.silence import SILENT_S, heard_last, lost_to_peers, says_nothing
from trainjob_operator.core.lifecycle import is_cancelled
from trainjob_operator.core.model import PodView
from trainjob_operator.core.moments import after
from trainjob_operator.core.pods.naming import parse_slots
from trainjob_operator.core.turn import Turn


def waits(turn: Turn, lost: Iterable[int]) -> Hold | None:
    """Whether the members that have no working pod any more all still train, in pods that are going away, and reach a
    checkpoint first; None: the attempt ends now. A cancelled job wants none.
    """
    going = sorted(lost)
    pods = [turn.kids.leaving.get(slot) for slot in going]
    graces = [pod.grace_s for pod in pods if pod is not None and pod.grace_s is not None and not is_over(pod)]
    if len(graces) < len(pods) or is_cancelled(turn) or not _all_train(turn):
        return None
    disrupted = any(pod is not None and pod.disrupted for pod in pods)
    cause = contract.REASON_PREEMPTED if disrupted else contract.REASON_POD_LOST
    found = boundaries.wait(turn, cause, min(graces), going)
    if isinstance(found, boundaries.MayEnd):
        return None
    return found


def ahead(turn: Turn) -> Incident | Hold | None:
    """A member whose pod stands, and whose agent was told to end (SIGTERM alone: a node that shuts down). The attempt
    ends at the next checkpoint, or when its time is over.
    """
    members = _standing(turn)
    told = {slot: pod for slot, pod in members.items() if (word := turn.word(slot)) is not None and word.draining}
    going, cause = dict(told), None
    if _may_have_been_told(turn) and turn.status.boundary is not None:
        earlier, cause = parse_slots(turn.status.boundary.leaving), turn.status.boundary.cause
        going.update({slot: pod for slot, pod in members.items() if slot in earlier})
    if not (going or cause) or is_cancelled(turn) or not _all_train(turn):
        return None
    taken = any(is_announced(pod) for pod in going.values())
    graces = [pod.grace_s for pod in told.values() if pod.grace_s is not None]
    cause = cause or (contract.REASON_PREEMPTED if taken else contract.REASON_POD_LOST)
    return _at_the_boundary(turn, cause, min(graces, default=None), going or members)


def notice(turn: Turn) -> Incident | Hold | None:
    """A member whose pod stands, and is to go, as Kubernetes says of the pod or of its node. It ends nothing by itself:
    it may be taken back, and the pod's deletion is told. Without storage it is not followed: what was trained goes with
    the pod. Nor while somebody wishes an end, which has a limit and goes by the next checkpoint as well.
    """
    going = {slot: pod for slot, pod in _standing(turn).items() if is_announced(pod)}
    if not going or turn.is_broken or turn.wishes_boundary or turn.storage is None or not _all_train(turn):
        return None
    return _at_the_boundary(turn, contract.REASON_PREEMPTED, None, going)


def _standing(turn: Turn) -> dict[int, PodView]:
    return {slot: pod for slot in turn.members() if (pod := turn.kids.live.get(slot)) is not None}


def _at_the_boundary(
    turn: Turn, cause: str, grace_s: float | None, going: Mapping[int, PodView]
) -> Incident | Hold | None:
    found = boundaries.wait(turn, cause, grace_s, sorted(going))
    if found is boundaries.NOTHING_SAVED:
        return None
    if isinstance(found, boundaries.MayEnd):
        slots = sorted(going)
        return of_announced(turn, next((slot for slot in slots if is_announced(going[slot])), slots[0]), cause)
    return found


def _may_have_been_told(turn: Turn) -> bool:
    """An earlier leader knew of a member that was told to end; this one has not heard all yet."""
    boundary = turn.status.boundary
    is_new = turn.now < turn.listens_until and any(turn.kids.speaking(slot) is None for slot in turn.members())
    return boundary is not None and boundary.gone_by is not None and is_new


def _all_train(turn: Turn) -> bool:
    """Whether all members are heard, reach each other, and tell of ranks that train: a checkpoint is all of theirs."""
    members, listening = turn.members(), turn.observed.listening_since
    for pod in (turn.kids.live.get(slot) or turn.kids.leaving.get(slot) for slot in members):
        if pod is not None and listening is not None:
            turn.wake(after(heard_last(pod, turn.kids.agent(pod), listening, turn.now), SILENT_S))
            if says_nothing(turn, pod):
                return False
    return not lost_to_peers(turn, members) and all(_trains(turn, slot) for slot in members)


def _trains(turn: Turn, slot: int) -> bool:
    view, boundary = turn.word(slot), turn.status.boundary
    if turn.kids.speaking(slot) is None and boundary is not None and boundary.gone_by is not None:
        # A new leader has not heard it yet, and an earlier one has: it trained.
        return turn.now < turn.listens_until
    return (
        view is not None
        and bool(view.ranks)
        and all(report.get("state") != contract.RANK_ENDED and not report.get("error") for report in view.ranks)
    )
