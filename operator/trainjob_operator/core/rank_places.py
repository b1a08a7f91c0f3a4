"""Which member of an attempt a rank belongs to: ranks are numbered through, member by member.

Asked by `instruct.py` and `ends/`. (Of agents: `trainjob/agent/rank_places.py`.)
"""

from __future__ import annotations

from trainjob_api.v1alpha1 import Attempt
from trainjob_operator.core.pods.naming import parse_slots


def ranks_each(attempt: Attempt) -> int:
    """Ranks of one member."""
    return max(1, attempt.world_size // max(1, len(parse_slots(attempt.members))))


def slot_of(attempt: Attempt, rank: int) -> int | None:
    """The member whose rank it is; None: the attempt has no such rank."""
    members, at = parse_slots(attempt.members), rank // ranks_each(attempt)
    return members[at] if 0 <= at < len(members) else None
