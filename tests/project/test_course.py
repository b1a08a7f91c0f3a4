"""`make cluster` says which step it is at, that it still works, and what each step took."""

from __future__ import annotations

import itertools
import threading

import pytest

from cluster.course import Course, took
from support.patience import HANG_S


def test_each_step_is_told_with_its_place_and_its_time() -> None:
    said: list[str] = []
    course = Course(("the engine", "the nodes"), tell=said.append, now=itertools.count(0, 40).__next__)
    with course.step():
        pass
    with course.step():
        pass
    assert said == [
        "step 1 of 2: the engine (40 s so far)",
        "step 1 of 2: done in 40 s",
        "step 2 of 2: the nodes (2 min 0 s so far)",
        "step 2 of 2: done in 40 s",
    ]


def test_a_step_that_lasts_says_so_until_it_ends() -> None:
    said: list[str] = []
    twice = threading.Event()

    def tell(text: str) -> None:
        said.append(text)
        if len(said) == 3:
            twice.set()

    with Course(("images",), tell=tell, now=lambda: 0.0, pulse_s=0.001).step():
        assert twice.wait(HANG_S)
    assert said[1] == said[2] == "step 1 of 1: still at it after 0 s"
    assert said[-1] == "step 1 of 1: done in 0 s"


def test_a_step_that_fails_is_not_said_to_be_done() -> None:
    said: list[str] = []
    with pytest.raises(ZeroDivisionError), Course(("images",), tell=said.append, now=lambda: 0.0).step():
        raise ZeroDivisionError
    assert said == ["step 1 of 1: images (0 s so far)"]


def test_times_are_said_in_minutes() -> None:
    assert [took(0.4), took(59.4), took(60), took(905)] == ["0 s", "59 s", "1 min 0 s", "15 min 5 s"]
