"""The smallest size at which a job may go on: nothing that runs is given back to make room for a wish.

Asked by `slots.py`, `start.py` and `gang.py`.
"""

from __future__ import annotations

from trainjob_api import contract
from trainjob_operator.core.turn import Turn


def least(turn: Turn) -> int:
    """Workers without which the next attempt does not begin: as many as the last one had, if that is fewer than wished.

    A first start and a start after a suspension want all: they hold nothing that could go on. (A group without agents
    always does, and asks not.) What an elastic job does with fewer is `elastic.py`'s.
    """
    last, most = turn.status.attempt, target(turn)
    return most if last is None or begins_afresh(turn) else min(most, last.workers)


def target(turn: Turn) -> int:
    """Workers that the job should have now: spec.workers, or fewer while it makes room for another job."""
    known = turn.status.gave_way
    return turn.spec.workers if known is None else min(turn.spec.workers, known.workers)


def begins_afresh(turn: Turn) -> bool:
    """Whether no worker of the last attempt is to go on."""
    last = turn.status.attempt
    return last is None or last.end_cause in (contract.REASON_SUSPENDED, contract.REASON_GANG)
