"""A loop that skips by itself what the loader has left out already."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from trainjob.session import calls, rank_state
from trainjob.torch.loader import prepare_data_loader
from trainjob.torch.own_skip import OwnSkip, SkippedTwiceError

BeRank = Callable[[int, int], None]
NAME = "data-loader-0"


def _loader(count: int, **options: bool) -> DataLoader[tuple[torch.Tensor, ...]]:
    return prepare_data_loader(DataLoader(TensorDataset(torch.arange(float(count)))), **options)


def _report() -> object:
    return rank_state._providers[NAME].get()


def _break_off(at: int, count: int, every: int = 1) -> object:
    """Train up to that batch, reporting every so many; the state of the last report."""
    state: object = None
    for i, _ in enumerate(_loader(count)):
        if i % every == every - 1:
            state = _report()
        if i == at:
            return state
    raise AssertionError


@pytest.mark.parametrize(("at", "count"), [(5, 12), (5, 30), (8, 12)])
@pytest.mark.parametrize("off", [0, 1])
def test_a_loop_that_skips_again_is_stopped(be_rank: BeRank, at: int, count: int, off: int) -> None:
    be_rank(0, 1)
    state = _break_off(at, count)
    be_rank(0, 1)
    loader = _loader(count)
    rank_state._providers[NAME].set(rank_state.Saved(state, 0, 1))
    with pytest.raises(SkippedTwiceError, match=r"left out the first \d+ batches.*resume=False"):
        for i, _ in enumerate(loader):
            if i < at + 1 - off:
                continue
            _report()


def test_a_loop_that_does_not_goes_on_and_says_where(be_rank: BeRank, capsys: pytest.CaptureFixture[str]) -> None:
    be_rank(0, 1)
    state = _break_off(5, 12)
    be_rank(0, 1)
    loader = _loader(12)
    rank_state._providers[NAME].set(rank_state.Saved(state, 0, 1))
    seen = []
    for (batch,) in loader:
        seen.append(batch.item())
        _report()
    assert seen == [6, 7, 8, 9, 10, 11]
    assert capsys.readouterr().err == (
        "prepare_data_loader: epoch 0 continues after batch 6, sample 6 of 12, where the checkpoint was taken\n"
    )
    assert len(list(loader)) == 12


def test_an_optimizers_step_is_work(be_rank: BeRank) -> None:
    """Reports are seldom; the steps between them show that the loop trains."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    be_rank(0, 1)
    state: object = None
    for i, _ in enumerate(_loader(20)):
        optimizer.step()
        if i == 9:
            state = _report()
            break
    for first in (0, 10):
        be_rank(0, 1)
        loader = _loader(20)
        rank_state._providers[NAME].set(rank_state.Saved(state, 0, 1))
        with pytest.raises(SkippedTwiceError) if first else contextlib.nullcontext():
            for i, _ in enumerate(loader):
                if i >= first:
                    optimizer.step()


def test_a_loop_that_works_with_every_few_batches_is_left_alone(be_rank: BeRank) -> None:
    """Gradient accumulation: batches without a step are usual."""
    be_rank(0, 1)
    state = _break_off(11, 30, every=4)
    be_rank(0, 1)
    loader = _loader(30)
    rank_state._providers[NAME].set(rank_state.Saved(state, 0, 1))
    for i, _ in enumerate(loader):
        if i % 4 == 3:
            _report()


@pytest.mark.parametrize("off", [0, 1])
def test_a_loop_that_skips_again_and_works_with_every_few_batches_is_stopped(be_rank: BeRank, off: int) -> None:
    """Gradient accumulation: after the skip the first step takes as many batches as each step does."""
    be_rank(0, 1)
    state = _break_off(11, 40, every=4)
    be_rank(0, 1)
    loader = _loader(40)
    rank_state._providers[NAME].set(rank_state.Saved(state, 0, 1))
    with pytest.raises(SkippedTwiceError, match=r"left out the first 12 batches.* took 12 more without"):
        for i, _ in enumerate(loader):
            if i < 12:
                continue
            if (i + off) % 4 == 3:
                _report()


def test_a_step_that_a_gradient_scaler_leaves_out_is_no_skip(be_rank: BeRank) -> None:
    be_rank(0, 1)
    state = _break_off(23, 60, every=4)
    be_rank(0, 1)
    loader = _loader(60)
    rank_state._providers[NAME].set(rank_state.Saved(state, 0, 1))
    for i, _ in enumerate(loader):
        if i % 4 == 3 and i > 7:
            _report()


def test_without_resuming_every_pass_is_whole(be_rank: BeRank) -> None:
    be_rank(0, 1)
    loader = _loader(12, resume=False)
    assert NAME not in rank_state._providers
    assert len(list(loader)) == 12


@pytest.mark.parametrize("begins_with", [3, 4])
def test_a_loop_that_resumes_with_the_wrong_epoch_is_told(
    be_rank: BeRank, monkeypatch: pytest.MonkeyPatch, begins_with: int
) -> None:
    """`first = saved["epoch"] + 1` is right for a report() after the loop over the data, not inside it."""
    be_rank(0, 1)
    monkeypatch.setattr(calls._position, "epoch", 3)
    state = _break_off(5, 12)
    be_rank(0, 1)
    loader = _loader(12)
    rank_state._providers[NAME].set(rank_state.Saved(state, 0, 1))
    monkeypatch.setattr(calls._position, "epoch", begins_with)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in loader:
            _report()
        monkeypatch.setattr(calls._position, "epoch", begins_with + 1)
        for _ in loader:
            _report()
    assert [str(each.message)[:90] for each in said] == (
        []
        if begins_with == 3
        else ["report(epoch=4) in the rest of an epoch that was 3 when the checkpoint was taken: the loop"]
    )


def test_one_batch_without_work_is_no_sign() -> None:
    """A gradient scaler leaves a step out."""
    watch = OwnSkip()
    watch.restore(0)
    watch.begins(0, 1)
    for works in (False, True, True):
        watch.handed_out()
        if works:
            watch.worked()
        watch.went_by()
    watch.ended()
