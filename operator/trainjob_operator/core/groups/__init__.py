"""With agents or without: two strategies, and the one place that chooses between them.

The mode is that of the running attempt, which was made so; where none runs, that of the pods that are made now.
"""

from __future__ import annotations

from trainjob_operator.core.groups.agents import AgentGroup
from trainjob_operator.core.groups.group import Group
from trainjob_operator.core.groups.plain import PlainGroup
from trainjob_operator.core.turn import Turn

AGENTS: Group = AgentGroup()
PLAIN: Group = PlainGroup()


def of(turn: Turn) -> Group:
    """Whom the rules ask at this moment of the turn: an attempt that ends in it makes room for one of another mode."""
    return AGENTS if turn.kind.speaks else PLAIN
