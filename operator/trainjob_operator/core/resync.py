"""The net below all wake-ups: a job that is neither finished nor at rest is looked at again now and then.

Called by `decide.py` at the end of a turn. A rule that waits names who wakes it (`Turn.wait`); should that waker ever
fail (a deletion in the gap of a watch, a report that brought nothing new), this look finds it out. Jobs are spread
over time by a jitter that follows from their UID: a turn gives the same answer twice, and a thousand jobs do not come
at once.
"""

from __future__ import annotations

import hashlib

from trainjob_api import contract
from trainjob_operator.core.moments import after
from trainjob_operator.core.turn import Turn

RESYNC_S = (30.0, 60.0)
"""Between two looks at a job that waits for something."""
AT_EASE = 10.0
"""So many times longer where all ranks run and every agent speaks: silence is news of its own (`silence_watch.py`)."""


def resync(turn: Turn) -> None:
    """Ask for the look."""
    if turn.outcome is None and not _is_at_rest(turn):
        turn.wake(after(turn.now, resync_s(turn.job.metadata.uid) * (AT_EASE if _is_at_ease(turn) else 1.0)))


def resync_s(uid: str) -> float:
    """Seconds between two looks at this job; the same for the same job."""
    share = int.from_bytes(hashlib.sha256(uid.encode()).digest()[:4], "big") / 2**32
    return RESYNC_S[0] + (RESYNC_S[1] - RESYNC_S[0]) * share


def _is_at_rest(turn: Turn) -> bool:
    """Suspended, and its pods are gone: only an edit changes that, and an edit is seen."""
    return turn.is_suspended and not any(pod.owned for pod in turn.observed.pods)


def _is_at_ease(turn: Turn) -> bool:
    attempt, members = turn.running, turn.members()
    if attempt is None or attempt.running_at is None or len(members) != turn.spec.workers:
        return False
    words = [turn.word(slot) for slot in members if slot in turn.kids.live]
    return len(words) == len(members) and all(
        view is not None
        and not view.lost_peers
        and all(report.get("state") != contract.RANK_ENDED for report in view.ranks)
        for view in words
    )
