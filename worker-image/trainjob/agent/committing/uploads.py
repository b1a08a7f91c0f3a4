"""Which released checkpoints are on their way to storage, as a pure state machine of rank 0's agent.

`leader` feeds it and carries out the outputs. One checkpoint is in flight, one waits; a third is admitted when the
first is committed. If no byte has moved for STALL_S, the waiting one is dropped for all ranks alike: training goes on,
the newest stays.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Set, Union

STALL_S = 30.0
PLACES = 2


class Admitted(NamedTuple):
    """The report that asked may go on."""


class CommitNow(NamedTuple):
    """Every share of it is stored: publish the manifest."""

    id: str


class Drop(NamedTuple):
    """It will not be stored; every agent forgets it."""

    id: str
    why: str
    stalled: bool = False
    """Nothing is wrong with it: storage took none for so long."""


Output = Union[Admitted, CommitNow, Drop]


class Upload:
    """One released checkpoint until it is committed or dropped."""

    def __init__(self, note: Mapping[str, Any], sharers: Iterable[int], ranks: Optional[List[int]]) -> None:
        self.note = note
        self.waiting: Set[int] = set(sharers)
        self.ranks = ranks
        """Whose share records the commit needs; None: all that the note names."""


class Uploads:
    """Checkpoints in the order of their release."""

    def __init__(self, now: float) -> None:
        self._queue: Dict[str, Upload] = {}
        self._bytes: Dict[int, int] = {}
        self._moved_at = now
        self._asking = False

    @property
    def queue(self) -> List[str]:
        """Ids, oldest first."""
        return list(self._queue)

    def waiting_for(self, id_: str) -> Set[int]:
        """Agents whose share of it is not stored."""
        return set(self._queue[id_].waiting)

    def upload(self, id_: str) -> Optional[Upload]:
        """One of the queue."""
        return self._queue.get(id_)

    def released(
        self, now: float, id_: str, note: Mapping[str, Any], sharers: Iterable[int], ranks: Optional[List[int]] = None
    ) -> List[Output]:
        """A released checkpoint takes its place. `sharers`: indices of the agents that hold files of it."""
        if not self._queue:
            self._moved_at = now
        self._queue[id_] = Upload(note, sharers, ranks)
        return self._commit_head()

    @property
    def moved_at(self) -> float:
        """When a byte of any agent was stored last."""
        return self._moved_at

    def still_for(self, now: float) -> float:
        """Seconds since a byte was stored that had not been stored before."""
        return now - self._moved_at

    def admit(self, now: float) -> List[Output]:
        """A report wants to save: at once, or when there is a place."""
        self._asking = True
        return self._answer(now)

    def withdraw(self) -> None:
        """The report that asked is over."""
        self._asking = False

    def moved(self, now: float, index: int, total: int) -> List[Output]:
        """An agent has stored this many bytes so far."""
        if total != self._bytes.get(index):
            self._bytes[index] = total
            self._moved_at = now
        return []

    def shared(self, now: float, index: int, id_: str) -> List[Output]:
        """An agent's part of it is stored."""
        self._moved_at = now
        upload = self._queue.get(id_)
        if upload is not None:
            upload.waiting.discard(index)
        return self._commit_head()

    def committed(self, now: float, id_: str) -> List[Output]:
        """Its manifest is on storage."""
        self._queue.pop(id_, None)
        self._moved_at = now
        return self._commit_head() + self._answer(now)

    def lost(self, now: float, id_: str, why: str) -> List[Output]:
        """An agent no longer has its files: it can never be complete."""
        if self._queue.pop(id_, None) is None:
            return []
        return [Drop(id_, why), *self._commit_head(), *self._answer(now)]

    def deadline(self) -> Optional[float]:
        """When `tick` has something to say."""
        return self._moved_at + STALL_S if self._asking else None

    def tick(self, now: float) -> List[Output]:
        """Time has passed."""
        return self._answer(now)

    def _commit_head(self) -> List[Output]:
        head = next(iter(self._queue), None)
        return [CommitNow(head)] if head is not None and not self._queue[head].waiting else []

    def _answer(self, now: float) -> List[Output]:
        if not self._asking:
            return []
        dropped: List[Output] = []
        if len(self._queue) >= PLACES and now - self._moved_at >= STALL_S:
            waiting = list(self._queue)[1:]
            for id_ in waiting:
                del self._queue[id_]
                still = f"storage has taken no byte for {now - self._moved_at:.0f} s"
                dropped.append(Drop(id_, still, stalled=True))
        if len(self._queue) >= PLACES:
            return dropped
        self._asking = False
        return [*dropped, Admitted()]
