"""How the samples of an epoch are dealt to ranks: pure arithmetic on positions; knows neither torch nor data.

Used by `samplers`. An epoch is a row of samples, its order drawn from (seed, epoch) alone. A *cursor* says how many of
them were handed out, at whatever sizes; the rest is dealt from there, position by position, to the ranks in turn. So a
checkpoint needs no more than the cursor, and neither the number of ranks nor the batch size changes what is left.

A *step* is one batch on each rank. Where the last one would not have a sample for every rank, it shares those of the
step before evenly: ranks keep equally many batches, which gradients need, and nothing comes twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Dealing(Protocol):
    """What is left of an epoch, in batches of each rank."""

    @property
    def length(self) -> int:
        """Samples of the whole epoch."""
        ...

    def batches(self, rank: int) -> int:
        """How many this rank gets."""
        ...

    def share(self, batch: int, rank: int) -> range:
        """Positions in the epoch's order of a rank's batch, counted from 0 where this dealing begins."""
        ...

    def cursor(self, handed: int) -> int:
        """Where the epoch stands once each rank was handed so many batches."""
        ...

    def whole(self, handed: int) -> int:
        """Of so many batches, those that the cursor counts."""
        ...


@dataclass(frozen=True)
class Deal:
    """Batches of up to `batch` samples."""

    length: int
    begin: int
    """The cursor from which it continues."""
    world_size: int
    batch: int
    drop_last: bool = False
    """Leave out the last step if it is not full on every rank."""
    even: bool = True
    """Where a step must have fewer samples than ranks, the ranks without one see one of that step's too. Else they get
    a batch less.
    """

    def batches(self, rank: int) -> int:
        """How many this rank gets."""
        last = self._steps - 1
        return last if last >= 0 and not self.share(last, rank) else self._steps

    def share(self, batch: int, rank: int) -> range:
        """Positions of a rank's batch."""
        first, end = self._start(batch), self._start(batch + 1)
        if first + rank < end or not self.even or first >= end:
            return range(first + rank, end, self.world_size)
        again = first + rank % (end - first)
        return range(again, again + 1)

    def cursor(self, handed: int) -> int:
        """Where the epoch stands; at its end once all steps are done: what `drop_last` leaves out stays left out."""
        return max(self.length, self.begin) if handed >= self._steps else self._start(handed)

    def whole(self, handed: int) -> int:
        """All of them."""
        return handed

    @property
    def again(self) -> int:
        """Samples that more than one rank sees."""
        last = self._steps - 1
        if last < 0 or not self.even:
            return 0
        return max(0, self.world_size - (self._start(last + 1) - self._start(last)))

    @property
    def _left(self) -> int:
        return max(0, self.length - self.begin)

    @property
    def _step(self) -> int:
        return self.world_size * self.batch

    @property
    def _steps(self) -> int:
        full, rest = divmod(self._left, self._step)
        return full if self.drop_last or not rest else full + 1

    def _start(self, step: int) -> int:
        full, rest = divmod(self._left, self._step)
        if self.drop_last or step < full or not rest:
            return self.begin + step * self._step
        if step > full:
            return self.begin + self._left
        shared = full > 0 and rest < self.world_size and self.batch > 1
        # The larger half first: the last batch of an epoch is the short one.
        return self.begin + full * self._step - ((self._step - rest) // 2 if shared else 0)


@dataclass(frozen=True)
class Micro:
    """One batch of a rank within a step of the optimizer."""

    samples: int
    """Of this rank's, in this batch; 0: it is a stand-in that must not count."""
    of: int
    """Samples of the whole step, on all ranks."""
    scale: float
    """What a loss that is a mean over this batch is multiplied by."""
    number: int
    """Within its step, from 0."""
    count: int
    """Batches of the step, on each rank alike."""


@dataclass(frozen=True)
class GlobalDeal:
    """Batches of up to `micro` samples, so many to a step of the optimizer that it takes `size` on all ranks together.

    A rank's share of a step is cut into as many batches as the largest share needs. The gradient of the step is that of
    the mean over its samples if DDP averages over ranks and each batch's mean loss counts `Micro.scale` times.
    """

    length: int
    begin: int
    world_size: int
    size: int
    micro: int
    drop_last: bool = False

    def batches(self, rank: int) -> int:
        """How many this rank gets: all ranks equally many."""
        full, rest = self._full_and_rest
        return full * self._count(self.size) + self._count(rest)

    def share(self, batch: int, rank: int) -> range:
        """Positions of a rank's batch. A stand-in is one sample of its step."""
        first, of, number, count = self._place(batch)
        mine = range(first + rank, first + of, self.world_size)
        part = mine[number * len(mine) // count : (number + 1) * len(mine) // count]
        return part or range(first + rank % of, first + rank % of + 1)

    def at(self, batch: int, rank: int) -> Micro:
        """What a batch is within its step."""
        first, of, number, count = self._place(batch)
        share = len(range(first + rank, first + of, self.world_size))
        samples = (number + 1) * share // count - number * share // count
        return Micro(samples, of, self.world_size * samples / of, number, count)

    def cursor(self, handed: int) -> int:
        """Behind the last step of which every batch was handed out: an accumulated half of a step is not kept."""
        if handed >= self.batches(0):
            return max(self.length, self.begin)
        return self.begin + handed // self._count(self.size) * self.size if self._full_and_rest[0] else self.begin

    def whole(self, handed: int) -> int:
        """Those of the completed steps."""
        if handed >= self.batches(0):
            return handed
        full = self._count(self.size)
        return min(handed // full, self._full_and_rest[0]) * full

    @property
    def _full_and_rest(self) -> tuple[int, int]:
        full, rest = divmod(max(0, self.length - self.begin), self.size)
        return full, 0 if self.drop_last else rest

    def _count(self, of: int) -> int:
        """Batches of a step of so many samples."""
        return -(-of // (self.world_size * self.micro))

    def _place(self, batch: int) -> tuple[int, int, int, int]:
        """Of a batch: its step's first position and samples, its number there, the step's batches."""
        full, rest = self._full_and_rest
        each = self._count(self.size)
        step = min(batch // each, full)
        of = self.size if step < full else rest
        return self.begin + step * self.size, of, batch - step * each, self._count(of)
