from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import trainjob
from torchside.walks import Backwards
from trainjob.session import rank_state
from trainjob.torch import samplers
from trainjob.torch.loader import prepare_data_loader

BeRank = Callable[[int, int], None]


class Numbers(Dataset[int]):
    """0 .. n-1, and which of them were asked for (in this process)."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        self.asked.append(index)
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(20))


class Noisy(Dataset[float]):
    """Each item draws from all three generators, as augmentations do."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> float:
        import numpy as np

        return index + random.random() / 4 + float(np.random.rand()) / 4 + float(torch.rand(())) / 4


def _lists(loader: Any) -> list[list[Any]]:
    return [batch.tolist() for batch in loader]


def _flat(loader: Any) -> list[Any]:
    return [item for batch in loader for item in batch.tolist()]


def _joined(lists: Iterable[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))


def _resume(name: str, state: Any, world_size: int = 1) -> None:
    """Hand a state back as get_checkpoint() does."""
    rank_state._providers[name].set(rank_state.Saved(state, 0, world_size))


def _state(name: str = "data-loader-0") -> Any:
    return rank_state._providers[name].get()


def test_outside_a_worker_it_says_how_to_run(clean: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINJOB_AGENT_SOCKET", raising=False)
    with pytest.raises(trainjob.NotInWorkerError, match="tj run"):
        prepare_data_loader(DataLoader(Numbers(4)))


def test_it_wants_a_data_loader(be_rank: BeRank) -> None:
    be_rank(0, 1)
    with pytest.raises(TypeError, match="got list"):
        prepare_data_loader([1, 2])  # type: ignore[arg-type]


@pytest.mark.parametrize("world_size", [1, 3])
def test_every_argument_is_kept(be_rank: BeRank, world_size: int) -> None:
    be_rank(0, world_size)

    class Own(DataLoader[int]):
        pass

    given: dict[str, Any] = {
        "dataset": Numbers(10),
        "batch_size": 3,
        "num_workers": 2,
        "collate_fn": sum,
        "pin_memory": True,
        "drop_last": True,
        "timeout": 17,
        "worker_init_fn": print,
        "multiprocessing_context": "spawn",
        "generator": torch.Generator(),
        "prefetch_factor": 5,
        "persistent_workers": True,
        "pin_memory_device": "x",
        "in_order": False,
    }
    known = set(inspect.signature(DataLoader).parameters) - {"shuffle", "sampler", "batch_sampler", "self"}
    assert set(given) == known & set(given), "this torch lacks an argument of the test"
    loader = Own(**given)
    loader.mine = "kept"  # type: ignore[attr-defined]
    prepared: Any = prepare_data_loader(loader)
    for name in known:
        assert getattr(prepared, name) is getattr(loader, name) or getattr(prepared, name) == getattr(loader, name), (
            name
        )
    assert isinstance(prepared, Own) and prepared.mine == "kept" and prepared is not loader
    assert prepared.batch_sampler.batch_size == 3 and prepared.batch_sampler.drop_last is True


@pytest.mark.parametrize("shuffle", [False, True])
def test_ranks_share_the_data(be_rank: BeRank, shuffle: bool) -> None:
    shares, epochs = [], []
    for rank in range(3):
        be_rank(rank, 3)
        loader = prepare_data_loader(DataLoader(Numbers(30), batch_size=4, shuffle=shuffle))
        assert isinstance(loader.sampler, DistributedSampler) and loader.sampler.shuffle is shuffle
        assert len(loader) == 3
        shares.append(_flat(loader))
        epochs.append(_flat(loader))
    assert sorted(_joined(shares)) == list(range(30))
    assert (shares == epochs) is not shuffle


def test_one_rank_keeps_its_order_and_shuffles_by_epoch(be_rank: BeRank) -> None:
    be_rank(0, 1)
    assert _flat(prepare_data_loader(DataLoader(Numbers(6), batch_size=4))) == list(range(6))
    first, second = (prepare_data_loader(DataLoader(Numbers(20), batch_size=4, shuffle=True)) for _ in range(2))
    assert _flat(first) == _flat(second)
    assert _flat(first) != list(range(20)) and sorted(_flat(first)) == list(range(20))


def test_a_samplers_own_choice_is_kept_and_dealt_out(be_rank: BeRank) -> None:
    shares = []
    for rank in range(2):
        be_rank(rank, 2)
        torch.manual_seed(rank)
        shares.append(
            _flat(
                prepare_data_loader(DataLoader(Numbers(100), batch_size=3, sampler=SubsetRandomSampler(range(10, 20))))
            )
        )
    assert sorted(_joined(shares)) == list(range(10, 20))
    be_rank(1, 2)
    assert _flat(prepare_data_loader(DataLoader(Numbers(7), sampler=Backwards(7)))) == [5, 3, 1, 0]
    weighted = prepare_data_loader(
        DataLoader(Numbers(9), batch_size=5, sampler=WeightedRandomSampler([0.0, 1.0] + [0.0] * 7, num_samples=40))
    )
    assert len(weighted) == 4 and set(_flat(weighted)) == {1}


def test_a_samplers_own_generator_agrees_between_ranks_and_epochs_differ(be_rank: BeRank) -> None:
    orders = []
    for _ in range(2):
        be_rank(0, 2)
        generator = torch.Generator().manual_seed(5)
        loader = prepare_data_loader(
            DataLoader(Numbers(40), batch_size=40, sampler=SubsetRandomSampler(range(40), generator=generator))
        )
        orders.append((_flat(loader), _flat(loader), _flat(loader)))
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders[0]}) == 3


class Own(BatchSampler):
    """A batch sampler of the user's."""


@pytest.mark.parametrize("kind", ["sampler", "batch sampler", "the sampler alone"])
def test_a_samplers_generator_that_the_loader_has_too_resumes_a_later_epoch_in_its_order(
    be_rank: BeRank, kind: str
) -> None:
    """torch's recipe for reproducible loaders: one generator for both."""

    def make() -> Any:
        generator = torch.Generator().manual_seed(5)
        sampler = SubsetRandomSampler(range(12), generator=generator)
        if kind == "batch sampler":
            return prepare_data_loader(DataLoader(Numbers(12), batch_sampler=Own(sampler, 2, False)))
        own = generator if kind == "sampler" else None
        return prepare_data_loader(DataLoader(Numbers(12), batch_size=2, sampler=sampler, generator=own))

    be_rank(0, 1)
    loader = make()
    for _ in range(2):
        _lists(loader)
    batches = iter(loader)
    seen = [next(batches).tolist() for _ in range(2)]
    state = _state()
    rest = [batch.tolist() for batch in batches]
    following = _lists(loader)
    be_rank(0, 1)
    again = make()
    _resume("data-loader-0", state)
    assert _lists(again) == rest
    assert sorted(_joined(seen + rest)) == list(range(12))
    assert _lists(again) == following


def test_batch_samplers(be_rank: BeRank) -> None:
    be_rank(1, 2)
    plain = prepare_data_loader(DataLoader(Numbers(8), batch_sampler=BatchSampler(range(8), 2, False)))
    assert _lists(plain) == [[1, 3], [5, 7]]
    own = prepare_data_loader(DataLoader(Numbers(10), batch_sampler=Own(range(10), 2, False)))
    assert len(own) == 3 and _lists(own) == [[2, 3], [6, 7], [8, 9]]
    assert own.batch_size is None and isinstance(own.dataset, Numbers)


def test_a_batch_sampler_over_a_plain_range_is_dealt_out(be_rank: BeRank) -> None:
    be_rank(0, 2)
    loader = prepare_data_loader(DataLoader(Numbers(8), batch_sampler=BatchSampler(Backwards(8), 2, False)))
    assert _lists(loader) == [[7, 5], [3, 1]]


def test_no_batching(be_rank: BeRank) -> None:
    be_rank(0, 2)
    loader = prepare_data_loader(DataLoader(Numbers(6), batch_size=None))
    assert list(loader) == [0, 2, 4] and len(loader) == 3


@pytest.mark.parametrize("kind", ["shuffled", "own sampler", "own batch sampler"])
def test_what_torchs_iterator_is_given_is_as_long_as_this_ranks_part(be_rank: BeRank, kind: str) -> None:
    given: dict[str, Any] = {
        "shuffled": {"batch_size": 2, "shuffle": True},
        "own sampler": {"batch_size": 2, "sampler": Backwards(24)},
        "own batch sampler": {"batch_sampler": Own(range(24), 2, False)},
    }[kind]
    be_rank(1, 3)
    loader = prepare_data_loader(DataLoader(Numbers(24), **given))
    dealt = samplers.dealt(loader)
    assert dealt is not None
    assert len(dealt) == len(list(dealt)) == len(loader) == 4


def test_what_is_distributed_already_stays(be_rank: BeRank) -> None:
    be_rank(0, 2)
    dataset = Numbers(12)
    sampler: DistributedSampler[int] = DistributedSampler(dataset, 2, 1, shuffle=False)
    loader = prepare_data_loader(DataLoader(dataset, batch_size=2, sampler=sampler))
    assert loader.sampler is sampler and _flat(loader) == [1, 3, 5, 7, 9, 11]
    assert _flat(prepare_data_loader(DataLoader(Stream(), batch_size=8))) == list(range(20))
    untouched = DataLoader(dataset, batch_size=2)
    assert prepare_data_loader(untouched, add_dist_sampler=False).sampler is untouched.sampler
    assert prepare_data_loader(loader) is loader


def test_set_epoch_is_called_and_the_users_wins(be_rank: BeRank) -> None:
    be_rank(0, 2)
    loader = prepare_data_loader(DataLoader(Numbers(40), batch_size=4, shuffle=True))
    sampler: Any = loader.sampler
    seen = []
    for _ in range(2):
        seen.append((_flat(loader), sampler.epoch))
    assert [epoch for _, epoch in seen] == [0, 1] and seen[0][0] != seen[1][0]
    sampler.set_epoch(0)
    assert _flat(loader) == seen[0][0] and sampler.epoch == 0
    loader.set_epoch(1)  # type: ignore[attr-defined]
    assert _flat(loader) == seen[1][0]


def _loader(workers: int = 0, **options: Any) -> DataLoader[int]:
    return prepare_data_loader(DataLoader(Numbers(40), batch_size=4, shuffle=True, num_workers=workers, **options))


@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_inside_an_epoch(be_rank: BeRank, workers: int) -> None:
    be_rank(1, 2)
    whole = [_lists(loader) for loader in [_loader()] for _ in range(3)]
    be_rank(1, 2)
    loader = _loader()
    _lists(loader)
    seen = []
    for batch in loader:
        seen.append(batch.tolist())
        if len(seen) == 2:
            state = _state()
            break
    be_rank(1, 2)
    again = _loader(workers, persistent_workers=workers > 0)
    _resume("data-loader-0", state, world_size=2)
    assert len(again) == 5
    assert _lists(again) == whole[1][2:]
    assert workers or again.dataset.asked == _joined(whole[1][2:])  # type: ignore[attr-defined]
    assert len(again) == 5
    assert _lists(again) == whole[2]


def test_a_loader_that_is_prepared_after_get_checkpoint_resumes_too(be_rank: BeRank) -> None:
    be_rank(0, 1)
    loader = _loader()
    batches = iter(loader)
    expected = [next(batches).tolist() for _ in range(10)]
    del batches
    be_rank(0, 1)
    loader = _loader()
    batches = iter(loader)
    next(batches)
    state = _state()
    be_rank(0, 1)
    rank_state._loaded["data-loader-0"] = rank_state.Saved(state, 0, 1)
    assert _lists(_loader()) == expected[1:]


def test_the_last_batch_then_an_empty_iteration_then_the_next_epoch(be_rank: BeRank) -> None:
    be_rank(0, 1)
    loader = _loader()
    for _ in loader:
        state = _state()
    after = _lists(loader)
    be_rank(0, 1)
    again = _loader()
    _resume("data-loader-0", state)
    assert _lists(again) == []
    assert _lists(again) == after


def test_a_look_at_the_data_does_not_count(be_rank: BeRank) -> None:
    be_rank(0, 1)
    loader = _loader()
    look = next(iter(loader)).tolist()
    held = iter(loader)
    next(held)
    assert _lists(loader)[0] == look
    assert loader.sampler.epoch == 0  # type: ignore[attr-defined]


def test_several_loaders_are_told_apart_and_dropped_ones_forgotten(be_rank: BeRank) -> None:
    be_rank(0, 1)
    train, test = _loader(), _loader()
    _lists(train)
    _lists(test)
    _lists(test)
    assert (_state("data-loader-0")["epoch"], _state("data-loader-1")["epoch"]) == (0, 1)
    del train
    assert set(rank_state._providers) == {"data-loader-1"}


def test_another_number_of_ranks_goes_on_with_the_same_samples(be_rank: BeRank) -> None:
    seen: list[int] = []
    for rank in range(2):
        be_rank(rank, 2)
        batches = iter(_loader())
        seen += _joined(next(batches).tolist() for _ in range(4))
        state = _state()
        del batches
    rest: list[int] = []
    for rank in range(4):
        be_rank(rank, 4)
        loader = _loader()
        _resume("data-loader-0", state, world_size=2)
        rest += _flat(loader)
    assert sorted(seen + rest) == list(range(40))


def test_an_iterable_dataset_is_read_over(be_rank: BeRank) -> None:
    be_rank(0, 1)
    loader = prepare_data_loader(DataLoader(Stream(), batch_size=3))
    batches = iter(loader)
    next(batches), next(batches)
    state = _state()
    be_rank(0, 1)
    again = prepare_data_loader(DataLoader(Stream(), batch_size=3))
    _resume("data-loader-0", state)
    assert _flat(again) == list(range(6, 20))
    assert _flat(again) == list(range(20))


def test_a_shuffle_that_torchs_generator_draws_is_resumed_in_its_order(be_rank: BeRank) -> None:
    be_rank(0, 1)
    torch.manual_seed(3)
    loader = prepare_data_loader(DataLoader(Numbers(12), batch_size=2, shuffle=True), add_dist_sampler=False)
    _lists(loader)
    batches = iter(loader)
    order = [next(batches).tolist() for _ in range(3)]
    state = _state()
    rest = [batch.tolist() for batch in batches]
    be_rank(0, 1)
    torch.manual_seed(99)
    again = prepare_data_loader(DataLoader(Numbers(12), batch_size=2, shuffle=True), add_dist_sampler=False)
    _resume("data-loader-0", state)
    before = torch.get_rng_state()
    assert _lists(again) == rest and len(order) == 3
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("workers", [0, 2])
def test_under_reproducibility_augmentations_repeat_and_touch_no_generator(be_rank: BeRank, workers: int) -> None:
    def prepared(number: int) -> DataLoader[float]:
        be_rank(1, 2)
        trainjob.enable_reproducibility(7)
        torch.rand(number)
        return prepare_data_loader(DataLoader(Noisy(), batch_size=3, shuffle=True, num_workers=number))

    loader = prepared(workers)
    _lists(loader)
    batches = iter(loader)
    kept = random.getstate(), torch.get_rng_state()
    seen = [next(batches).tolist() for _ in range(2)]
    state = _state()
    rest = [batch.tolist() for batch in batches]
    assert (random.getstate(), torch.get_rng_state().tolist()) == (kept[0], kept[1].tolist())
    # Neither how many workers load nor what was drawn before changes a batch.
    again = prepared(2 - workers)
    _resume("data-loader-0", state, world_size=2)
    assert _lists(again) == rest and len(seen[0]) == 3
    be_rank(0, 2)
    trainjob.enable_reproducibility(7)
    other = prepare_data_loader(
        DataLoader(Noisy(), batch_size=12, sampler=DistributedSampler(Noisy(), 2, 1, shuffle=False))
    )
    fractions = {round(item % 1, 6) for item in _flat(other)}
    assert len(fractions) == 12


def test_batches_go_to_the_device(be_rank: BeRank) -> None:
    from collections import namedtuple

    from trainjob.torch.transfer import moved, to_device

    Pair = namedtuple("Pair", "a b")
    meta = torch.device("meta")
    value = {"x": torch.zeros(2), "l": [torch.zeros(1), "text"], "p": Pair(torch.zeros(1), 3)}
    out = to_device(value, meta)
    assert out["x"].device == out["l"][0].device == out["p"].a.device == meta
    assert out["l"][1] == "text" and isinstance(out["p"], Pair) and out["p"].b == 3
    assert [batch.device for batch in moved(iter([torch.zeros(1)] * 2), meta, overlap=True)] == [meta, meta]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
def test_batches_are_copied_ahead_on_a_gpu(be_rank: BeRank) -> None:
    be_rank(0, 1)
    loader = prepare_data_loader(DataLoader(Numbers(64), batch_size=4, pin_memory=True))
    total = torch.zeros((), device="cuda", dtype=torch.long)
    count = 0
    for batch in loader:
        assert batch.is_cuda
        total += batch.sum()
        count += 1
    assert (int(total), count) == (sum(range(64)), 16)
