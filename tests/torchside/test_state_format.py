"""A rank's state comes back as it was, also from older checkpoints, and reading one runs nobody's code."""

from __future__ import annotations

import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from trainjob.session import rank_state, state_format
from trainjob.session.errors import CheckpointError


def states() -> dict[str, Any]:
    """As prepare_data_loader() and enable_reproducibility() have them."""
    generators = {
        "python": random.getstate(),
        "numpy": numpy.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": None,
    }
    start = {"torch": torch.get_rng_state(), "own": torch.Generator().manual_seed(3).get_state()}
    loader = {"epoch": 3, "handed": 17, "open": True, "fresh": False, "start": start}
    return {"world_size": 2, "states": {"random": generators, "loader-0": loader}}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, numpy.ndarray):
        return one.dtype == other.dtype and bool((one == other).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) and type(one) is type(other)


@pytest.mark.parametrize("write", [state_format.dumps, lambda value: pickle.dumps(value, protocol=4)])
def test_states_come_back_as_they_were(write: Any) -> None:
    value = states()
    found = state_format.loads(write(value))
    assert same(value, found)
    torch.set_rng_state(found["states"]["random"]["torch"])
    random.setstate(found["states"]["random"]["python"])
    numpy.random.set_state(found["states"]["random"]["numpy"])


@pytest.mark.parametrize(
    "value",
    [{}, [], (), b"", "ü", 1 << 100, 0.1, {1: (2, [None, True])}, {"!": "bytes"}, torch.zeros(0), torch.ones(2, 3)],
    ids=repr,
)
def test_odd_values_come_back(value: Any) -> None:
    assert same(value, state_format.loads(state_format.dumps(value)))


class Exploit:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("inside", ["pickle", "storage", "object array"])
def test_reading_runs_nobodys_code(tmp_path: Path, inside: str) -> None:
    mark = tmp_path / "mark"
    exploit: Any = Exploit(mark)
    if inside == "storage":
        exploit = Storage(pickle.dumps(exploit))
    elif inside == "object array":
        exploit = numpy.array([exploit], dtype=object)
    path = tmp_path / "rank-0.state"
    path.write_bytes(pickle.dumps({"world_size": 1, "states": {"x": exploit}}, protocol=4))
    with pytest.raises(CheckpointError, match="state of rank 0"):
        rank_state.load(str(path))
    assert not mark.exists()


class Storage:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def __reduce__(self) -> Any:
        from torch.storage import _load_from_bytes

        return _load_from_bytes, (self.data,)


def test_a_torn_state_at_any_length_is_an_error_of_ours() -> None:
    whole = state_format.dumps(states())
    for length in [*range(40), len(whole) // 2, len(whole) - 1]:
        with pytest.raises(ValueError, match=r"."):
            state_format.loads(whole[:length])


def test_what_is_no_data_is_refused_when_it_is_saved() -> None:
    with pytest.raises(TypeError, match="Exploit"):
        state_format.dumps({"x": Exploit(Path("x"))})
