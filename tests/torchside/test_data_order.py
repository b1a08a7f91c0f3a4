"""The order of an epoch belongs to (seed, epoch) alone: whatever the sizes through which a job goes, each sample is
handed out once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from torchside.walks import NAME, Backwards, Numbers, flat, maker, rest, resume, states
from trainjob.session import rank_state
from trainjob.torch.dealing import Deal, GlobalDeal
from trainjob.torch.loader import prepare_data_loader

BeRank = Callable[[int, int], None]

PURE = settings(deadline=None, max_examples=300)
sizes = st.integers(1, 9)
lengths = st.integers(0, 200)


def _steps(deal: Deal | GlobalDeal, step: int) -> list[range]:
    return [deal.share(step, rank) for rank in range(deal.world_size) if step < deal.batches(rank)]


@PURE
@given(
    length=lengths,
    batch=st.integers(1, 12),
    walk=st.lists(st.tuples(sizes, st.integers(0, 9)), min_size=1),
)
def test_each_position_is_dealt_once_through_any_walk(length: int, batch: int, walk: list[tuple[int, int]]) -> None:
    """Stopped after any step, gone on with at any size and batch size: exactly once, in the order of the epoch."""
    cursor, seen = 0, []
    for number, (size, steps) in enumerate(walk):
        deal = Deal(length, cursor, size, batch + number % 3, even=False)
        steps = steps if number + 1 < len(walk) else length + 1
        for step in range(min(steps, max(map(deal.batches, range(size))))):
            shares = _steps(deal, step)
            seen += sorted(position for share in shares for position in share)
            assert max(map(len, shares)) - min(map(len, shares)) <= 1 and max(map(len, shares)) <= deal.batch
        cursor = deal.cursor(steps)
    assert seen == list(range(length)) and cursor == length


@PURE
@given(length=lengths, begin=st.integers(0, 50), size=sizes, batch=st.integers(1, 12))
def test_ranks_have_equally_many_batches_and_nothing_comes_twice_that_need_not(
    length: int, begin: int, size: int, batch: int
) -> None:
    deal = Deal(length, begin, size, batch)
    assert len({deal.batches(rank) for rank in range(size)}) == 1
    shares = [share for step in range(deal.batches(0)) for share in _steps(deal, step)]
    times = Counter(position for share in shares for position in share)
    assert set(times) == set(range(begin, length)) and all(len(share) in range(1, batch + 1) for share in shares)
    twice = sum(times.values()) - len(times)
    assert twice == deal.again < size
    left = max(0, length - begin)
    assert not twice or batch == 1 or left < size


@PURE
@given(length=lengths, begin=st.integers(0, 50), size=sizes, batch=st.integers(1, 12))
def test_drop_last_leaves_out_less_than_a_step(length: int, begin: int, size: int, batch: int) -> None:
    deal = Deal(length, begin, size, batch, drop_last=True)
    shares = [share for step in range(deal.batches(0)) for share in _steps(deal, step)]
    assert all(len(share) == batch for share in shares)
    seen = sorted(position for share in shares for position in share)
    assert seen == list(range(begin, begin + len(seen))) and 0 <= max(0, length - begin) - len(seen) < size * batch
    assert Deal(length, deal.cursor(deal.batches(0)), 1, 1).batches(0) == 0, "what is left out stays left out"


def test_at_one_rank_batches_are_torchs(be_rank: BeRank) -> None:
    be_rank(0, 1)
    for count, batch, drop_last in ((10, 4, False), (9, 4, False), (9, 4, True), (3, 4, True), (0, 4, False)):
        plain: Any = DataLoader(Numbers(count), batch_size=batch, drop_last=drop_last)
        ours = prepare_data_loader(plain)
        assert [b.tolist() for b in ours] == [b.tolist() for b in plain] and len(ours) == len(plain)


@pytest.mark.parametrize("shuffle", [False, True])
def test_through_2_4_3_2_each_sample_comes_once(be_rank: BeRank, shuffle: bool) -> None:
    make = maker(101, batch_size=4, shuffle=shuffle)
    seen: list[int] = []
    saved: Any = ()
    for size, batches in ((2, 3), (4, 1), (3, 2)):
        taken, saved = states(be_rank, size, make, batches, saved)
        seen += flat(taken)
    seen += flat(rest(be_rank, 2, make, saved))
    assert sorted(seen) == list(range(101))


class OwnBatches(BatchSampler):
    pass


KINDS: dict[str, Callable[[int], dict[str, Any]]] = {
    "in turn": lambda count: {"batch_size": 3},
    "shuffled": lambda count: {"batch_size": 3, "shuffle": True},
    "a sampler": lambda count: {"batch_size": 3, "sampler": Backwards(count)},
    "torch's batches": lambda count: {"batch_sampler": BatchSampler(Backwards(count), 3, False)},
    "own batches": lambda count: {"batch_sampler": OwnBatches(range(count), 3, False), "even_batches": False},
    "no batches": lambda count: {"batch_size": None, "even_batches": False},
}


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(sorted(KINDS)),
    count=st.integers(60, 90),
    walk=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), max_size=4),
    last=st.integers(1, 4),
)
def test_loaders_hand_out_each_sample_once_through_any_walk(
    be_rank: BeRank, kind: str, count: int, walk: list[tuple[int, int]], last: int
) -> None:
    def make() -> Any:
        return maker(count, **KINDS[kind](count))()

    seen: list[int] = []
    saved: Any = ()
    for size, batches in walk:
        taken, saved = states(be_rank, size, make, batches, saved)
        seen += flat(taken)
    seen += flat(rest(be_rank, last, make, saved))
    assert sorted(seen) == list(range(count))


def test_what_is_left_does_not_depend_on_the_size_or_the_loaders_processes(be_rank: BeRank) -> None:
    """The rest of an epoch is the same set whoever goes on with it, and in the same order of steps."""
    _, saved = states(be_rank, 2, maker(50, batch_size=4, shuffle=True), 2)
    whole = flat(rest(be_rank, 1, maker(50, batch_size=4, shuffle=True), saved))
    for size, workers in ((2, 0), (2, 2), (3, 0), (5, 1)):
        taken = rest(be_rank, size, maker(50, batch_size=4, shuffle=True, num_workers=workers), saved)
        dealt = [item for step in range(len(taken[0])) for item in sorted(i for rank in taken for i in rank[step])]
        in_order = [i for start in range(0, len(whole), size * 4) for i in sorted(whole[start : start + size * 4])]
        assert sorted(dealt) == sorted(whole) and dealt[: size * 4] == in_order[: size * 4]


def test_what_processes_loaded_ahead_is_not_counted(be_rank: BeRank) -> None:
    make = maker(80, batch_size=2, shuffle=True, num_workers=2, prefetch_factor=4)
    taken, saved = states(be_rank, 2, make, 3)
    assert sorted(flat(taken) + flat(rest(be_rank, 3, maker(80, batch_size=2, shuffle=True), saved))) == list(range(80))


def test_the_next_epoch_is_whole_at_the_new_size(be_rank: BeRank) -> None:
    make = maker(40, batch_size=4, shuffle=True)
    _, saved = states(be_rank, 2, make, 2)
    shares = []
    for rank in range(3):
        be_rank(rank, 3)
        loader = make()
        resume(saved, rank)
        for _ in loader:
            pass
        shares.append([batch.tolist() for batch in loader])
        assert loader.sampler.epoch == 1
    assert sorted(flat(shares)) == list(range(40))


def test_ranks_that_were_handed_unequally_many_go_on_from_one_place(be_rank: BeRank) -> None:
    """Rank 0's word counts for all of another size, whose own state is there or not."""
    make = maker(60, batch_size=4)
    _, ahead = states(be_rank, 2, make, 3)
    _, behind = states(be_rank, 2, make, 2)
    left = flat(rest(be_rank, 3, make, [ahead[0], behind[1]]))
    assert sorted(left) == list(range(24, 60))


def test_a_checkpoint_of_before_the_cursor_goes_on_with_the_same_samples(be_rank: BeRank) -> None:
    """States that the version before wrote, in epoch 1 behind batch 3 of 2 ranks; what it would have handed out."""
    old = Path(__file__).parent / "old_states"
    wanted = [[[4, 38, 33, 26], [14, 2, 25, 9]], [[31, 27, 28, 29], [3, 8, 37, 21]]]
    make = maker(40, batch_size=4, shuffle=True)
    for rank in range(2):
        be_rank(rank, 2)
        loader = make()
        rank_state.load(str(old / f"rank-{rank}.state"))
        assert [batch.tolist() for batch in loader] == wanted[rank]
    left = []
    for rank in range(3):
        be_rank(rank, 3)
        loader = make()
        own = min(rank, 1) if rank < 2 else 0
        rank_state.load(str(old / f"rank-{own}.state"), str(old / "rank-0.state"))
        left.append([batch.tolist() for batch in loader])
    assert sorted(flat(left)) == sorted(flat(wanted))


def test_all_the_data_on_each_rank_goes_on_at_the_same_batch(be_rank: BeRank) -> None:
    """add_dist_sampler=False: a rank was handed as many batches, however many others there are."""

    def make() -> Any:
        return prepare_data_loader(DataLoader(Numbers(20), batch_size=4), add_dist_sampler=False)

    _, saved = states(be_rank, 2, make, 3)
    be_rank(2, 4)
    loader = make()
    resume(saved, 2)
    assert [batch.tolist() for batch in loader] == [[12, 13, 14, 15], [16, 17, 18, 19]]


@pytest.mark.parametrize("batched", [False, True], ids=["sampler", "batch sampler"])
@pytest.mark.parametrize(("old", "new"), [(4, 2), (2, 4)])
def test_a_distributed_sampler_goes_on_behind_what_all_ranks_were_handed(
    be_rank: BeRank, old: int, new: int, batched: bool
) -> None:
    """With add_dist_sampler=False too, as for loaders that Lightning has given one."""

    def make() -> Any:
        sampler: Any = DistributedSampler(Numbers(48), shuffle=False)
        by: dict[str, Any] = {"sampler": sampler, "batch_size": 2}
        if batched:
            by = {"batch_sampler": OwnBatches(sampler, 2, False)}
        return prepare_data_loader(DataLoader(Numbers(48), **by), add_dist_sampler=False)

    taken, saved = states(be_rank, old, make, 2)
    left = rest(be_rank, new, make, saved)
    assert sorted(flat(taken) + flat(left)) == list(range(48))


def test_a_checkpoint_of_before_the_cursor_counts_the_batches_of_an_own_batch_sampler(be_rank: BeRank) -> None:
    be_rank(0, 1)
    loader = prepare_data_loader(DataLoader(Numbers(20), batch_sampler=OwnBatches(range(20), 4, False)))
    state = {"epoch": 0, "handed": 2, "open": True, "fresh": False, "start": None}
    rank_state._providers[NAME].set(rank_state.Saved(state, 0, 1))
    assert [batch.tolist() for batch in loader] == [[8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18, 19]]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(40))


@pytest.mark.parametrize("kind", ["stream", "sampler"])
def test_what_divides_itself_is_told_that_it_is_not_exact(be_rank: BeRank, kind: str) -> None:
    def make(rank: int, size: int) -> Any:
        be_rank(rank, size)
        if kind == "stream":
            return prepare_data_loader(DataLoader(Stream(), batch_size=2))
        sampler: Any = DistributedSampler(Numbers(40), size, rank, shuffle=False)
        return prepare_data_loader(DataLoader(Numbers(40), batch_size=2, sampler=sampler))

    batches = iter(make(0, 4))
    for _ in range(5):
        next(batches)
    state = rank_state._providers[NAME].get()
    loader = make(0, 3)
    with pytest.warns(UserWarning, match="taken with 4 ranks inside an epoch, and there are 3 now"):
        rank_state._providers[NAME].set(rank_state.Saved(state, 0, 4))
    assert loader is not None


def test_a_sampler_over_a_part_of_the_data_keeps_that_part(be_rank: BeRank) -> None:
    """torch's own sampler over a choice of indices, in torch's own batches: not the whole dataset."""
    from torch.utils.data import RandomSampler, SequentialSampler

    for kind in (SequentialSampler, RandomSampler):
        seen = []
        for rank in range(2):
            be_rank(rank, 2)
            batches = BatchSampler(kind(range(10)), 2, False)
            seen += flat([[b.tolist() for b in prepare_data_loader(DataLoader(Numbers(50), batch_sampler=batches))]])
        assert sorted(seen) == list(range(10))
