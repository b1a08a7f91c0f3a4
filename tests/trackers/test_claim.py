"""Whose turn it is: each rule, for all that it may be asked."""

from __future__ import annotations

import itertools

import pytest

from trainjob.trackers import claim
from trainjob.trackers.claim import Begin, Claim, Mark, Over, State, Take, Wait

LEFT = State(began=True, left=True, mark=Mark(1, 1, 7))
FEEDS = State(began=True, left=False, mark=Mark(1, 2, 3))
GAVE_UP = State(began=False, left=True, mark=None)


PLACES = tuple(itertools.product((1, 2), (1, 2)))


def held(number: int, run: int, attempt: int, process: str = "other") -> Claim:
    return Claim(number=number, run=run, attempt=attempt, process=process)


def test_the_first_takes_turn_one_and_who_has_taken_one_unheard_has_that() -> None:
    assert claim.to_take(1, 1, "me", None) == Take(1)
    assert claim.to_take(1, 1, "me", held(4, 1, 1, "me")) == Take(4)


@pytest.mark.parametrize("mine", PLACES)
@pytest.mark.parametrize("theirs", PLACES)
def test_an_older_run_or_attempt_never_takes_a_turn_and_of_two_alike_the_last_one_has_it(
    mine: tuple[int, int], theirs: tuple[int, int]
) -> None:
    found = claim.to_take(*mine, "me", held(3, *theirs))
    if theirs > mine:
        assert found == Over(f"other feeds it for run {theirs[0]}, attempt {theirs[1]}")
    else:
        assert found == Take(4)


@pytest.mark.parametrize("unchanged_s", (0.0, claim.LEASE_S - 0.1, claim.LEASE_S))
@pytest.mark.parametrize("waited_s", (0.0, claim.WAIT_S - 0.1, claim.WAIT_S))
@pytest.mark.parametrize("newest", (3, 4))
@pytest.mark.parametrize("before", ((), (LEFT,), (FEEDS,), (None,), (GAVE_UP, LEFT), (None, LEFT), (GAVE_UP, FEEDS)))
def test_who_waits_begins_once_all_before_have_left_are_silent_or_have_had_their_time(
    before: tuple[State | None, ...], newest: int, unchanged_s: float, waited_s: float
) -> None:
    found = claim.to_begin(3, newest, before, unchanged_s, waited_s)
    last = before[-1].mark if before and before[-1] is not None else None
    if newest > 3:
        assert isinstance(found, Over)
    elif before in ((), (LEFT,), (GAVE_UP, LEFT)) or unchanged_s >= claim.LEASE_S or waited_s >= claim.WAIT_S:
        assert isinstance(found, Begin) and found.mark == last
    else:
        assert isinstance(found, Wait)


def test_who_feeds_stops_for_a_later_turn_alone() -> None:
    assert claim.still_mine(3, 3) is None and claim.still_mine(3, 2) is None and claim.still_mine(3, 0) is None
    assert isinstance(claim.still_mine(3, 4), Over)


def test_those_before_are_looked_through_up_to_the_last_that_has_fed() -> None:
    states = {1: FEEDS, 2: LEFT, 3: GAVE_UP, 4: None}
    assert claim.those_before(5, (1, 2, 3, 4, 5, 6), states.__getitem__) == [None, GAVE_UP, LEFT]
    assert claim.those_before(1, (1, 2), states.__getitem__) == []


def test_of_the_same_run_what_is_recorded_is_not_written_again_and_of_another_all_is() -> None:
    mark = Mark(2, 2, 5)
    assert claim.is_recorded(mark, Mark(2, 2, 5)) and claim.is_recorded(mark, Mark(2, 1, 9))
    assert not claim.is_recorded(mark, Mark(2, 2, 6)) and not claim.is_recorded(mark, Mark(2, 3, 1))
    assert not claim.is_recorded(mark, Mark(1, 9, 1)) and not claim.is_recorded(mark, Mark(3, 1, 1))
    assert not claim.is_recorded(None, Mark(1, 1, 1))


@pytest.mark.parametrize(
    ("row", "wanted"),
    (
        (Mark(2, 1, 5), False),  # recorded
        (Mark(2, 1, 6), True),
        (Mark(2, 2, 4), True),  # done again by an attempt of which nothing was recorded
        (Mark(1, 3, 6), False),  # a run before that: recorded
        (Mark(2, 1, 8), False),  # the first of the later run itself
        (Mark(2, 1, 9), False),
    ),
)
def test_what_the_run_before_had_no_time_for_is_missing(row: Mark, wanted: bool) -> None:
    assert claim.is_missing(Mark(2, 1, 5), row, Mark(3, 1, 8), 1) is wanted


def test_nothing_is_missing_of_another_training_or_of_the_same_run() -> None:
    assert not claim.has_gap(Mark(2, 1, 5), Mark(3, 1, 8), 3), "another training began with run 3"
    assert not claim.has_gap(Mark(3, 1, 5), Mark(3, 2, 8), 3)
    assert claim.has_gap(Mark(3, 1, 5), Mark(4, 1, 8), 3)
    assert not claim.is_missing(Mark(2, 1, 5), Mark(2, 1, 6), Mark(3, 1, 8), 3)


def test_a_mark_never_goes_back() -> None:
    assert claim.later(None, Mark(1, 1, 1)) == Mark(1, 1, 1)
    assert claim.later(Mark(1, 2, 1), Mark(1, 1, 9)) == Mark(1, 2, 1)
    assert claim.later(Mark(1, 2, 1), Mark(2, 1, 1)) == Mark(2, 1, 1)


def test_the_newest_turns_are_kept() -> None:
    assert claim.to_forget(10, range(1, 12)) == [1, 2]
    assert claim.to_forget(8, range(1, 9)) == []


def test_one_that_lives_hears_of_another_before_it_counts_as_dead_and_nothing_costs_more_than_ten_seconds() -> None:
    assert max(claim.LOOK_S, claim.BUCKET_LOOK_S) * 2 <= claim.LEASE_S < claim.WAIT_S <= 10.0


@pytest.mark.parametrize("mark", (None, Mark(1, 2, 3)))
def test_what_is_stored_is_read_back(mark: Mark | None) -> None:
    for began, left in itertools.product((True, False), repeat=2):
        state = State(began=began, left=left, mark=mark)
        assert claim.load_state(claim.dump_state(state)) == state
    mine = held(2, 3, 4, "me")
    assert claim.load_claim(2, claim.dump_claim(mine)) == mine


@pytest.mark.parametrize("data", (None, b"", b"\xff", b"[]", b"{}", b'{"began": 1}', b'{"run": "x"}', b'{"run": null}'))
def test_what_cannot_be_read_is_in_nobodys_way(data: bytes | None) -> None:
    assert claim.load_state(data) is None
    assert claim.to_take(1, 1, "me", claim.load_claim(4, data)) == Take(5)


def test_a_mark_that_is_no_mark_is_not_heard() -> None:
    assert claim.load_state(b'{"began": true, "left": true, "recorded": [1, 2]}') is None
    assert claim.load_state(b'{"began": true, "left": true, "recorded": 5}') is None
