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
from trainjob_operator.core.moments import aware
from trainjob_operator.core.turn import Turn


def waits(turn: Turn, lost: Iterable[int]) -> Undecided | None:
    """Whether the members that have no working pod any more all still train, in pods that are going away, and reach a
    checkpoint first; None: the attempt ends now.
    """
    pods = [turn.kids.leaving.get(slot) for slot in lost]
    gone_by = [aware(pod.gone_by) for pod in pods if pod is not None and pod.gone_by is not None and not is_over(pod)]
    if len(gone_by) < len(pods) or not all(_trains(turn, slot) for slot in turn.members()):
        return None
    disrupted = any(pod is not None and pod.disrupted for pod in pods)
    cause = contract.REASON_PREEMPTED if disrupted else contract.REASON_POD_LOST
    hold = boundaries.wait(turn, cause, min(gone_by))
    if hold is None or hold.until is None or hold.event is None:
        return None
    return Undecided(hold.until, hold.why, hold.event)


def _trains(turn: Turn, slot: int) -> bool:
    view = turn.word(slot)
    return (
        view is not None
        and bool(view.ranks)
        and all(report.get("state") != contract.RANK_ENDED and not report.get("error") for report in view.ranks)
    )
