"""Which ranks broke, as their ends come in: all are told, since what others say of a lost peer is no news then.

Used by `leader` alone. The rule is the operator's (`core/ends/failures.py`): where every rank has ended and none has
more to say than that it lost a peer, it lost the one that ended well.
"""

from __future__ import annotations

from typing import List, Optional, Set

from trainjob.agent.wire.from_member import Ended
from trainjob_api import contract

ENOUGH = 2
"""Of so many ranks that broke all are told: each rank then knows of one that it is not itself."""


class Breaks:
    """Of one attempt."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._gone: Set[int] = set()
        self._left: Optional[int] = None
        """The first that ended well."""
        self._lost_a_peer = False
        self.told: List[int] = []
        """Ranks of which all were told."""

    def ended(self, end: Ended) -> Optional[int]:
        """A rank raised or has ended; the rank of which all are to be told now, if there is one."""
        if end.kind is not None:
            self._gone.add(end.rank)
        if end.kind == contract.END_OK and self._left is None:
            self._left = end.rank
        self._lost_a_peer = self._lost_a_peer or end.communication
        if end.kind not in (contract.END_OK, contract.END_STOPPED) and not end.communication:
            return self._tell(end.rank)
        if self._lost_a_peer and not self.told and self._left is not None and len(self._gone) >= self._world_size:
            return self._tell(self._left)
        return None

    def _tell(self, rank: int) -> Optional[int]:
        if rank in self.told or len(self.told) >= ENOUGH:
            return None
        self.told.append(rank)
        return rank
