"""Several processes that follow one training: each report is written once, whoever stops, dies or comes back."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.patience import HANG_S
from trackers.test_feed import CONTEXT, Notes, reported
from trackers.test_files import table
from trainjob.checkpoint.choice import catalogue
from trainjob.checkpoint.errors import FULL, UNREADABLE, StoreError
from trainjob.checkpoint.reading import runs
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.path_store import PathStore
from trainjob.launch.handover.callbacks import Report, RunContext
from trainjob.trackers import CSVLogger, claim, turn
from trainjob.trackers.feed import Feed

LIMIT_S = HANG_S / 4


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks, looks often; who is slow is not taken for dead, but where a test says `short`."""
    monkeypatch.setattr(claim, "LOOK_S", 0.02)
    monkeypatch.setattr(claim, "LEASE_S", LIMIT_S)
    monkeypatch.setattr(claim, "WAIT_S", LIMIT_S)
    monkeypatch.setattr(turn, "POLL_S", 0.02)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is dead, or fails, is not waited for long."""
    monkeypatch.setattr(claim, "LEASE_S", 0.3)
    monkeypatch.setattr(claim, "WAIT_S", 0.5)


class Server(Notes):
    """All processes write into the same."""

    def __init__(self, told: list[Any]) -> None:
        super().__init__()
        self.told = told

    def leave(self) -> None:
        self.told.append("left")


def of_process(folder: Path) -> RunContext:
    """Each has a run context of its own."""
    return replace(CONTEXT, path=str(folder), run_id=str(time.monotonic_ns()))


def in_run(run: int, position: int, attempt: int = 1) -> Report:
    return replace(reported(position, attempt), run=run)


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


def rows(told: Sequence[Any]) -> list[Any]:
    return [one for one in told if isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], int)]


def stored_run(folder: Path, run: int, positions: Sequence[int], resumes: CheckpointId | None = None) -> None:
    """As rank 0's agent writes it: a checkpoint came with the last report."""
    store = open_store(str(folder))
    store.create(layout.run_key(run), runs.Claim(run, "uid", resumes, None, "", "nonce").dumps())
    common = {"kind": "report", "run": run, "attempt": 1, "time": 1.0, "metrics": {"loss": 1.0}}
    lines = [{**common, "position": n, "checkpoint": None} for n in positions]
    lines[-1]["checkpoint"] = str(CheckpointId(run, 1, positions[-1]))
    store.put(layout.history_key(run, 1), "".join(json.dumps(line) + "\n" for line in lines).encode())


def test_two_feeds_of_one_attempt_write_each_report_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[Any] = []
    one, two = (Feed(Server(told), of_process(tmp_path)) for _ in range(2))
    one.put(in_run(1, 1))
    until(lambda: rows(told) == [(1, 1)])
    for position in range(1, 4):
        two.put(in_run(1, position))
    until(lambda: len(rows(told)) == 3)
    for position in range(2, 6):
        one.put(in_run(1, position))
    two.put(in_run(1, 4))
    two.end(None, LIMIT_S)
    one.end(None, LIMIT_S)
    assert rows(told) == [(1, n) for n in range(1, 5)]
    assert told.count("left") == 1 and told.count(("close", None)) == 1
    said = capsys.readouterr().err
    assert said.count("this one stops") == 1 and "did not reach it" not in said


def test_the_one_that_waits_opens_nothing_before_the_other_has_left(tmp_path: Path) -> None:
    told: list[Any] = []
    old, new = (Feed(Server(told), of_process(tmp_path)) for _ in range(2))
    old.put(in_run(1, 1))
    until(lambda: rows(told))
    new.put(in_run(2, 2))
    new.end(None, LIMIT_S)
    assert told == [("open", "job", 1), (1, 1), "left", ("open", "job", 2), (1, 2), ("close", None)]


def test_one_that_is_cut_off_in_a_batch_ends_it_and_begins_no_other(tmp_path: Path, short: None) -> None:
    holds, inside = threading.Event(), threading.Event()

    class Stuck(Server):
        def write(self, reports: Sequence[Report]) -> None:
            inside.set()
            holds.wait(LIMIT_S)
            super().write(reports)

    Stuck.__name__ = "Server"
    told: list[Any] = []
    old, new = Feed(Stuck(told), of_process(tmp_path)), Feed(Server(told), of_process(tmp_path))
    old.put(in_run(1, 1))
    assert inside.wait(LIMIT_S)
    old.put(in_run(1, 2))
    new.put(in_run(2, 2))
    until(lambda: (1, 2) in told)
    assert (1, 1) not in told, "it was not waited for longer than its time"
    holds.set()
    until(lambda: "left" in told)
    old.put(in_run(1, 3))
    old.end(None, LIMIT_S)
    new.end(None, LIMIT_S)
    assert rows(told) == [(1, 2), (1, 1)]


@pytest.mark.parametrize("slow", ("open", "restart"))
def test_one_whose_tracker_takes_long_to_begin_writes_nothing_once_another_feeds(
    tmp_path: Path, short: None, slow: str
) -> None:
    """A server that answers after a minute, a login: between its look and its batch another one may have begun."""
    holds, inside = threading.Event(), threading.Event()

    class Slow(Server):
        def open(self, run_context: RunContext, first: Report) -> None:
            super().open(run_context, first)
            self.wait("open")

        def restart(self, first: Report) -> None:
            super().restart(first)
            self.wait("restart")

        def wait(self, method: str) -> None:
            if method == slow:
                inside.set()
                holds.wait(LIMIT_S)

    Slow.__name__ = "Server"
    told: list[Any] = []
    old, new = Feed(Slow(told), of_process(tmp_path)), Feed(Server(told), of_process(tmp_path))
    old.put(in_run(1, 1))
    if slow == "restart":
        until(lambda: rows(told) == [(1, 1)])
        old.put(in_run(1, 1, 2))
    assert inside.wait(LIMIT_S)
    new.put(in_run(2, 2))
    until(lambda: (1, 2) in told)
    holds.set()
    until(lambda: "left" in told)
    old.end(None, LIMIT_S)
    new.end(None, LIMIT_S)
    assert rows(told) == ([(1, 2)] if slow == "open" else [(1, 1), (1, 2)])


def test_one_that_comes_back_goes_on_where_the_other_stopped(tmp_path: Path) -> None:
    told: list[Any] = []
    for attempt in (1, 2, 3):
        one = Feed(Server(told), of_process(tmp_path))
        # Each hears of the run from its beginning.
        for earlier, theirs in ((1, (1, 2)), (2, (2, 3)), (3, (3, 4, 5))):
            for position in theirs if earlier <= attempt else ():
                one.put(in_run(1, position, earlier))
        one.end(None, LIMIT_S)
    assert rows(told) == [(1, 1), (1, 2), (2, 2), (2, 3), (3, 3), (3, 4), (3, 5)]


def test_what_the_run_before_had_no_time_for_is_recorded_by_the_next(tmp_path: Path) -> None:
    told: list[Any] = []
    stored_run(tmp_path, 1, range(1, 6))
    stored_run(tmp_path, 2, range(6, 8), CheckpointId(1, 1, 5))
    old = Feed(Server(told), of_process(tmp_path))
    for position in (1, 2):
        old.put(in_run(1, position))
    until(lambda: rows(told) == [(1, 1), (1, 2)])
    new = Feed(Server(told), of_process(tmp_path))
    for position in (6, 7):
        new.put(in_run(2, position))
    new.end(None, LIMIT_S)
    old.end(None, LIMIT_S)
    assert rows(told) == [(1, n) for n in range(1, 8)]
    assert ("open", "job", 3) in told, "where the other stopped"


def away(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """The histories of earlier runs, so often."""
    read, left = catalogue.lineage_history, iter(range(times))

    def reads(*args: Any) -> Any:
        if next(left, None) is not None:
            raise StoreError(UNREADABLE, "away")
        return read(*args)

    monkeypatch.setattr(catalogue, "lineage_history", reads)


def after_an_end_in_haste(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, away_times: int
) -> tuple[list[Any], Feed]:
    """A first run of five reports, one of which was recorded, and a second of two: what its tracker is told, its feed."""
    told: list[Any] = []
    stored_run(tmp_path, 1, range(1, 6))
    stored_run(tmp_path, 2, range(6, 8), CheckpointId(1, 1, 5))
    old = Feed(Server(told), of_process(tmp_path))
    old.put(in_run(1, 1))
    old.end(None, LIMIT_S, closes=False)
    away(monkeypatch, away_times)
    return told, Feed(Server(told), of_process(tmp_path), retry_s=(0.001, 0.002))


def test_what_the_run_before_had_no_time_for_is_read_again_where_the_storage_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told, new = after_an_end_in_haste(tmp_path, monkeypatch, away_times=3)
    for position in (6, 7):
        new.put(in_run(2, position))
    until(lambda: rows(told) == [(1, n) for n in range(1, 8)])
    new.end(None, LIMIT_S)
    assert rows(told) == [(1, n) for n in range(1, 8)]
    assert "`tj history` has all" not in capsys.readouterr().err


def test_a_storage_of_which_earlier_runs_alone_cannot_be_read_holds_nothing_back_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told, new = after_an_end_in_haste(tmp_path, monkeypatch, away_times=10**9)
    new.put(in_run(2, 6))
    until(lambda: rows(told) == [(1, 1), (1, 6)])
    new.end(None, LIMIT_S)
    assert "what the one before has not recorded cannot be read (away)" in capsys.readouterr().err


def test_a_run_of_which_nothing_was_recorded_is_recorded_by_the_next(tmp_path: Path) -> None:
    """Its server was away from its begin to its end."""
    told: list[Any] = []
    stored_run(tmp_path, 1, range(1, 6))
    stored_run(tmp_path, 2, range(6, 8), CheckpointId(1, 1, 5))
    refused = Server([])
    refused.fails = 10**9
    old = Feed(refused, of_process(tmp_path), retry_s=(0.0, 0.0))
    old.put(in_run(1, 1))
    old.end(None, LIMIT_S, closes=False)
    new = Feed(Server(told), of_process(tmp_path))
    for position in (6, 7):
        new.put(in_run(2, position))
    new.end(None, LIMIT_S)
    assert rows(told) == [(1, n) for n in range(1, 8)]


def test_reports_that_cannot_be_read_back_are_said_and_hold_nothing_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    for run in (1, 2):
        one = Feed(Server(told), of_process(tmp_path))
        one.put(in_run(run, 5 * run))
        one.end(None, LIMIT_S)

        def fails(*_: object) -> None:
            raise StoreError(FULL, "it is away")

        monkeypatch.setattr(catalogue, "lineage_history", fails)
    assert rows(told) == [(1, 5), (1, 10)]
    assert "what the one before has not recorded cannot be read (it is away)" in capsys.readouterr().err


def test_the_next_attempt_in_the_same_process_waits_for_nobody(tmp_path: Path) -> None:
    told: list[Any] = []
    one = Feed(Server(told), of_process(tmp_path))
    one.put(in_run(1, 1))
    until(lambda: rows(told))
    one.put(in_run(1, 1, 2))
    one.end(None, LIMIT_S)
    assert told == [("open", "job", 1), (1, 1), ("restart", 2, 1), (2, 1), ("close", None)]
    (folder,) = (tmp_path / "trackers").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["1.json", "1.state.json"]


def test_a_dead_holder_is_not_waited_for_long(tmp_path: Path, short: None, capsys: pytest.CaptureFixture[str]) -> None:
    holds, inside = threading.Event(), threading.Event()

    class Dead(Server):
        def write(self, reports: Sequence[Report]) -> None:
            inside.set()
            holds.wait(LIMIT_S)

    Dead.__name__ = "Server"
    dead = Feed(Dead([]), of_process(tmp_path))
    dead.put(in_run(1, 1))
    # Before its batch it would look once more whose turn it is, and leave.
    assert inside.wait(LIMIT_S)
    told: list[Any] = []
    new = Feed(Server(told), of_process(tmp_path))
    new.put(in_run(1, 1, 2))
    new.end(None, LIMIT_S)
    assert rows(told) == [(2, 1)]
    holds.set()
    dead.end(None, LIMIT_S)
    assert "it goes on here" in capsys.readouterr().err


def test_a_full_storage_is_said_once_and_holds_nothing_back(
    tmp_path: Path, short: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise StoreError(FULL, "the file system is full")

    monkeypatch.setattr(PathStore, "create", full)
    monkeypatch.setattr(PathStore, "put", full)
    told: list[Any] = []
    one = Feed(Server(told), of_process(tmp_path))
    for position in range(1, 4):
        one.put(in_run(1, position))
        until(lambda position=position: (1, position) in told)
    one.end(None, LIMIT_S)
    assert capsys.readouterr().err.count("the file system is full") == 1


def test_a_storage_that_hangs_holds_back_neither_the_reports_nor_the_end(
    tmp_path: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds = threading.Event()
    monkeypatch.setattr(PathStore, "names", lambda *_: holds.wait(LIMIT_S) and [])
    told: list[Any] = []
    one = Feed(Server(told), of_process(tmp_path), limits=turn.Limits(call_s=0.05))
    began = time.monotonic()
    one.put(in_run(1, 1))
    assert time.monotonic() - began < LIMIT_S / 2
    one.end(None, LIMIT_S)
    holds.set()
    assert rows(told) == [(1, 1)] and told[-1] == ("close", None)


def test_two_trackers_of_one_kind_in_one_process_are_no_rivals(tmp_path: Path) -> None:
    told: list[Any] = []
    context = of_process(tmp_path)
    pair = [Server(told), Server(told)]
    for position in (1, 2):
        for one in pair:
            one.on_report(context, in_run(1, position))
    for one in pair:
        one.after_run(context, None)
    assert sorted(rows(told)) == [(1, 1), (1, 1), (1, 2), (1, 2)] and "left" not in told


def test_the_same_tracker_in_the_next_run_of_the_process_waits_for_its_own_last_one(tmp_path: Path) -> None:
    told: list[Any] = []
    one = Server(told)
    for run in (1, 2):
        context = of_process(tmp_path)
        one.on_report(context, in_run(run, run))
        one.after_run(context, None)
    (folder,) = (tmp_path / "trackers").iterdir()
    assert {path.name for path in folder.iterdir()} >= {"1.json", "2.json"}


def test_without_a_storage_that_is_seen_nothing_is_written_and_all_is_fed(tmp_path: Path) -> None:
    told: list[Any] = []
    for context, report in (
        (replace(CONTEXT, path=str(tmp_path / "gone"), run_id="a"), in_run(1, 1)),
        (replace(CONTEXT, path="team/job", run_id="b"), in_run(1, 2)),
        (of_process(tmp_path), replace(reported(3), run=None)),
    ):
        one = Feed(Server(told), context)
        one.put(report)
        one.end(None, LIMIT_S)
    assert rows(told) == [(1, 1), (1, 2), (1, 3)] and list(tmp_path.iterdir()) == []


def test_a_table_that_two_processes_write_has_each_report_once(tmp_path: Path) -> None:
    places = [CSVLogger(tmp_path / "table") for _ in range(2)]
    (tmp_path / "table").mkdir()
    contexts = [of_process(tmp_path) for _ in places]
    for position in range(1, 21):
        for one, context in zip(places, contexts, strict=True):
            one.on_report(context, in_run(1, position))
    for one, context in zip(places, contexts, strict=True):
        one.after_run(context, None)
    assert [row["report"] for row in table(tmp_path / "table")] == [str(n) for n in range(1, 21)]


def test_who_has_left_or_closed_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[Any] = []
    closed, old, new = (Feed(Server(told), of_process(tmp_path)) for _ in range(3))
    closed.put(in_run(1, 1))
    closed.end(None, LIMIT_S)
    old.put(in_run(2, 2))
    until(lambda: len(rows(told)) == 2)
    assert "waited for" not in capsys.readouterr().err
    new.put(in_run(3, 3))
    new.end(None, LIMIT_S)
    old.end(None, LIMIT_S)
    assert len(rows(told)) == 3 and "it goes on here" not in capsys.readouterr().err


def test_an_older_run_writes_nothing_and_what_waits_of_it_is_not_called_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[Any] = []
    new, old = (Feed(Server(told), of_process(tmp_path)) for _ in range(2))
    new.put(in_run(2, 2))
    until(lambda: rows(told))
    old.put(in_run(1, 1))
    old.end(None, LIMIT_S)
    new.end(None, LIMIT_S)
    said = capsys.readouterr().err
    assert rows(told) == [(1, 2)] and "for run 2, attempt 1: this one stops" in said
    assert "did not reach it" not in said


def test_one_that_was_left_behind_touches_nothing_of_the_next(tmp_path: Path, short: None) -> None:
    holds = threading.Event()
    told: list[Any] = []
    shared = Server(told)
    shared.hangs = holds
    old = Feed(shared, of_process(tmp_path))
    old.put(in_run(1, 1))
    until(lambda: told)
    old.end(None, 0.0)
    turn_of_next = open_store(str(tmp_path))
    (folder,) = (tmp_path / "trackers").iterdir()
    turn_of_next.create(f"trackers/{folder.name}/2.json", b"{}")
    holds.set()
    old._thread.join(LIMIT_S)
    assert "left" not in told


def test_a_store_that_the_context_has_is_where_the_claim_lies(tmp_path: Path) -> None:
    one = Feed(Server([]), replace(CONTEXT, path="team/job", run_id="c", store=open_store(str(tmp_path))))
    one.put(in_run(1, 1))
    one.end(None, LIMIT_S)
    assert list(tmp_path.glob("trackers/*/1.json"))
