from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch

import trainjob
from trainjob.session import rank_state
from trainjob.torch import reproducible

BeRank = Callable[[int, int], None]


def _draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_all_ranks_begin_with_the_same_seed(be_rank: BeRank) -> None:
    drawn = []
    for rank in (0, 1):
        be_rank(rank, 2)
        trainjob.enable_reproducibility(5)
        drawn.append(_draw())
    trainjob.enable_reproducibility(6)
    assert drawn[0] == drawn[1] != _draw()
    assert torch.are_deterministic_algorithms_enabled() and os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@pytest.mark.parametrize("alike", [False, True])
def test_ranks_draw_their_own_numbers_once_the_model_is_prepared(be_rank: BeRank, alike: bool) -> None:
    """Set-up agrees; dropout masks and random batches do not, unless that is asked for. Rank 0 draws as one alone."""
    drawn = []
    for rank, world_size in ((0, 1), (0, 2), (1, 2), (1, 2)):
        be_rank(rank, world_size)
        trainjob.enable_reproducibility(5, same_on_all_ranks=alike)
        before = _draw()
        trainjob.prepare_model(torch.nn.Linear(2, 2), parallel_strategy=None)
        trainjob.prepare_model(torch.nn.Linear(2, 2), parallel_strategy=None)
        drawn.append((before, _draw()))
    alone, first, second, again = drawn
    assert alone == first and second == again and first[0] == second[0]
    assert (first[1] == second[1]) is alike
    assert alike or all(mine != theirs for mine, theirs in zip(first[1], second[1], strict=True))


def test_states_that_came_back_are_not_seeded_over(be_rank: BeRank) -> None:
    be_rank(1, 2)
    trainjob.enable_reproducibility()
    reproducible.go_apart()
    _draw()
    state = rank_state._providers["random"].get()
    expected = _draw()
    be_rank(1, 2)
    trainjob.enable_reproducibility()
    rank_state._providers["random"].set(rank_state.Saved(state, 1, 2))
    trainjob.prepare_model(torch.nn.Linear(2, 2), parallel_strategy=None)
    torch.set_rng_state(state["torch"])  # what building the model drew
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    reproducible.go_apart()
    assert _draw() == expected


def test_outside_a_worker_it_says_how_to_run(clean: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINJOB_AGENT_SOCKET", raising=False)
    with pytest.raises(trainjob.NotInWorkerError, match="tj run"):
        trainjob.enable_reproducibility()


def test_a_seed_is_a_whole_number(be_rank: BeRank) -> None:
    be_rank(0, 1)
    with pytest.raises(ValueError, match="seed=-1"):
        trainjob.enable_reproducibility(-1)


def _resume(state: object, world_size: int = 1) -> None:
    rank_state._providers["random"].set(rank_state.Saved(state, 0, world_size))


def test_states_come_back_at_once_and_again_at_the_first_batch(be_rank: BeRank) -> None:
    be_rank(0, 1)
    trainjob.enable_reproducibility()
    _draw()
    state = rank_state._providers["random"].get()
    expected = _draw()
    be_rank(0, 1)
    trainjob.enable_reproducibility()
    _resume(state)
    assert _draw() == expected
    loader = trainjob.prepare_data_loader(torch.utils.data.DataLoader([1.0, 2.0, 3.0]))  # type: ignore[arg-type]
    next(iter(loader))
    assert _draw() == expected, "a look at the data leaves the states to be set again"
    _draw()
    drawn = [_draw() for _ in loader]
    assert drawn[0] == expected and drawn[1] != expected
    for _ in loader:
        assert _draw() != expected


def _saved(be_rank: BeRank, size: int, alike: bool = False) -> list[dict[str, object]]:
    """What each rank of so many keeps after it drew from a stream of its own."""
    states = []
    for rank in range(size):
        be_rank(rank, size)
        trainjob.enable_reproducibility(5, same_on_all_ranks=alike)
        reproducible.go_apart()
        _draw()
        states.append(rank_state._providers["random"].get())
    return states


def _gone_on(be_rank: BeRank, states: list[dict[str, object]], size: int, alike: bool = False) -> list[object]:
    """What each rank of so many draws next."""
    drawn: list[object] = []
    for rank in range(size):
        be_rank(rank, size)
        trainjob.enable_reproducibility(5, same_on_all_ranks=alike)
        owner = rank if rank < len(states) else 0
        saved = rank_state.Saved(states[owner], owner, len(states), states[0] if size != len(states) else None)
        rank_state._providers["random"].set(saved)
        reproducible.go_apart()
        drawn.append(_draw())
    return drawn


@pytest.mark.filterwarnings("ignore:The checkpoint was taken with")
def test_at_another_size_ranks_go_on_in_their_streams_and_new_ones_begin_fresh_ones(be_rank: BeRank) -> None:
    two = _saved(be_rank, 2)
    same = _gone_on(be_rank, two, 2)
    four = _gone_on(be_rank, two, 4)
    assert four[:2] == same and len(set(four)) == 4 and _gone_on(be_rank, two, 4) == four
    assert _gone_on(be_rank, two, 1) == same[:1]
    at_first = []
    for rank in range(4):
        be_rank(rank, 4)
        trainjob.enable_reproducibility(5)
        reproducible.go_apart()
        at_first.append(_draw())
    assert not set(four) & set(at_first), "no rank draws what it drew at the beginning of the training"


@pytest.mark.filterwarnings("ignore:The checkpoint was taken with")
def test_what_all_ranks_draw_alike_they_draw_alike_at_another_size(be_rank: BeRank) -> None:
    two = _saved(be_rank, 2, alike=True)
    assert set(_gone_on(be_rank, two, 3, alike=True)) == set(_gone_on(be_rank, two, 2, alike=True))


def test_another_number_of_ranks_is_said_once(be_rank: BeRank) -> None:
    states = _saved(be_rank, 4)
    be_rank(0, 1)
    trainjob.enable_reproducibility()
    with pytest.warns(UserWarning, match="taken with 4 ranks and the job has 1 now.*bit for bit"):
        _resume(states[0], world_size=4)
    be_rank(0, 2)
    trainjob.enable_reproducibility()
    with pytest.warns(UserWarning, match="taken with 1 rank and the job has 2 now"):
        _resume(states[0], world_size=1)
    be_rank(1, 3)
    trainjob.enable_reproducibility()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rank_state._providers["random"].set(rank_state.Saved(states[1], 1, 4, states[0]))


def test_drawing_from_a_seed_leaves_the_generators_alone(be_rank: BeRank) -> None:
    be_rank(0, 1)
    trainjob.enable_reproducibility()
    kept = random.getstate(), torch.get_rng_state().tolist()
    with reproducible.drawing_from(7):
        inside = _draw()
    assert (random.getstate(), torch.get_rng_state().tolist()) == kept
    with reproducible.drawing_from(7):
        assert _draw() == inside
