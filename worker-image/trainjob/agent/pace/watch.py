"""Rank 0's agent: puts what all members say of their ranks' pace together, and tells who keeps the others waiting while
that is so (`straggling`: the rule).

Made by `collectives`. Nothing follows of it here: what does is the operator's to decide (spec.hang.replaceStragglers).
"""

from __future__ import annotations

import asyncio
import time
from typing import Callable, Dict, Optional, Tuple

from trainjob.agent.pace import straggling
from trainjob.agent.pace.straggling import Straggling
from trainjob.agent.wire.from_member import PacesAre
from trainjob_api import contract


class Watch:
    """One per attempt."""

    def __init__(self, ranks: Callable[[], Tuple[int, int]], changed: Callable[[], None]) -> None:
        """`ranks`: how many there are, and how many each worker has."""
        self._ranks = ranks
        self._changed = changed
        self._rule = Straggling()
        self._places: Dict[int, str] = {}
        self.report: Optional[contract.StragglersReport] = None
        """What is told, while it is so."""

    def came(self, index: int, word: PacesAre) -> None:
        """Of a member's ranks; of others it knows nothing, and before a launcher has said how many there are, nobody
        does.
        """
        total, each = self._ranks()
        paces = {rank: pace for rank, pace in word.paces.items() if rank // each == index and rank < total}
        self._places.update(dict.fromkeys(paces, word.place))
        if self._rule.came(asyncio.get_running_loop().time(), total, paces):
            self.report = self._told()
            self._changed()

    def _told(self) -> Optional[contract.StragglersReport]:
        told = straggling.worst(self._rule.told, contract.STRAGGLERS_LIMIT)
        if not told:
            return None
        sentences = [straggling.sentence(each, self._places.get(each.rank, "")) for each in told]
        more = len(self._rule.told) - len(told)
        beyond = f" {more} more are slow." if more else ""
        return {
            "since": time.time(),
            "message": (" ".join(_capital(each) for each in sentences) + beyond)[: contract.MESSAGE_LIMIT],
            "ranks": [
                {
                    "rank": each.rank,
                    "behind": round(each.share, 2),
                    "data": round(each.parts.data, 2),
                    "compute": round(each.parts.compute, 2),
                    "held": round(each.parts.held, 2),
                    "wait": round(each.parts.wait, 2),
                }
                for each in told
            ],
        }


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
