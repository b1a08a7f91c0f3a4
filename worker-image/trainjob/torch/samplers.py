"""Index order for prepared data loaders: the order of an epoch, each rank's part of it, and skipping without loading.

Used by `loader` alone. Samplers of torch itself become an `EpochOrder`; a user's own sampler or batch sampler keeps its
order (`Share`). Either is the same on all ranks, at any number of them, and `dealing` says who gets what. Nothing here
touches the data.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import Any, Callable, Iterable, Iterator, List, Optional, Sequence, Sized, Union, cast

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, Sampler, SequentialSampler

from trainjob.torch import reproducible
from trainjob.torch.dealing import Deal, Dealing, GlobalDeal
from trainjob.torch.global_batch import GlobalBatch
from trainjob.torch.seeded import Numbered

Drawn = Union[range, torch.Tensor, List[Any]]
"""The order of one epoch."""
Plan = Callable[[int, int], Dealing]
"""(samples of the epoch, cursor) -> how the rest is dealt."""


class InTurn(Sampler[Any]):
    """A sampler whose items are dealt to ranks in turn."""

    rank: int
    num_replicas: int
    _even: bool

    def drawn(self) -> Drawn:
        """This epoch's order, of all ranks."""
        raise NotImplementedError

    def whole(self) -> int:
        """Items of the epoch, on all ranks."""
        raise NotImplementedError

    def plan(self, length: int, cursor: int) -> Deal:
        """Item by item, as a `Plan`."""
        return Deal(length, cursor, self.num_replicas, 1, even=self._even)

    def __iter__(self) -> Iterator[Any]:
        order = self.drawn()
        return iter(Hand(order, self.plan(len(order), 0), self.rank, single=True))

    def __len__(self) -> int:
        return self.plan(self.whole(), 0).batches(self.rank)


class EpochOrder(InTurn, DistributedSampler[Any]):
    """Of torch's sequential or random order: drawn from (seed, epoch) as torch's DistributedSampler draws it, and dealt
    without its padding.
    """

    def __init__(self, dataset: Any, rank: int, world_size: int, shuffle: bool, even: bool) -> None:
        super().__init__(dataset, world_size, rank, shuffle=shuffle, seed=_order_seed())
        self._even = even

    def drawn(self) -> Drawn:
        """This epoch's order, of all ranks."""
        if not self.shuffle:
            return range(self.whole())
        return torch.randperm(self.whole(), generator=torch.Generator().manual_seed(self.seed + self.epoch))

    def whole(self) -> int:
        """Samples of the epoch, on all ranks."""
        return len(self.dataset)  # type: ignore[arg-type]


class Share(InTurn):
    """A user's own sampler (or batch sampler), whose items are dealt to ranks in turn.

    All ranks draw the same order: python's, numpy's and torch's generators, and the sampler's own `generator` (that of
    a batch sampler's sampler too), are seeded with the epoch while it is drawn.
    """

    def __init__(self, inner: Iterable[Any], rank: int, world_size: int, even: bool = True) -> None:
        self.inner = inner
        self.rank = rank
        self.num_replicas = world_size
        self.epoch = 0
        self._even = even
        generator = _generator_of(inner)
        # Now: once an epoch is resumed, a generator that the loader has too tells the seed of that epoch.
        self._first_seed: Optional[int] = None if generator is None else generator.initial_seed()

    def set_epoch(self, epoch: int) -> None:
        """The order of this epoch comes with the next iteration."""
        self.epoch = epoch
        if hasattr(self.inner, "set_epoch"):
            self.inner.set_epoch(epoch)

    def drawn(self) -> Drawn:
        """This epoch's order, of all ranks."""
        generator = _generator_of(self.inner)
        if generator is not None:
            if self._first_seed is None:  # it has come since
                self._first_seed = generator.initial_seed()
            generator.manual_seed(self._first_seed + self.epoch)
        with reproducible.drawing_from(_order_seed() + self.epoch):
            return list(self.inner)

    def whole(self) -> int:
        """Items of the epoch, on all ranks."""
        return len(cast(Sized, self.inner))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


class DealtBatches(BatchSampler):
    """This rank's batches of a whole epoch: what a prepared loader's `batch_sampler` is."""

    def __init__(self, sampler: InTurn, batch_size: int, drop_last: bool, plan: Plan) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self.order = sampler
        self.plan = plan

    def __iter__(self) -> Iterator[List[Any]]:
        order = self.order.drawn()
        return iter(Hand(order, self.plan(len(order), 0), self.order.rank, single=False))

    def __len__(self) -> int:
        return self.plan(self.order.whole(), 0).batches(self.order.rank)


class Hand:
    """A rank's part of what is left of an epoch."""

    def __init__(self, order: Drawn, dealing: Dealing, rank: int, single: bool) -> None:
        self._order = order
        self._rank = rank
        self._single = single
        self.dealing = dealing

    def __iter__(self) -> Iterator[Any]:
        for batch in range(self.dealing.batches(self._rank)):
            items = self._at(self.dealing.share(batch, self._rank))
            yield items[0] if self._single else items

    def _at(self, positions: range) -> List[Any]:
        if isinstance(self._order, torch.Tensor):
            return list(self._order[positions.start : positions.stop : positions.step].tolist())
        return [self._order[position] for position in positions]


class Dealt:
    """What torch's iterator is given instead of the loader's (batch) sampler: this rank's part from `cursor` on. Draws
    its order when an iteration begins.

    `cursor` stays as it is set: torch's multi-process iterator begins the iteration twice. With `seeds`, items are
    `Numbered`, for the worker processes; `seeds` counts batches from 0 at the cursor.
    """

    def __init__(self, order: InTurn, plan: Plan, single: bool) -> None:
        self._order = order
        self._plan = plan
        self._single = single
        self.cursor = 0
        self.seeds: Optional[Callable[[int], int]] = None
        self.dealing = plan(0, 0)
        """Of the newest iteration."""

    def __iter__(self) -> Iterator[Any]:
        order = self._order.drawn()
        dealing = self.dealing = self._plan(len(order), self.cursor)
        hand = iter(Hand(order, dealing, self._order.rank, self._single))
        seeds = self.seeds
        if seeds is None:
            return hand
        return (Numbered(item, seeds(batch)) for batch, item in enumerate(hand))

    def begins(self, batch: int) -> int:
        """First position of this rank's batch of the newest iteration, which may be the one behind the last."""
        rank = self._order.rank
        return self.dealing.share(batch, rank).start if batch < self.dealing.batches(rank) else self.dealing.length

    def __len__(self) -> int:
        return self._plan(self._order.whole(), 0).batches(self._order.rank)


class Resumable:
    """A (batch) sampler whose iterations leave out the first `skip` items. Draws its order when an iteration begins.

    `skip` stays as it is set: torch's multi-process iterator begins the iteration twice.

    With `seeds`, items are `Numbered`, for the worker processes; it counts batches from 0 behind those left out.
    """

    def __init__(self, inner: Iterable[Any]) -> None:
        self.inner = inner
        self.skip = 0
        self.seeds: Any = None

    def __iter__(self) -> Iterator[Any]:
        items = iter(self.inner)
        skip, seeds = self.skip, self.seeds
        # RandomSampler draws when the first index is asked for: ask now, while `loader` holds the generators in place.
        first = list(islice(items, skip, skip + 1))
        every = chain(first, items)
        if seeds is None:
            return every
        return (Numbered(item, seeds(offset)) for offset, item in enumerate(every))

    def __len__(self) -> int:
        return len(cast(Sized, self.inner))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


def distribute(
    loader: DataLoader[Any], rank: int, world_size: int, even: bool, global_batch: Optional[GlobalBatch] = None
) -> None:
    """Give a loader (a copy of the user's) this rank's share in place. Distributed samplers of the user's stay.

    `global_batch`: what all ranks take together; each rank's are then parts of it.
    """
    attributes = loader.__dict__
    batches: Any = loader.batch_sampler if global_batch is None else global_batch.batches_of(loader)
    if loader.batch_size is None and batches is not None and type(batches) is not BatchSampler:
        attributes["batch_sampler"] = batches if is_distributed(batches) else Share(batches, rank, world_size, even)
        return
    own = loader.batch_size is None and batches is not None
    sampler = _share_of(batches.sampler if own else loader.sampler, rank, world_size, even)
    if not own:
        attributes["sampler"] = sampler
    if batches is None:
        return
    size, drop_last = batches.batch_size, batches.drop_last
    if not isinstance(sampler, InTurn):
        attributes["batch_sampler"] = BatchSampler(sampler, size, drop_last)
        return

    def plan(length: int, cursor: int) -> Dealing:
        if global_batch is not None:
            return GlobalDeal(length, cursor, world_size, global_batch.size, size, drop_last)
        return Deal(length, cursor, world_size, size, drop_last, even)

    attributes["batch_sampler"] = DealtBatches(sampler, size, drop_last, plan)


def dealt(loader: DataLoader[Any]) -> Optional[Dealt]:
    """How a loader's samples are dealt by a cursor; None where a dataset or sampler of the user's divides itself."""
    source = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    if isinstance(source, DealtBatches):
        return Dealt(source.order, source.plan, single=False)
    if isinstance(source, InTurn):
        return Dealt(source, source.plan, single=True)
    return None


def _share_of(sampler: Any, rank: int, world_size: int, even: bool) -> Any:
    if is_distributed(sampler):
        return sampler
    # At one rank too: the order then comes from the epoch's number, so that a resumed epoch goes on in it.
    if type(sampler) is SequentialSampler:
        return EpochOrder(sampler.data_source, rank, world_size, shuffle=False, even=even)
    if type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None:
        return EpochOrder(sampler.data_source, rank, world_size, shuffle=True, even=even)
    return Share(sampler, rank, world_size, even)


def is_distributed(sampler: Any) -> bool:
    """Whether a (batch) sampler of the user's gives each rank a part of the data by itself."""
    return (
        isinstance(sampler, DistributedSampler)
        or hasattr(sampler, "num_replicas")
        or hasattr(getattr(sampler, "sampler", None), "num_replicas")
    )


def _generator_of(sampler: Any) -> Optional[torch.Generator]:
    for candidate in (sampler, getattr(sampler, "sampler", None)):
        found = getattr(candidate, "generator", None)
        if isinstance(found, torch.Generator):
            return found
    return None


def _order_seed() -> int:
    return reproducible.seed() or 0


def epoch_setters(loader: DataLoader[Any]) -> Sequence[Any]:
    """What takes `set_epoch` in a loader: its sampler, its batch sampler and the sampler in that, its dataset."""
    batches = loader.batch_sampler
    found: List[Any] = []
    for candidate in (loader.sampler, batches, getattr(batches, "sampler", None), loader.dataset):
        if hasattr(candidate, "set_epoch") and not any(candidate is other for other in found):
            found.append(candidate)
    return found
