"""The gradient of a global batch is the same at any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

import trainjob
from support.fork_ranks import run_stages
from torchside.walks import Numbers, flat, maker, rest, states
from trainjob.torch import GlobalBatch
from trainjob.torch.dealing import GlobalDeal
from trainjob.torch.loader import prepare_data_loader

BeRank = Callable[[int, int], None]


@settings(deadline=None, max_examples=200)
@given(
    length=st.integers(0, 150),
    begin=st.integers(0, 40),
    world_size=st.integers(1, 9),
    size=st.integers(1, 40),
    micro=st.integers(1, 12),
    drop_last=st.booleans(),
)
def test_each_sample_of_a_step_weighs_the_same(
    length: int, begin: int, world_size: int, size: int, micro: int, drop_last: bool
) -> None:
    deal = GlobalDeal(length, begin, world_size, size, micro, drop_last)
    counts = {deal.batches(rank) for rank in range(world_size)}
    assert len(counts) == 1
    cursor, weights = begin, dict.fromkeys(range(begin, length), 0.0)
    steps = 0
    for batch in range(counts.pop()):
        at = deal.at(batch, 0)
        assert deal.cursor(batch) == cursor and deal.whole(batch) == batch - at.number
        for rank in range(world_size):
            mine, share = deal.at(batch, rank), deal.share(batch, rank)
            assert (mine.number, mine.count, mine.of) == (at.number, at.count, at.of)
            assert len(share) == max(1, mine.samples) <= micro
            for position in share:  # a mean over the share, times the scale, averaged over ranks by DDP
                weights[position] += mine.scale / len(share) / world_size * mine.of
        if at.number == at.count - 1:
            cursor += at.of
            steps += 1
    left = max(0, length - begin)
    assert steps == (left // size if drop_last else -(-left // size))
    dropped = left % size if drop_last else 0
    for position, weight in weights.items():
        assert weight == pytest.approx(0 if position >= length - dropped else 1)


def _loss(model: torch.nn.Module, numbers: torch.Tensor) -> torch.Tensor:
    inputs = torch.stack([numbers.double().sin(), numbers.double().cos()], dim=1)
    return torch.nn.functional.mse_loss(model(inputs)[:, 0], (numbers % 7).double())


def _gradients(be_rank: BeRank, world_size: int, size: int, micro: int, count: int) -> list[torch.Tensor]:
    """Of each step of an epoch, averaged over ranks as DDP does."""
    sums: list[torch.Tensor] = []
    for rank in range(world_size):
        be_rank(rank, world_size)
        model = torch.nn.Linear(2, 1).double()
        torch.nn.init.constant_(model.weight, 0.3)
        torch.nn.init.zeros_(model.bias)
        batch, step = GlobalBatch(size, max_micro=micro), 0
        for numbers in prepare_data_loader(DataLoader(Numbers(count), shuffle=True), global_batch=batch):
            with batch.accumulating(model):
                batch.scaled(_loss(model, numbers)).backward()
            if batch.completes_step:
                gradient = torch.cat([model.weight.grad.flatten(), model.bias.grad]) / world_size  # type: ignore[union-attr]
                sums = [*sums, gradient] if rank == 0 else [*sums[:step], sums[step] + gradient, *sums[step + 1 :]]
                model.zero_grad()
                step += 1
        assert step == len(sums) and batch.samples == (count % size or size)
    return sums


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_the_gradient_is_that_of_one_process(be_rank: BeRank, world_size: int) -> None:
    """70 samples in steps of 16: a tail of 6, which is less than five ranks' worth of two."""
    alone = _gradients(be_rank, 1, 16, 16, 70)
    shared = _gradients(be_rank, world_size, 16, 2, 70)
    assert len(alone) == len(shared) == 5
    for one, other in zip(alone, shared, strict=True):
        assert torch.allclose(one, other, rtol=1e-12)
    few = _gradients(be_rank, 4, 16, 2, 35)  # a tail of 3 for 4 ranks
    for one, other in zip(_gradients(be_rank, 1, 16, 16, 35), few, strict=True):
        assert torch.allclose(one, other, rtol=1e-12)


def test_with_ddp_and_fsdp2_the_weights_are_those_of_one_process(tmp_path: Path) -> None:
    """Three processes: how they average is theirs."""
    ranks = [{"RANK": str(rank), "WORLD_SIZE": "3", "STORE": str(tmp_path / "store")} for rank in range(3)]
    preload = ("trainjob.torch.loader", "torch.distributed.fsdp", "torch.distributed.tensor", "torch._dynamo")
    ended = run_stages([ranks], Path(__file__).with_name("loop_global_batch.py"), tmp_path, preload)
    assert ended.code == 0, ended.err
    assert len(list(tmp_path.glob("done-*"))) == 3


def test_an_unfinished_step_begins_again_and_a_finished_one_does_not(be_rank: BeRank) -> None:
    make = maker(60, shuffle=True, global_batch=GlobalBatch(12, max_micro=2))
    order = flat(rest(be_rank, 1, make, ()))
    _, whole = states(be_rank, 2, make, 6)  # two steps of three batches
    assert sorted(flat(rest(be_rank, 3, make, whole))) == sorted(order[24:])
    _, half = states(be_rank, 2, make, 5)
    assert sorted(flat(rest(be_rank, 3, make, half))) == sorted(order[12:])
    assert half[0]["handed"] == 3


@pytest.mark.parametrize("workers", [0, 1])
def test_under_reproducibility_too(be_rank: BeRank, workers: int) -> None:
    be_rank(1, 2)
    trainjob.enable_reproducibility(3)
    data: Any = DataLoader(Numbers(16), shuffle=True, num_workers=workers)
    loader = prepare_data_loader(data, global_batch=GlobalBatch(8, 2))
    assert [len(batch) for batch in loader] == [2, 2, 2, 2]


class _NoSync(torch.nn.Linear):
    entered = 0

    def no_sync(self) -> Any:
        self.entered += 1
        return torch.no_grad()


def test_gradients_are_exchanged_in_the_last_batch_of_a_step(be_rank: BeRank) -> None:
    be_rank(0, 2)
    model, batch, syncs = _NoSync(1, 1), GlobalBatch(8), []
    loader = prepare_data_loader(DataLoader(Numbers(16), batch_size=2), global_batch=batch)
    for _ in loader:
        before = model.entered
        with batch.accumulating(model):
            syncs.append((model.entered == before, batch.completes_step, batch.micro_batches, batch.loss_scale))
    assert syncs == [(False, False, 2, 0.5), (True, True, 2, 0.5)] * 2 and len(loader) == 4


class _Sharded(torch.nn.Linear):
    said: bool | None = None

    def set_requires_gradient_sync(self, value: bool) -> None:
        self.said = value


def test_a_sharded_model_is_told(be_rank: BeRank) -> None:
    be_rank(0, 1)
    model, batch, said = _Sharded(1, 1), GlobalBatch(4, 2), []
    for _ in prepare_data_loader(DataLoader(Numbers(4)), global_batch=batch):
        with batch.accumulating(model):
            said.append(model.said)
    assert said == [False, True]


class _Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dataset": _Stream()}, "IterableDataset"),
        ({"batch_size": None}, "batch sampler of your own"),
        ({"batch_size": 5}, "max_micro=2.*batch_size=5"),
        ({"sampler": DistributedSampler(Numbers(4), 1, 0)}, "distributed sampler"),
        ({"batch_sampler": type("Own", (BatchSampler,), {})(range(4), 2, False)}, "batch sampler of your own"),
    ],
)
def test_loaders_whose_batches_are_not_ours_are_refused(be_rank: BeRank, options: dict[str, Any], words: str) -> None:
    be_rank(0, 1)
    with pytest.raises(ValueError, match=words):
        prepare_data_loader(DataLoader(**{"dataset": Numbers(4), **options}), global_batch=GlobalBatch(4, 2))


def test_bad_sizes_are_refused() -> None:
    for bad in ((0, None), (2.5, None), (8, 0), (True, None)):
        with pytest.raises(ValueError, match=r"GlobalBatch\((size|max_micro)="):
            GlobalBatch(*bad)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="global_batch=this"):
        _ = GlobalBatch(4).loss_scale


def test_all_the_data_on_each_rank_is_refused(be_rank: BeRank) -> None:
    be_rank(0, 1)
    with pytest.raises(ValueError, match="add_dist_sampler"):
        prepare_data_loader(DataLoader(Numbers(4)), add_dist_sampler=False, global_batch=GlobalBatch(4))
