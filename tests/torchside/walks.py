"""A training loop of many ranks in one process, cut off and gone on with at other sizes: the histories that the tests
of the data's order walk through, and data and a sampler for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader, Dataset, Sampler

from trainjob.session import rank_state, state_format
from trainjob.torch.loader import prepare_data_loader

BeRank = Callable[[int, int], None]
NAME = "data-loader-0"


class Numbers(Dataset[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


class Backwards(Sampler[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count - 1, -1, -1))

    def __len__(self) -> int:
        return self.count


def states(be_rank: BeRank, size: int, make: Callable[[], Any], batches: int, saved: Sequence[Any] = ()) -> Any:
    """Each rank of an attempt of `size` ranks takes `batches` and reports: (what each took, what each saved).

    `saved`: what the attempt before left, which this one goes on from.
    """
    taken, left = [], []
    for rank in range(size):
        be_rank(rank, size)
        loader = make()
        resume(saved, rank)
        iterator = iter(loader)
        mine = [_items(next(iterator)) for _ in range(batches)]
        left.append(state_format.loads(state_format.dumps(rank_state._providers[NAME].get())))
        taken.append(mine)
        del iterator
    return taken, left


def rest(be_rank: BeRank, size: int, make: Callable[[], Any], saved: Sequence[Any]) -> list[list[list[int]]]:
    """Each rank of an attempt of `size` ranks takes all that is left of the epoch."""
    taken = []
    for rank in range(size):
        be_rank(rank, size)
        loader = make()
        resume(saved, rank)
        taken.append([_items(batch) for batch in loader])
    return taken


def resume(saved: Sequence[Any], rank: int) -> None:
    """Hand an attempt's states to this rank as get_checkpoint() does."""
    if saved:
        owner = rank if rank < len(saved) else 0
        first = saved[0]
        rank_state._providers[NAME].set(rank_state.Saved(saved[owner], owner, len(saved), first))


def _items(batch: Any) -> list[int]:
    return [batch] if isinstance(batch, int) else list(batch.tolist())


def flat(taken: Sequence[Sequence[Sequence[int]]]) -> list[int]:
    return [item for rank in taken for batch in rank for item in batch]


def maker(count: int, **options: Any) -> Callable[[], Any]:
    prepared = {key: options.pop(key) for key in ("even_batches", "global_batch") if key in options}
    return lambda: prepare_data_loader(DataLoader(Numbers(count), **options), **prepared)
