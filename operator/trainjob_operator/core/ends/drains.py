"""A worker whose pod is going away (a drained node, an eviction, a spot notice, kubectl delete) still trains: its grace
period is time for a checkpoint.

Called by `failures.py` before such a pod becomes an incident. The ranks are told as for any planned change
(`boundaries.py`); what is saved then is stored before the pod is gone.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainjob_api import contract
from trainjob_operator.core import boundaries
from trainjob_operator.core.children import is_over
from trainjob_operator.core.ends.incident import Undecided
from trainjob_operator.core.ends.silence import SILENT_S, heard_last, lost_to_peers, says_nothing
from trainjob_operator.core.lifecycle import is_cancelled
from trainjob_operator.core.moments import after
from trainjob_operator.core.turn import Turn


def waits(turn: Turn, lost: Iterable[int]) -> Undecided | None:
    """Whether the members that have no working pod any more all still train, in pods that are going away, and reach a
    checkpoint first; None: the attempt ends now. A cancelled job wants none.
    """
    pods = [turn.kids.leaving.get(slot) for slot in lost]
    graces = [pod.grace_s for pod in pods if pod is not None and pod.grace_s is not None and not is_over(pod)]
    if len(graces) < len(pods) or is_cancelled(turn) or not _all_train(turn):
        return None
    disrupted = any(pod is not None and pod.disrupted for pod in pods)
    cause = contract.REASON_PREEMPTED if disrupted else contract.REASON_POD_LOST
    found = boundaries.wait(turn, cause, min(graces))
    if isinstance(found, boundaries.MayEnd):
        return None
    return Undecided(found.until, found.why, found.event, found.bars_failure)


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
