"""How fast training goes, and when it will be done."""

from __future__ import annotations

import pytest

from support import jobs
from support.jobs import NOW, attempt, condition, job, progress
from trainjob.screen.pace import QUIET_S, QUIET_STEPS, WINDOW_S, Pace, last_step
from trainjob_api.v1alpha1 import TrainJobStatus


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


def running(reported: float | None = 0, **more: object) -> TrainJobStatus:
    told = {} if reported is None else progress(secondsPerStep=10.0, lastReportTime=jobs.at(reported))
    return job({"attempt": attempt(2, runningAt=jobs.at(2)), "progress": {**told, **more}}).status


def test_who_looks_once_has_the_pace_of_the_agent() -> None:
    pace = Pace.told(running(4))
    assert pace.seconds_per_step == pytest.approx(10.0)
    assert pace.seconds_left(450, NOW + 4) == pytest.approx(2700.0)
    assert Pace.told(running(-5)).seconds_per_step is None, "of the attempt before"
    assert Pace.told(running(4, step=None)).seconds_per_step is None
    assert Pace.told(TrainJobStatus()).seconds_per_step is None


def test_the_last_step_has_its_age() -> None:
    status = running(4)
    assert last_step(status, Pace(), NOW + 7) == "last step 3s ago"
    assert last_step(running(4, step=None), Pace(), NOW + 7) == "last report 3s ago"
    assert last_step(running(-5), Pace(), NOW + 7) == "no step in attempt 2 yet, for 5s"
    assert last_step(running(None), Pace(), NOW + 7) == "no step in attempt 2 yet, for 5s"


def test_a_step_that_does_not_come_is_told_by_the_jobs_own_pace() -> None:
    status, slow = running(4), Pace.told(running(4))
    assert last_step(status, Pace(), NOW + 4 + QUIET_S) == "last step 30s ago"
    assert last_step(status, Pace(), NOW + 44).startswith("no step for 40s, since ")
    assert last_step(status, slow, NOW + 44) == "last step 40s ago", "steps of ten seconds"
    assert last_step(status, slow, NOW + 5 + 10 * QUIET_STEPS).startswith("no step for 51s, since ")


def test_nothing_is_said_where_nothing_trains() -> None:
    ended = job({"attempt": attempt(2, state="Ended"), "progress": progress()}).status
    done = job(
        {"attempt": attempt(2), "progress": progress(), "conditions": [condition("Complete", "True", "x")]}
    ).status
    assert [last_step(each, Pace(), NOW + 99) for each in (ended, done, TrainJobStatus())] == ["", "", ""]
