"""The smallest size at which a job may go on: nothing that runs is given back to make room for a wish.

Asked by `slots.py`, `start.py` and `gang.py`.
"""

from __future__ import annotations

from trainjob_api import contract
from trainjob_operator.core.turn import Turn


def least(turn: Turn) -> int:
    """Workers without which the next attempt does not begin: as many as the last one had, if that is fewer than wished.

    A first start, a start after a suspension and a group without agents want all: they hold nothing that could go on.
    """
    last, wished = turn.status.attempt, turn.spec.workers
    if last is None or turn.plain or last.end_cause in (contract.REASON_SUSPENDED, contract.REASON_GANG):
        return wished
    return min(wished, last.workers)
