"""Index order for prepared data loaders: each rank's share, the same order for the same epoch, and skipping without
loading.

Used by `loader` alone. Samplers of torch itself become `DistributedSampler`; a user's own sampler or batch sampler
keeps its order and is dealt out in turn (`Share`). Nothing here touches the data.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import Any, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Sized, cast

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, Sampler, SequentialSampler

from trainjob.torch import reproducible


class Numbered(NamedTuple):
    """What a data loader's worker process is sent under enable_reproducibility(): the indices and the seed of this
    batch.
    """

    indices: Any
    seed: int


class Share(Sampler[Any]):
    """Every `world_size`-th item of a user's own sampler (or batch sampler), the same number on each rank.

    All ranks draw the same order: python's, numpy's and torch's generators, and the sampler's own `generator`, are
    seeded with the epoch while it is drawn. The order is padded from its beginning, as DistributedSampler does.
    """

    def __init__(self, inner: Iterable[Any], rank: int, world_size: int) -> None:
        self.inner = inner
        self.rank = rank
        self.num_replicas = world_size
        self.epoch = 0
        self._first_seed: Optional[int] = None

    def set_epoch(self, epoch: int) -> None:
        """The order of this epoch comes with the next iteration."""
        self.epoch = epoch
        if hasattr(self.inner, "set_epoch"):
            self.inner.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        seed = _order_seed() + self.epoch
        generator = getattr(self.inner, "generator", None)
        if generator is not None:
            if self._first_seed is None:
                self._first_seed = generator.initial_seed()
            generator.manual_seed(self._first_seed + self.epoch)
        with reproducible.drawing_from(seed):
            order = list(self.inner)
        share = -(-len(order) // self.num_replicas)
        return iter(_padded(order, share * self.num_replicas)[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return -(-len(cast(Sized, self.inner)) // self.num_replicas)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


def _padded(order: List[Any], total: int) -> List[Any]:
    while order and len(order) < total:
        order = order + order[: total - len(order)]
    return order


class Resumable:
    """A (batch) sampler whose iterations leave out the first `skip` items. Draws its order when an iteration begins.

    `skip` stays as it is set: torch's multi-process iterator begins the iteration twice.

    With `seeds`, items are `Numbered`, for the worker processes.
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
        return (Numbered(item, seeds(skip + offset)) for offset, item in enumerate(every))

    def __len__(self) -> int:
        return len(cast(Sized, self.inner))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


class SeededDataset:
    """In a worker process: seeds the generators for each batch, then asks the user's dataset as torch would."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, numbered: Numbered) -> Any:
        _seed(numbered.seed)
        return self.dataset[numbered.indices]

    def __getitems__(self, numbered: Numbered) -> Any:
        _seed(numbered.seed)
        if getattr(self.dataset, "__getitems__", None):
            return self.dataset.__getitems__(numbered.indices)
        return [self.dataset[index] for index in numbered.indices]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)


def _seed(seed: int) -> None:
    reproducible.seed_generators(seed)


def distribute(loader: DataLoader[Any], rank: int, world_size: int) -> None:
    """Give a loader (a copy of the user's) this rank's share in place. Distributed samplers of the user's stay."""
    attributes = loader.__dict__
    own_batches = loader.batch_size is None and loader.batch_sampler is not None
    if not own_batches:
        sampler = attributes["sampler"] = _share_of(loader.sampler, loader.dataset, rank, world_size)
        if loader.batch_size is not None:
            attributes["batch_sampler"] = BatchSampler(sampler, loader.batch_size, loader.drop_last)
        return
    batches: Any = loader.batch_sampler
    if type(batches) is BatchSampler:
        sampler = _share_of(batches.sampler, loader.dataset, rank, world_size)
        attributes["batch_sampler"] = BatchSampler(sampler, batches.batch_size, batches.drop_last)
    else:
        attributes["batch_sampler"] = batches if _is_distributed(batches) else Share(batches, rank, world_size)


def _share_of(sampler: Any, dataset: Any, rank: int, world_size: int) -> Any:
    if _is_distributed(sampler):
        return sampler
    if type(sampler) is SequentialSampler:
        return sampler if world_size == 1 else DistributedSampler(dataset, world_size, rank, shuffle=False)
    if type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None:
        # At one rank too: its order then comes from the epoch's number, so that a resumed epoch goes on in it.
        return DistributedSampler(dataset, world_size, rank, shuffle=True, seed=_order_seed())
    return Share(sampler, rank, world_size)


def _is_distributed(sampler: Any) -> bool:
    return (
        isinstance(sampler, DistributedSampler)
        or hasattr(sampler, "num_replicas")
        or hasattr(getattr(sampler, "sampler", None), "num_replicas")
    )


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
