"""Turns on a storage: handing over, the dead, storages that are full, fail or hang. Time is the test's own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import s3
from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.store import Store
from trainjob.trackers import claim, turn
from trainjob.trackers.claim import Mark
from trainjob.trackers.turn import Limits, StorageSilent, Turn, TurnOver


class Time:
    """Passes while somebody pauses; `meanwhile` is called at each pause."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.meanwhile: Callable[[float], object] = lambda waited_s: None

    def limits(self) -> Limits:
        return Limits(clock=lambda: self.now, pause=self.pause, call_s=60.0)

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile(self.now - 1000.0)


class Faulty:
    """A store of which some calls fail, or hang until the test is over."""

    def __init__(self, store: Store) -> None:
        self._store, self.faults, self.calls = store, dict[str, Callable[[], object]](), 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)

        def call(*args: Any) -> Any:
            self.calls += 1
            self.faults.get(name, lambda: None)()
            return real(*args)

        return call


def full() -> None:
    raise StoreError(errors.FULL, "the file system is full")


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture(params=("path", "bucket"))
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "path":
        return open_store(str(tmp_path))
    s3.use(monkeypatch, s3.endpoint())
    return open_store(s3.fresh_uri())


@pytest.fixture
def faulty(tmp_path: Path) -> Faulty:
    return Faulty(open_store(str(tmp_path)))


@pytest.fixture
def held() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def made(store: Any, time: Time, said: list[str] | None = None) -> Turn:
    def say(text: str) -> None:
        if said is not None and text not in said:
            said.append(text)

    return Turn(store, "CSVLogger-x-0", say, time.limits())


def test_the_first_one_waits_for_nobody(store: Store, time: Time, said: list[str]) -> None:
    assert made(store, time, said).begin(1, 1) is None
    assert time.now == 1000.0 and said == []


def test_who_has_left_is_not_waited_for_and_the_next_goes_on_at_its_mark(
    store: Store, time: Time, said: list[str]
) -> None:
    first = made(store, time)
    first.begin(1, 1)
    first.confirm(Mark(1, 1, 5))
    first.leave()
    assert made(store, time, said).begin(2, 1) == Mark(1, 1, 5)
    assert time.now == 1000.0 and said == []


def test_one_that_lives_is_waited_for_until_it_has_written_its_batch_and_left(
    store: Store, time: Time, said: list[str]
) -> None:
    first, second = made(store, time), made(store, time, said)
    first.begin(1, 1)
    first.check()
    first.confirm(Mark(1, 1, 5))

    def meanwhile(waited_s: float) -> None:
        if waited_s == 2.0:
            first.confirm(Mark(1, 1, 9))  # the batch that was under way
            with pytest.raises(TurnOver, match="another process feeds it"):
                first.check()
            first.leave()

    time.meanwhile = meanwhile
    assert second.begin(2, 1) == Mark(1, 1, 9)
    assert time.now == 1002.0
    assert said == ["another process feeds it still: it is waited for, 10 s at most (the training goes on)"]


def test_a_dead_one_costs_eight_seconds_and_is_told_of_once(store: Store, time: Time, said: list[str]) -> None:
    dead = made(store, time)
    dead.begin(1, 1)
    dead.confirm(Mark(1, 1, 5))
    assert made(store, time, said).begin(2, 1) == Mark(1, 1, 5)
    assert time.now == 1000.0 + claim.LEASE_S
    assert len(said) == 2 and said[1] == "nothing has come of the one before for 8 s: it goes on here"


def test_one_that_goes_on_writing_and_never_leaves_costs_ten_seconds(store: Store, time: Time, said: list[str]) -> None:
    deaf = made(store, time)
    deaf.begin(1, 1)
    time.meanwhile = lambda waited_s: deaf.confirm(Mark(1, 1, int(waited_s))) if waited_s.is_integer() else None
    assert made(store, time, said).begin(2, 1) == Mark(1, 1, 10)
    assert time.now == 1000.0 + claim.WAIT_S
    assert said[-1] == "the one before has not left within 10 s: it goes on here"


def test_one_that_died_waiting_hides_nothing_of_who_fed_before_it(store: Store, time: Time) -> None:
    first = made(store, time)
    first.begin(1, 1)
    first.confirm(Mark(1, 1, 5))
    first.leave()
    store.create(layout.turn_key("CSVLogger-x-0", 2), claim.dump_claim(
        claim.Claim(number=2, run=1, attempt=2, process="died")
    ))  # fmt: skip
    assert made(store, time).begin(2, 1) == Mark(1, 1, 5)
    assert time.now == 1000.0 + claim.LEASE_S


def test_what_was_recorded_is_handed_on_by_one_that_wrote_nothing(store: Store, time: Time) -> None:
    first, second = made(store, time), made(store, time)
    first.begin(1, 1)
    first.confirm(Mark(1, 1, 5))
    first.leave()
    second.begin(1, 2)
    second.leave()
    assert made(store, time).begin(1, 3) == Mark(1, 1, 5)


def test_two_of_the_same_attempt_the_last_one_feeds_and_an_older_one_never_takes_the_turn_back(
    store: Store, time: Time
) -> None:
    first, second = made(store, time), made(store, time)
    first.begin(1, 1)
    second.begin(1, 1)
    second.check()
    with pytest.raises(TurnOver):
        first.check()
    made(store, time).begin(2, 1)
    with pytest.raises(TurnOver, match="for run 2, attempt 1"):
        made(store, time).begin(1, 9)


def test_a_third_that_comes_while_a_second_waits_has_the_turn_and_both_before_are_heard(
    store: Store, time: Time
) -> None:
    first, second, third = made(store, time), made(store, time), made(store, time)
    first.begin(1, 1)
    came: list[object] = []

    def meanwhile(waited_s: float) -> None:
        if waited_s == 1.0:
            time.meanwhile = lambda waited_s: first.leave() if waited_s == 2.0 else None
            came.append(third.begin(1, 1))
            came.append(time.now)

    time.meanwhile = meanwhile
    with pytest.raises(TurnOver):
        second.begin(1, 1)
    third.check()
    assert came[0] == Mark(1, 0, 0) and came[1] == 1000.0 + 2.0 + claim.LEASE_S, (
        "the second had not said that it gave up"
    )


def test_of_many_that_come_at_once_one_has_the_turn(store: Store) -> None:
    turns = [
        Turn(store, "x", lambda text: None, Limits(pause=lambda s: threading.Event().wait(0.01))) for _ in range(4)
    ]
    has: list[bool] = []

    def compete(mine: Turn) -> None:
        try:
            mine.begin(1, 1)
            mine.check()
        except TurnOver:
            mine.leave()

    team = [threading.Thread(target=compete, args=(mine,)) for mine in turns]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()
    for mine in turns:
        try:
            mine.check()
            has.append(mine._began)
        except TurnOver:
            has.append(False)
    assert has.count(True) == 1


def test_turns_of_long_ago_are_removed_and_the_newest_stay(tmp_path: Path, time: Time) -> None:
    store = open_store(str(tmp_path))
    for attempt in range(1, 12):
        mine = made(store, time)
        mine.begin(1, attempt)
        mine.leave()
    numbers = sorted(filter(None, (layout.parse_turn(name) for name, _ in store.names("trackers/CSVLogger-x-0"))))
    assert numbers == list(range(4, 12))
    assert len(store.names("trackers/CSVLogger-x-0")) == 2 * len(numbers)


@pytest.mark.parametrize("call", ("create", "put", "names"))
def test_a_full_storage_holds_it_back_for_ten_seconds_is_said_once_and_it_feeds(
    faulty: Faulty, time: Time, said: list[str], call: str
) -> None:
    faulty.faults[call] = full
    mine = made(faulty, time, said)
    mine.begin(1, 1)
    assert time.now == 1000.0 + claim.WAIT_S
    for position in range(1, 4):
        mine.check()
        mine.confirm(Mark(1, 1, position))
    assert time.now == 1000.0 + claim.WAIT_S, "once"
    assert said == [
        "whose turn it is cannot be kept in the job's storage (the file system is full); it is fed all the same"
    ]


def test_a_storage_that_fails_under_way_is_waited_for_once_and_a_passing_failure_is_not_said(
    faulty: Faulty, time: Time, said: list[str]
) -> None:
    mine = made(faulty, time, said)
    mine.begin(1, 1)
    faulty.faults["names"] = full
    time.meanwhile = lambda waited_s: faulty.faults.clear()
    mine.check()
    assert time.now == 1000.0 + turn.POLL_S and said == []
    faulty.faults["names"] = full
    time.meanwhile = lambda waited_s: None
    mine.check()
    mine.check()
    assert time.now == 1000.0 + turn.POLL_S + claim.WAIT_S and len(said) == 1
    faulty.faults.clear()
    mine.check()
    faulty.faults["names"] = full
    time.meanwhile = lambda waited_s: faulty.faults.clear()
    mine.check()
    assert time.now == 1000.0 + 2 * turn.POLL_S + claim.WAIT_S, "and waited for again after it has worked"
    other = made(faulty, time)
    other.begin(2, 1)
    with pytest.raises(TurnOver):
        mine.check()


def test_one_that_fed_without_a_turn_takes_it_once_the_storage_works_again_or_hears_that_it_is_anothers(
    faulty: Faulty, time: Time
) -> None:
    faulty.faults["create"] = full
    mine, older = made(faulty, time), made(faulty, time)
    mine.begin(2, 1)
    older.begin(1, 1)
    faulty.faults.clear()
    asked = faulty.calls
    mine.check()
    assert faulty.calls == asked, "not at every batch"
    time.now += turn.AGAIN_S
    mine.check()
    with pytest.raises(TurnOver, match="run 2, attempt 1"):
        older.check()
    with pytest.raises(TurnOver):
        made(faulty, time).begin(1, 1)


def test_a_turn_that_is_taken_late_is_not_waited_for_again(faulty: Faulty, time: Time) -> None:
    other, mine = made(faulty, time), made(faulty, time)
    other.begin(1, 1)
    other.confirm(Mark(1, 1, 9))
    faulty.faults["create"] = full
    mine.begin(1, 1)
    faulty.faults.clear()
    time.now = 2000.0
    mine.check()
    assert time.now == 2000.0
    with pytest.raises(TurnOver):
        other.check()
    mine.confirm(Mark(1, 1, 3))
    mine.leave()
    assert made(faulty, time).begin(1, 1) == Mark(1, 1, 9), "what the other has recorded stays recorded"


def test_one_that_feeds_without_a_turn_repeats_nothing_that_others_have_recorded(faulty: Faulty, time: Time) -> None:
    """The storage is full: it can still be read."""
    before, mine = made(faulty, time), made(faulty, time)
    before.begin(1, 1)
    before.confirm(Mark(1, 1, 5))
    before.leave()
    faulty.faults["create"] = full
    assert mine.begin(1, 2) == Mark(1, 1, 5)


def test_a_storage_that_goes_away_while_it_waits_makes_it_forget_nothing(faulty: Faulty, time: Time) -> None:
    before = made(faulty, time)
    before.begin(1, 1)
    before.confirm(Mark(1, 1, 5))
    time.meanwhile = lambda waited_s: faulty.faults.update(names=full)
    assert made(faulty, time).begin(1, 2) == Mark(1, 1, 5)


def test_a_storage_that_fails_now_and_then_makes_no_dead_one_live_longer(faulty: Faulty, time: Time) -> None:
    made(faulty, time).begin(1, 1)

    def meanwhile(waited_s: float) -> None:
        faulty.faults = {"names": full} if waited_s.is_integer() else {}

    time.meanwhile = meanwhile
    made(faulty, time).begin(1, 2)
    assert time.now == 1000.0 + claim.LEASE_S + turn.POLL_S


def test_what_was_recorded_is_told_later_where_the_storage_failed(faulty: Faulty, time: Time, said: list[str]) -> None:
    mine = made(faulty, time, said)
    mine.begin(1, 1)
    faulty.faults["put"] = full
    mine.confirm(Mark(1, 1, 5))
    faulty.faults.clear()
    mine.check()  # it died then
    assert made(faulty, time).begin(1, 2) == Mark(1, 1, 5)


def test_that_it_has_left_is_said_again_where_the_storage_failed(faulty: Faulty, time: Time, said: list[str]) -> None:
    mine = made(faulty, time, said)
    mine.begin(1, 1)
    faulty.faults["put"] = full
    time.meanwhile = lambda waited_s: faulty.faults.clear()
    mine.leave()
    assert said == []
    now = time.now
    made(faulty, time).begin(1, 2)
    assert time.now == now


def test_one_that_was_told_to_leave_takes_no_turn_from_the_one_that_goes_on(store: Store, time: Time) -> None:
    """spec.tracking was edited before the first report: both have it at once."""
    old, new = made(store, time), made(store, time)
    old.leaves = True
    new.begin(1, 1)
    with pytest.raises(TurnOver):
        old.begin(1, 1)
    new.check()
    made(store, time).begin(1, 2)


def test_of_a_turn_in_which_nothing_was_recorded_the_next_one_knows_the_run(store: Store, time: Time) -> None:
    first = made(store, time)
    first.begin(3, 2)
    first.leave()
    assert made(store, time).begin(4, 1) == Mark(3, 0, 0)


def test_who_has_nothing_to_write_looks_less_often_at_a_bucket(tmp_path: Path, time: Time) -> None:
    assert made(open_store(str(tmp_path)), time).look_s == claim.LOOK_S
    assert made(open_store("s3://bucket/job"), time).look_s == claim.BUCKET_LOOK_S


def test_a_storage_whose_lists_are_never_new_is_given_up(
    faulty: Faulty, time: Time, said: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made(open_store(str(tmp_path)), time).begin(1, 1)
    monkeypatch.setattr(Faulty, "names", lambda self, folder: [], raising=False)
    made(faulty, time, said).begin(1, 1)
    assert time.now == 1000.0 + claim.WAIT_S and "(others take each turn first)" in said[0]


def test_a_storage_that_hangs_is_given_up_and_not_asked_again_before_it_answers(
    faulty: Faulty, time: Time, said: list[str], held: threading.Event
) -> None:
    faulty.faults["names"] = held.wait
    mine = Turn(faulty, "x", lambda text: said.append(text) if text not in said else None, Limits(
        clock=lambda: time.now, pause=time.pause, call_s=0.01
    ))  # fmt: skip
    mine.begin(1, 1)
    mine.check()
    mine.confirm(Mark(1, 1, 1))
    mine.leave()
    assert faulty.calls == 1 and len(said) == 1 and "(it does not answer)" in said[0]


def test_whatever_a_storage_raises_is_told_as_what_it_is(faulty: Faulty, time: Time, said: list[str]) -> None:
    """Its client is a library, or the user's own: what it raises is no matter of waiting."""

    def broken() -> None:
        raise ValueError("no such region")

    faulty.faults["names"] = broken
    mine = made(faulty, time, said)
    mine.begin(1, 1)
    assert len(said) == 1 and "(ValueError: no such region)" in said[0]
    with pytest.raises(StorageSilent, match="ValueError: no such region"):
        mine.asked(broken)


def test_a_turn_that_was_taken_without_hearing_of_it_is_ones_own(faulty: Faulty, time: Time, tmp_path: Path) -> None:
    mine, real = made(faulty, time), open_store(str(tmp_path))

    def lost() -> None:
        data = claim.dump_claim(claim.Claim(number=1, run=1, attempt=1, process=mine._process))
        real.create(layout.turn_key("CSVLogger-x-0", 1), data)
        faulty.faults.clear()
        raise StoreError(errors.UNREADABLE, "the reply was lost")

    faulty.faults["create"] = lost
    mine.begin(1, 1)
    assert time.now == 1000.0 + turn.POLL_S
    assert [name for name, _ in real.names("trackers/CSVLogger-x-0")] == ["1.json", "1.state.json"]


def test_the_clock_on_the_wall_is_neither_read_nor_written(
    tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn.time, "time", lambda: pytest.fail("it was read"))
    store = open_store(str(tmp_path))
    mine = made(store, time)
    mine.begin(1, 1)
    mine.leave()
    kept = store.read(layout.turn_key("CSVLogger-x-0", 1)) or b""
    assert set(claim._object(kept)) == {"run", "attempt", "process"}
