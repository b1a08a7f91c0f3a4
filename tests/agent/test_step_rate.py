"""How long a step takes, as rank 0's agent tells it."""

from __future__ import annotations

import pytest

from trainjob.agent.barriers.progress import Progress
from trainjob.agent.pace.steps import EVERY_S, WINDOW_S, Steps


def steps(*seen: tuple[float, int | None]) -> Steps:
    made = Steps()
    for at, step in seen:
        made.seen(at, step)
    return made


def test_it_is_told_from_the_second_step_on() -> None:
    assert steps().seconds_per_step is None
    assert steps((10.0, 1)).seconds_per_step is None
    assert steps((10.0, 1), (12.0, 1), (13.0, None)).seconds_per_step is None, "the same step, and none"
    assert steps((10.0, 1), (12.0, 5)).seconds_per_step == pytest.approx(0.5)


def test_the_newest_step_counts_though_only_a_moment_in_a_second_is_kept() -> None:
    seen = [(10.0 + at / 1000, at) for at in range(100_000)]
    made = steps(*seen)
    assert made.seconds_per_step == pytest.approx(0.001)
    assert len(made._kept) <= WINDOW_S / EVERY_S + 2


def test_a_change_of_speed_shows_within_a_minute() -> None:
    fast = [(float(at), at) for at in range(60)]
    slow = [(60.0 + 10 * at, 59 + at) for at in range(1, 9)]
    assert steps(*fast, *slow).seconds_per_step == pytest.approx(10.0)


def test_a_step_or_clock_that_goes_back_starts_afresh() -> None:
    assert steps((10.0, 50), (20.0, 100), (21.0, 3)).seconds_per_step is None
    assert steps((10.0, 50), (5.0, 51)).seconds_per_step is None
    assert steps((10.0, 50), (5.0, 51), (6.0, 53)).seconds_per_step == pytest.approx(0.5)


def test_progress_is_told_with_it() -> None:
    progress = Progress(4)
    progress.reported(1, {"step": 5}, 10.0)
    assert progress.report["seconds_per_step"] is None
    progress.seen({}, {"step": 9}, 12.0)
    assert progress.report["seconds_per_step"] == pytest.approx(0.5)
