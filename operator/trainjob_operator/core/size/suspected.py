"""Nodes on which different jobs of the namespace suffered: new pods keep away from them, and a spare worker elsewhere
is taken before one there. The rule is `trainjob_api/bad_nodes.py`; what the jobs say comes with the look
(`loop/suspects.py`).
"""

from __future__ import annotations

from trainjob_api.bad_nodes import BadNode, bad_nodes, marks
from trainjob_operator.core.turn import Turn


def suspected(turn: Turn) -> tuple[BadNode, ...]:
    """From which nodes new pods keep away for other jobs' sake too. What this turn has found counts: its pods are
    created now.
    """
    before = set(marks(turn.observed.job, turn.now))
    after = turn.observed.job.model_copy(update={"status": turn.status})
    new = [mark for mark in marks(after, turn.now) if mark not in before]
    return bad_nodes((*turn.observed.marks, *new), turn.now)
