"""Lightning that counts other ranks than the job has is told, whatever it counts."""

from __future__ import annotations

import types
import warnings

import pytest

from trainjob.session import unchanged
from trainjob_api import contract


def told(counted: int, rank: str, monkeypatch: pytest.MonkeyPatch, *, world: str = "4") -> list[str]:
    """What `fit` of a Trainer warns of, in that rank."""

    class Trainer:
        world_size = counted

        def fit(self, model: str) -> str:
            return f"fitted {model}"

    library = types.ModuleType("lightning.pytorch.trainer.trainer")
    library.Trainer = Trainer  # type: ignore[attr-defined]
    unchanged._lightning(library)
    monkeypatch.setenv(contract.ENV_WORLD_SIZE, world)
    monkeypatch.setenv(contract.ENV_RANK, rank)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert Trainer().fit("net") == "fitted net"
    return [str(one.message) for one in caught]


@pytest.mark.parametrize(
    ("counted", "words"),
    [
        (1, "has 4 ranks, and Lightning counts 1, so each trains a model of its own"),
        (2, "has 4 ranks, and Lightning counts 2, which never meet"),
        (8, "has 4 ranks, and Lightning counts 8, which never meet"),
    ],
)
def test_another_number_is_told_once(counted: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = told(counted, "1", monkeypatch)
    assert words in text and "TrainJobDDPStrategy" in text
    assert told(counted, "0", monkeypatch) == told(counted, "2", monkeypatch) == []


def test_the_jobs_own_number_is_nothing_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(4, "1", monkeypatch) == []
    assert told(1, "0", monkeypatch, world="1") == []
