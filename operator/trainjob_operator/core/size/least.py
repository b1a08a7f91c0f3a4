"""The smallest size at which a job may go on: nothing that runs is given back to make room for a wish.

Asked by `slots.py`, `start.py` and `gang.py`.
"""

from __future__ import annotations

from trainjob_api import contract
from trainjob_operator.core.turn import Turn


def least(turn: Turn) -> int:
    """Workers without which the next attempt does not begin: as many as the last one had, if that is fewer than wished.

    A first start and a start after a suspension want all: they hold nothing that could go on. (A group without agents
    always does, and asks not.)
    """
    last, wished = turn.status.attempt, turn.spec.workers
    if last is None or last.end_cause in (contract.REASON_SUSPENDED, contract.REASON_GANG):
        return wished
    return min(wished, last.workers)
