"""The course of an attempt: each rule once, and for all orders of inputs: it ends once, and nothing starts after."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainjob.agent.attempts.course import Ask, Course, EndRanks, EndUnstarted, GiveUp, Output, Start
from trainjob_api import contract


def running() -> Course:
    course = Course()
    course.begun(False)
    course.answered(False)
    course.forking()
    return course


def test_it_asks_is_answered_and_starts_once() -> None:
    course = Course()
    assert course.begun(False) == [Ask()]
    assert course.answered(False) == [Start()] and course.joined
    assert course.answered(False) == []


def test_what_was_forked_by_an_earlier_agent_is_lost() -> None:
    (end,) = Course().begun(True)
    assert isinstance(end, EndUnstarted) and end.kind == contract.END_LOST


def test_the_join_of_a_complete_run_starts_nothing() -> None:
    course = Course()
    course.begun(False)
    assert course.answered(True) == [] and course.complete and course.joined
    assert course.failed(contract.END_INTERNAL, "late") == []


def test_a_failure_before_the_forks_is_told_of_ranks_that_never_were() -> None:
    course = Course()
    course.begun(False)
    assert course.failed("storage", "no") == [GiveUp(), EndUnstarted("storage", "no")]
    assert course.failed("storage", "again") == [] and not course.unused


def test_a_failure_after_the_forks_ends_the_ranks_once() -> None:
    course = running()
    assert course.failed("damaged", "why") == [EndRanks("damaged", "why")]
    assert course.failed("internal", "later") == []


def test_stopped_before_a_fork_it_may_begin_anew_and_never_after() -> None:
    course = Course()
    course.begun(False)
    assert course.stopped() == [GiveUp()] and course.unused
    after = running()
    assert after.stopped() == [] and not after.unused


def test_ranks_are_forked_in_no_other_phase_than_starting() -> None:
    course = Course()
    course.begun(False)
    with pytest.raises(RuntimeError):
        course.forking()


INPUTS = st.sampled_from(["begun", "lost", "answered", "complete", "forking", "failed", "stopped", "completed"])


@given(st.lists(INPUTS, max_size=12))
def test_in_any_order_it_ends_once_and_starts_nothing_after(inputs: list[str]) -> None:
    course, out = Course(), list[Output]()
    for name in inputs:
        if name == "forking":
            if course.phase == "starting":
                course.forking()
            continue
        done = {
            "begun": lambda: course.begun(False),
            "lost": lambda: course.begun(True),
            "answered": lambda: course.answered(False),
            "complete": lambda: course.answered(True),
            "failed": lambda: course.failed("internal", "why"),
            "stopped": course.stopped,
            "completed": course.completed,
        }[name]()
        out += done or []
    ends = [o for o in out if isinstance(o, (EndUnstarted, EndRanks))]
    starts = [o for o in out if isinstance(o, (Ask, Start))]
    assert len(ends) <= 1 and [type(o) for o in starts] in ([], [Ask], [Ask, Start])
    if ends and starts:
        assert out.index(starts[-1]) < out.index(ends[0])
    assert not (course.unused and ends)
