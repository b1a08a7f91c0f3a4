"""Which worker a rank belongs to: ranks are numbered through, worker by worker. Pure."""

from __future__ import annotations

from typing import Dict, Iterable, Tuple


def worker_of(rank: int, each: int) -> int:
    """The index of its worker, of which each has so many ranks."""
    return rank // each


def ranks_of(index: int, each: int) -> range:
    """All of one worker."""
    return range(index * each, (index + 1) * each)


def by_worker(ranks: Iterable[int], each: int) -> Dict[int, Tuple[int, ...]]:
    """These, sorted by their workers."""
    found: Dict[int, Tuple[int, ...]] = {}
    for rank in sorted(ranks):
        index = worker_of(rank, each)
        found[index] = (*found.get(index, ()), rank)
    return found
