"""When a job that took steps hangs, by virtual time: its own pace is the measure, and nothing that only looks so is."""

from __future__ import annotations

import random

import pytest

from trainjob.agent.hangs.silence import (
    ENOUGH,
    FLOOR_S,
    LATE_S,
    LONGEST_TIMES,
    UNPACED_LIMIT_S,
    USUAL_TIMES,
    Silence,
)


class Time:
    """Steps and looks, one look a second."""

    def __init__(self, after_s: float | None = None) -> None:
        self.now = 100.0
        self.rule = Silence(self.now)
        self.rule.after_s = after_s
        self.excused = 0.0
        self.hung_at: list[float] = []

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 1.0, end)
            if self.rule.look(self.now, self.excused):
                self.hung_at.append(self.now)

    def step(self, after: float = 0.0) -> None:
        self.wait(after)
        self.rule.step(self.now, self.excused)

    def pace(self, interval: float, steps: int = ENOUGH + 1) -> None:
        for _ in range(steps):
            self.step(after=interval)


def test_the_limit_is_the_floor_for_a_quick_job() -> None:
    time = Time()
    time.pace(0.1, 50)
    last = time.now
    time.wait(2 * FLOOR_S)
    assert time.hung_at and 0 < time.hung_at[0] - last - FLOOR_S <= 1


def test_the_limit_grows_with_the_usual_pause_and_with_the_longest() -> None:
    slow = Time()
    slow.pace(60)
    assert slow.rule.limit == USUAL_TIMES * 60
    each_epoch = Time()
    each_epoch.pace(1, 20)
    each_epoch.step(after=FLOOR_S - 1)
    assert each_epoch.rule.limit == LONGEST_TIMES * (FLOOR_S - 1)


def test_a_job_that_never_stepped_has_no_limit() -> None:
    """A start, the first step and what it compiles take as long as they take."""
    time = Time()
    time.wait(20 * FLOOR_S)
    assert time.hung_at == [] and time.rule.limit is None


@pytest.mark.parametrize("steps", range(1, ENOUGH + 1))
def test_before_five_pauses_a_long_silence_is_told_and_ends_nothing(steps: int) -> None:
    time = Time()
    time.pace(1, steps)
    last = time.now
    time.wait(2 * UNPACED_LIMIT_S)
    assert 0 < time.hung_at[0] - last - UNPACED_LIMIT_S <= 1 and not time.rule.is_sure


@pytest.mark.parametrize("steps", [1, 3])
def test_before_five_pauses_the_longest_step_counts_and_so_does_the_first(steps: int) -> None:
    time = Time()
    time.step(after=UNPACED_LIMIT_S)
    for _ in range(steps - 1):
        time.step(after=1.0)
    assert time.rule.limit == LONGEST_TIMES * UNPACED_LIMIT_S


@pytest.mark.parametrize("usual", [0.05, 5.0, 60.0, 600.0])
def test_thirty_minutes_and_more_of_ten_fold_jitter_are_no_hang(usual: float) -> None:
    chance, time = random.Random(17), Time()
    time.pace(usual)
    while time.now < 1900 + 50 * usual:
        time.step(after=usual * chance.choice((1, 1, 1, chance.uniform(0.1, 10))))
    assert time.hung_at == []


def test_a_given_limit_holds_from_the_first_step_on() -> None:
    time = Time(after_s=30)
    time.wait(500)
    assert time.hung_at == []
    time.step()
    last = time.now
    time.wait(40)
    assert 0 < time.hung_at[0] - last - 30 <= 1


def test_zero_is_never() -> None:
    time = Time(after_s=0)
    time.pace(1, 20)
    time.wait(9999)
    assert time.hung_at == []


def test_time_that_goes_into_checkpoints_does_not_count() -> None:
    time = Time(after_s=30)
    time.pace(1)
    for _ in range(200):
        time.excused += 1
        time.wait(1)
    assert time.hung_at == []
    time.wait(40)
    assert len(time.hung_at) >= 9
    learned = Time()
    learned.pace(1)
    learned.excused += 500
    learned.now += 500
    learned.step()
    assert learned.rule.limit == FLOOR_S, "a slow save is no pause between steps"


def test_another_call_of_all_ranks_is_a_sign_of_life_and_no_step() -> None:
    time = Time(after_s=30)
    time.step()
    for _ in range(20):
        time.wait(20)
        time.rule.sign(time.now)
    assert time.hung_at == []
    time.wait(35)
    assert time.hung_at


@pytest.mark.parametrize("gone_s", [LATE_S + 0.1, 60.0, 86400.0])
def test_a_frozen_agent_or_a_machine_that_slept_sees_no_hang(gone_s: float) -> None:
    """Nobody knows what was meanwhile: the ranks get their time anew."""
    time = Time(after_s=30)
    time.pace(1)
    time.wait(29)
    time.now += gone_s
    time.wait(29)
    assert time.hung_at == []
    time.wait(3)
    assert time.hung_at
