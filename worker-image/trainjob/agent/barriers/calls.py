"""The ranks' calls that wait in the open collective: who has called, what they have in common, and the words for it.
Pure; the rules are `barrier`.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple

from trainjob.agent.call_names import CALL_NAMES
from trainjob.agent.rank_names import ranks_text
from trainjob_api import contract


class Arrival(NamedTuple):
    """A rank's call. `n` counts its collectives from 1."""

    rank: int
    n: int
    kind: str
    timeout_s: Optional[float] = None
    mode: Optional[str] = None
    """Upload mode of the checkpoint that it brings; None: it brings none."""
    stop: bool = False
    waited_s: float = 0.0
    """Before its agent told of it."""
    step: Optional[int] = None
    """Of a report(), where the rank gives one."""


class Calls:
    """Of one collective. Ranks that called alike share one Arrival, of the first of them: what is asked of all calls
    costs as much as there are different ones.
    """

    def __init__(self) -> None:
        self._by_rank: Dict[int, Arrival] = {}
        self._different: List[Arrival] = []

    def add(self, ranks: Iterable[int], arrival: Arrival) -> None:
        """These ranks wait from now on."""
        self._by_rank.update(dict.fromkeys(ranks, arrival))
        self._different.append(arrival)

    def __len__(self) -> int:
        return len(self._by_rank)

    def __contains__(self, rank: object) -> bool:
        return rank in self._by_rank

    def none_of(self, ranks: Iterable[int]) -> bool:
        """Whether none of these waits."""
        return self._by_rank.keys().isdisjoint(ranks)

    def of(self, rank: int) -> Arrival:
        """Its call."""
        return self._by_rank[rank]

    @property
    def first(self) -> Arrival:
        """The one that opened the collective."""
        return self._different[0]

    @property
    def ranks(self) -> Tuple[int, ...]:
        """All that wait, in order."""
        return tuple(sorted(self._by_rank))

    def is_like_the_first(self, arrival: Arrival) -> bool:
        """Whether it calls what the others call, if there are any."""
        if not self._different:
            return True
        first = self._different[0]
        return arrival.n == first.n and arrival.kind == first.kind

    @property
    def last_n(self) -> int:
        """The highest number that anybody called."""
        return max(a.n for a in self._different)

    @property
    def saves(self) -> bool:
        """Somebody brings a checkpoint."""
        return any(a.mode is not None for a in self._different)

    @property
    def waits_for_the_commit(self) -> bool:
        """Somebody wants to be answered when it is durable."""
        return any(a.mode == contract.UPLOAD_SYNC for a in self._different)

    @property
    def stops(self) -> bool:
        """Somebody wants the run to end."""
        return any(a.stop for a in self._different)

    @property
    def tears(self) -> bool:
        """They are of different steps."""
        return len({a.step for a in self._different} - {None}) > 1

    # -- words ---------------------------------------------------------------------------------------------------------

    def call(self) -> str:
        """`report()`: the one that is open."""
        return CALL_NAMES.get(self.first.kind, self.first.kind)

    def name(self) -> str:
        """`report() (collective 3 of this attempt)`."""
        return f"{self.call()} (collective {self.first.n} of this attempt)"

    def torn(self) -> str:
        """Why a report() whose calls are of different steps is refused."""
        groups: Dict[int, List[int]] = {}
        for rank, a in sorted(self._by_rank.items()):
            if a.step is not None:
                groups.setdefault(a.step, []).append(rank)
        steps = "; ".join(f"{ranks_text(tuple(ranks))} at step {step}" for step, ranks in sorted(groups.items())[:4])
        return (
            f"The ranks saved different steps in one report(): {steps}. Such states do not belong together, so nothing "
            "was saved. Report the same step on every rank; leave step= out where each rank counts for itself."
        )

    def mismatch(self) -> str:
        """Why calls that are not alike are refused."""
        groups: Dict[Tuple[str, int], List[int]] = {}
        for rank, a in sorted(self._by_rank.items()):
            groups.setdefault((a.kind, a.n), []).append(rank)
        calls = "; ".join(
            f"{ranks_text(tuple(ranks))} called {CALL_NAMES.get(kind, kind)} as collective {n}"
            for (kind, n), ranks in groups.items()
        )
        return (
            f"The ranks made different calls: {calls}. report(), barrier() and broadcast_from_rank_zero() must be "
            "called by every rank, in the same order."
        )
