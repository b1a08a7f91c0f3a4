"""How fast training goes, and when it will be done."""

from __future__ import annotations

import pytest

from trainjob.screen.pace import WINDOW_S, Pace


def pace(*samples: tuple[float, int], attempt: int = 1) -> Pace:
    found = Pace().seen(attempt, 0.0, None)
    for at, step in samples:
        found = found.seen(attempt, at, step)
    return found


def test_one_sample_is_no_pace() -> None:
    assert pace((10.0, 5)).seconds_per_step is None
    assert pace((10.0, 5)).seconds_left(100, 11.0) is None


def test_seconds_per_step_come_from_the_whole_window() -> None:
    assert pace((10.0, 0), (11.0, 50), (14.0, 100)).seconds_per_step == pytest.approx(0.04)


def test_time_since_the_last_sample_counts_against_what_is_left() -> None:
    assert pace((10.0, 0), (12.0, 10)).seconds_left(20, 12.5) == pytest.approx(1.5)
    assert pace((10.0, 0), (12.0, 10)).seconds_left(20, 99.0) == 0
    assert pace((10.0, 0), (12.0, 10)).seconds_left(None, 12.0) is None


def test_a_restart_is_not_a_slow_step() -> None:
    after = pace((10.0, 0), (12.0, 10)).seen(2, 12.5, 10).seen(2, 13.0, 10)
    assert after.seconds_per_step is None
    assert after.seen(2, 60.0, 12).seconds_per_step is None
    assert after.seen(2, 60.0, 12).seen(2, 61.0, 22).seconds_per_step == pytest.approx(0.1)


def test_a_restart_that_goes_back_to_a_checkpoint_is_none_either() -> None:
    after = pace((10.0, 0), (12.0, 10)).seen(2, 12.5, 10).seen(2, 13.0, 8)
    assert after.seen(2, 60.0, 12).seen(2, 61.0, 22).seconds_per_step == pytest.approx(0.1)


def test_the_same_step_again_changes_nothing() -> None:
    before = pace((10.0, 0), (12.0, 10))
    assert before.seen(1, 13.0, 10) is before
    assert before.seen(1, 13.0, None) is before


def test_a_step_or_clock_that_goes_back_starts_afresh() -> None:
    for at, step in ((13.0, 4), (11.0, 14)):
        back = pace((10.0, 0), (12.0, 10), (at, step))
        assert (back.samples, back.behind) == ((), step)


def test_old_speed_leaves_the_window() -> None:
    slow_then_fast = pace((0.0, 0), (50.0, 10), (55.0, 20), (60.0 + WINDOW_S, 1000))
    assert slow_then_fast.samples[0][0] > 0


def test_a_gap_longer_than_the_window_keeps_the_last_sample() -> None:
    assert pace((0.0, 0), (10 * WINDOW_S, 10)).seconds_per_step == pytest.approx(WINDOW_S)
