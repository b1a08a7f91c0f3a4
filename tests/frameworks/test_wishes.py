"""All ranks ask at the same step whether a planned change waits, and not at every step."""

from __future__ import annotations

import pytest

from trainjob.integrations import wishes
from trainjob.session import calls


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def asked_at(step_s: float, steps: int, monkeypatch: pytest.MonkeyPatch, said: int | None = None) -> list[int]:
    """The steps at which a rank asks; `said`: what rank 0 says to another rank."""
    clock = Clock()
    asked: list[int] = []

    def broadcast(mine: int) -> int:
        asked.append(round(clock.now / step_s))
        return mine if said is None else said

    monkeypatch.setattr(calls, "broadcast_from_rank_zero", broadcast)
    monkeypatch.setattr(calls, "checkpoint_requested", lambda: False)
    rank = wishes.Wishes(clock)
    for _ in range(steps):
        clock.now += step_s
        assert rank.heard() is False
    return asked


def test_it_asks_about_every_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked_at(0.1, 61, monkeypatch) == [1, 21, 41, 61]
    assert asked_at(5.0, 3, monkeypatch) == [1, 2, 3]


def test_rank_zeros_pace_counts_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked_at(5.0, 15, monkeypatch, said=7) == asked_at(0.001, 15, monkeypatch, said=7) == [1, 8, 15]


def test_a_wish_stands_until_it_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "broadcast_from_rank_zero", lambda mine: 10)
    monkeypatch.setattr(calls, "checkpoint_requested", lambda: True)
    rank = wishes.Wishes(Clock())
    assert [rank.heard() for _ in range(3)] == [True, True, True]
