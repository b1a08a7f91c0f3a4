"""Ray's callbacks of libraries that boost trees: which rounds bring a booster, and what is reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.fake_agent import FakeAgent
from trainjob.compat.ray_boosters import Reports
from trainjob.session import calls

StartAgent = Callable[..., FakeAgent]
EVALUATED = {"train": {"loss": 0.5, "error": 0.25}}


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, start_agent: StartAgent) -> list[tuple[dict[str, Any], list[str]]]:
    """Metrics, and what is in the checkpoint."""
    start_agent()
    found: list[tuple[dict[str, Any], list[str]]] = []

    def report(metrics: dict[str, Any], checkpoint: Any = None, **_: Any) -> None:
        files = [] if checkpoint is None else sorted(path.name for path in Path(checkpoint.path).iterdir())
        found.append((metrics, files))

    monkeypatch.setattr(calls, "report", report)
    return found


def save(path: str) -> None:
    Path(path).write_text("trees")


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (None, {"train-loss": 0.5, "train-error": 0.25}),
        ([], {"train-loss": 0.5, "train-error": 0.25}),
        ("train-loss", {"train-loss": 0.5}),
        (["train-error"], {"train-error": 0.25}),
        ({"loss": "train-loss"}, {"loss": 0.5}),
    ],
)
def test_metrics_are_chosen_and_then_processed(said: list[Any], metrics: Any, expected: dict[str, float]) -> None:
    Reports(metrics, "model", 0, True, None).after_round(1, EVALUATED, save)
    Reports(metrics, "model", 0, True, lambda them: {"n": len(them), **them}).after_round(1, EVALUATED, save)
    assert said == [(expected, []), ({"n": len(expected), **expected}, [])]


@pytest.mark.parametrize(
    ("frequency", "at_end", "expected"),
    [
        (0, True, [0, 0, 0, 0, 0, 1]),
        (2, True, [0, 1, 0, 1, 0, 1]),
        (2, False, [0, 1, 0, 1, 0]),
        (5, True, [0, 0, 0, 0, 1]),
    ],
)
def test_who_learns_of_the_end_afterwards_reports_the_last_round_again(
    said: list[Any], frequency: int, at_end: bool, expected: list[int]
) -> None:
    reports = Reports(None, "model", frequency, at_end, None)
    for number in range(1, 6):
        reports.after_round(number, EVALUATED, save)
    reports.after_training(5, save)
    assert [len(files) for _, files in said] == expected


def test_who_knows_the_last_round_reports_it_once(said: list[Any]) -> None:
    reports = Reports(None, "model", 0, True, None)
    for number in range(1, 4):
        reports.after_round(number, EVALUATED, save, is_last=number == 3)
    assert [files for _, files in said] == [[], [], ["model"]]
