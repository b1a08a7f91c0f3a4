"""The ranks of one agent that wait in a collective, and what of them rank 0's agent has been told. Pure.

`member` feeds it. One message tells of all ranks here that have called alike; after a lost connection everything is
told again.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, Optional, Set, Tuple

from trainjob.agent.wire.arrive import Arrive, Callers
from trainjob.agent.wire.from_member import Ended
from trainjob_api import contract
from trainjob_api.rank_messages import Collective
from trainjob_api.typed import Object


class Arrivals:
    """One attempt's on one agent."""

    def __init__(self) -> None:
        self._waiting: Dict[int, Collective] = {}
        """The call of each rank that waits."""
        self._untold: Set[int] = set()
        """Of them, those that rank 0's agent has not been told of yet."""
        self._untold_since = 0.0
        self._ends: Dict[int, Ended] = {}
        self.world_size: Optional[int] = None
        """Under a launcher: as its ranks were told."""

    @property
    def waiting(self) -> List[int]:
        """Ranks that wait."""
        return sorted(self._waiting)

    def waits(self, rank: int) -> bool:
        """Whether it does."""
        return rank in self._waiting

    @property
    def ends(self) -> List[Ended]:
        """Of ranks that will make no call any more."""
        return list(self._ends.values())

    def refusal(self, rank: int) -> Optional[str]:
        """Why a call of this rank could never be answered, if so: a rank makes one after the other, and none once it
        is ending.
        """
        if rank in self._ends:
            return f"Rank {rank} {self._ends[rank].how}, and makes a call after it."
        if rank in self._waiting:
            return (
                f"Rank {rank} makes a call while another one of its own is not answered yet: an exception has left "
                "that one, or a second process speaks as this rank."
            )
        return None

    def came(self, now: float, rank: int, call: Collective) -> None:
        """A rank waits from now on. Only rank 0's blob of a broadcast is kept."""
        keeps = rank == 0 and call.kind != contract.KIND_REPORT
        self._waiting[rank] = call if keeps or not call.blob else call._replace(blob=b"")
        if not self._untold:
            self._untold_since = now
        self._untold.add(rank)

    def all_here(self, ranks: Iterable[int]) -> bool:
        """Nobody of these is to come. Of ranks under a launcher nobody knows."""
        return self.world_size is not None or all(rank in self._waiting or rank in self._ends for rank in ranks)

    def ended(self, end: Ended) -> None:
        """Nobody waits for this rank any more."""
        self._ends[end.rank] = end
        self._waiting.pop(end.rank, None)

    def answered(self, rank: int, n: Optional[int] = None) -> Optional[Collective]:
        """The call of a rank that need not wait any more, if it does (in call n)."""
        call = self._waiting.get(rank)
        if call is None or n not in (None, call.n):
            return None
        return self._waiting.pop(rank)

    def all_untold(self) -> None:
        """Over a new connection: as if nothing had been told."""
        self._untold.update(self._waiting)

    def told(self, now: float) -> List[Arrive]:
        """What is to be told of those that were not."""
        ranks, self._untold = sorted(self._untold & self._waiting.keys()), set()
        groups: Dict[Tuple[int, str], Dict[int, Collective]] = {}
        for rank in ranks:
            call = self._waiting[rank]
            groups.setdefault((call.n, call.kind), {})[rank] = call
        waited = round(now - self._untold_since, 3)
        return [self._arrive(n, kind, groups[n, kind], waited) for n, kind in sorted(groups)]

    def _arrive(self, n: int, kind: str, calls: Dict[int, Collective], waited_s: float) -> Arrive:
        alike: Dict[Tuple[Optional[float], Optional[str], bool, Optional[int]], List[int]] = {}
        for rank, call in calls.items():
            mode = None if call.checkpoint is None else call.checkpoint.mode
            alike.setdefault((call.timeout_s, mode, call.stop, call.step), []).append(rank)
        metadata = ((rank, call.checkpoint.metadata) for rank, call in calls.items() if call.checkpoint is not None)
        first = next(((rank, found) for rank, found in metadata if found), None)
        zero = calls.get(0)
        return Arrive(
            n,
            kind,
            tuple(Callers(tuple(together), *how) for how, together in alike.items()),
            waited_s,
            None if zero is None or kind != contract.KIND_REPORT else _row(zero),
            {} if first is None else {first[0]: first[1]},
            self.world_size,
            b"" if zero is None else zero.blob,
            {rank: call.metrics or {} for rank, call in calls.items() if call.wanted},
        )


def _row(call: Collective) -> Object:
    return {
        "metrics": call.metrics,
        "step": call.step,
        "total_steps": call.total_steps,
        "epoch": call.epoch,
    }
