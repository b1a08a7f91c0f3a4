"""Whether an agent whose own ranks have ended is still needed in its attempt. Pure.

Asked by `attempt` where no coordinator answers: an agent that nobody needs gives its pod back. Rank 0's agent is needed
while others train or store, since it alone commits what they store and writes the end record; any other one until that
is written, since a pod that ends before counts as lost, and ends the attempt of those that train.
"""

from __future__ import annotations

from typing import Dict, Iterable, Mapping, Set

from trainjob_api import contract

PARTED_S = 60.0
"""An agent that could not be reached for so long is not waited for: nobody waits for ever for a node that is gone."""

STANDS_S = 600.0
"""So long nothing may move where rank 0's agent waits for a commit or the end record alone: a storage that refuses them
for good gives no pod back.
"""


def parted(unreached: Mapping[int, float], now: float) -> Set[int]:
    """Of members that cannot be reached, by when that began, those that nobody waits for."""
    return {index for index, since in unreached.items() if now - since >= PARTED_S}


class Ends:
    """Rank 0's agent: which members' ranks have ended. `each`: processes of one member that have to end with 0."""

    def __init__(self, workers: int, each: int) -> None:
        self._each = each
        self._ended: Dict[int, Set[int]] = {index: set() for index in range(workers)}
        self._broken = False

    def ended(self, index: int, rank: int, kind: str) -> None:
        """This rank's process has ended."""
        self._ended.get(index, set()).add(rank)
        self._broken = self._broken or kind != contract.END_OK

    def lack(self, gone: Iterable[int]) -> bool:
        """Whether the run may still be complete, and only ranks of other members than these are missing for it."""
        rest = self._ended.keys() - set(gone)
        return not self._broken and any(len(self._ended[index]) < self._each for index in rest)
