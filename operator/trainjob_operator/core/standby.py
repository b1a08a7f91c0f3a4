"""What is said of spare workers: the count in a table, and the condition SparesReady, which a job has that wishes some.

Called by `status.py` and `conditions.py`. Which spares there are says `size/spares.py`.
"""

from __future__ import annotations

from trainjob_api import contract
from trainjob_api.v1alpha1 import Truth
from trainjob_operator.core import make, obstacles
from trainjob_operator.core.model import PodPhase
from trainjob_operator.core.moments import aware
from trainjob_operator.core.pods.naming import spare_slots
from trainjob_operator.core.size import spares
from trainjob_operator.core.turn import Turn


def are_wished(turn: Turn) -> bool:
    """Whether anything is to be said of them."""
    return turn.spec.runtime.spare_workers > 0 and not make.is_plain(turn.make)


def summary(turn: Turn) -> str | None:
    """`1/2`: ready, of those that should be; None: there are to be none."""
    if turn.outcome is not None or not are_wished(turn):
        return None
    count = turn.spec.runtime.spare_workers
    before = turn.status.workers.spares
    if _may_be_ready(turn) and before is not None and before.endswith(f"/{count}"):
        return before
    return f"{_ready(turn)}/{count}"


def said(turn: Turn) -> tuple[Truth, str, str]:
    """Status, reason and message."""
    if turn.outcome is not None or turn.is_suspended:
        return "False", contract.REASON_FINISHED if turn.outcome else contract.REASON_SUSPENDED, ""
    count, there = turn.spec.runtime.spare_workers, _ready(turn)
    old = turn.status.condition("SparesReady")
    if old is not None and _may_be_ready(turn):
        return old.status, old.reason, old.message
    if there >= count:
        return "True", contract.REASON_SPARES_READY, f"{count} of {count} spare workers are ready"
    retry_at = turn.status.timing.spare_retry_at
    if retry_at is not None and turn.now < aware(retry_at):
        why = old.message if old is not None and old.reason == contract.REASON_BACK_OFF else "a spare was lost"
        if turn.spares_why is not None:
            why = f"{turn.spares_why}; the next one is made at {retry_at:%H:%M:%S} UTC"
        return "False", contract.REASON_BACK_OFF, why
    if turn.running is None or len(turn.members()) < turn.spec.workers:
        return "False", contract.REASON_SPARES_COMING, "spare workers are made once all workers train"
    pods = [pod for slot in spare_slots(turn.status) if (pod := turn.kids.live.get(slot)) is not None]
    found = obstacles.of_unscheduled(pods) or obstacles.of_starting(pods)
    if found is None:
        return "False", contract.REASON_SPARES_COMING, f"{there} of {count} spare workers are ready"
    # A kubelet tells the same trouble in turns in two ways: the first one stays.
    same = old is not None and old.reason == found.reason and old.message.startswith(f"{found.pod}: ")
    return "False", found.reason, old.message if same and old is not None else found.words


def _ready(turn: Turn) -> int:
    return 0 if turn.is_suspended else len(spares.ready(turn, spare_slots(turn.status)))


def _may_be_ready(turn: Turn) -> bool:
    """Whether this leader has not had the time to hear them all: what an earlier one saw is still shown."""
    if turn.now >= turn.listens_until:
        return False
    pods = [pod for slot in spare_slots(turn.status) if (pod := turn.kids.live.get(slot)) is not None]
    unheard = any(pod.phase is PodPhase.RUNNING and turn.kids.agent(pod) is None for pod in pods)
    if unheard:
        turn.wake(turn.listens_until)
    return unheard
