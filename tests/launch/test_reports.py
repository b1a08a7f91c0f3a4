"""The follower hands each report out once, in order, and its checkpoint once that is committed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.checkpoint import Job
from trainjob.checkpoint.errors import UNREADABLE, StoreError
from trainjob.checkpoint.reading import runs
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.path_store import PathStore
from trainjob.checkpoint.stores.store import Store
from trainjob.launch.handover.callbacks import Report, RunContext, UserCallback
from trainjob.launch.outcome import hearers, reports
from trainjob.launch.outcome.hearers import Polled
from trainjob.launch.outcome.reports import Follower


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[int, list[dict[str, Any]]] = {}

    def report(self, attempt: int, x: int, checkpoint: str | None = None, kind: str = "report", run: int = 1) -> None:
        self.rows.setdefault(attempt, []).append(
            {
                "kind": kind,
                "metrics": {"x": x},
                "checkpoint": checkpoint,
                "position": x,
                "step": 10 * x,
                "attempt": attempt,
                "run": run,
                "time": 5.0,
            }
        )
        (self.path / "history").mkdir(exist_ok=True)
        text = "".join(json.dumps(row) + "\n" for row in self.rows[attempt])
        (self.path / "history" / f"{run}-{attempt}.jsonl").write_text(text)

    def commit(self, identity: str) -> None:
        own = self.path / "checkpoints" / identity / ".trainjob"
        own.mkdir(parents=True)
        (own / "manifest.json").write_text("{}")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def shown(reports: list[Report]) -> list[tuple[int, str | None]]:
    return [(r.by_rank[0]["x"], r.checkpoint.id if r.checkpoint else None) for r in reports]


def test_reports_come_once_and_log_rows_never(folder: Folder) -> None:
    follower = Follower(open_store(str(folder.path)))
    assert follower.poll(None, 1) == []
    assert follower.poll(1, 1) == []
    folder.report(1, 1)
    folder.report(1, 9, kind="log")
    assert shown(follower.poll(1, 1)) == [(1, None)]
    folder.report(1, 2)
    assert shown(follower.poll(1, 1)) == [(2, None)]
    assert follower.poll(1, 1) == []


def test_a_report_that_is_being_read_as_ctrl_c_comes_is_handed_out_later(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = Follower(open_store(str(folder.path)))
    for x in (1, 2):
        folder.report(1, x)

    def interrupted(*_: object) -> Report:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(reports, "makes_sense", lambda row: True)
        patched.setattr(reports, "report_of", interrupted)
        follower.poll(1, 1)
    assert shown(follower.poll(1, 1)) == [(1, None), (2, None)]


def test_metrics_come_by_rank_where_they_are_kept(folder: Folder) -> None:
    folder.report(1, 1)
    folder.rows[1][-1]["ranks"] = [{"x": 1}, {"x": "inf"}]
    folder.report(1, 2)
    first, second = Follower(open_store(str(folder.path))).poll(1, 1)
    assert first.by_rank == [{"x": 1}, {"x": "inf"}] and second.by_rank == [{"x": 2}]


def test_a_report_waits_for_its_checkpoint_and_so_do_those_behind_it(folder: Folder) -> None:
    follower = Follower(open_store(str(folder.path)))
    folder.report(1, 1, "1-1-1")
    folder.report(1, 2)
    assert follower.poll(1, 1) == []
    folder.commit("1-1-1")
    assert shown(follower.poll(1, 1)) == [(1, "1-1-1"), (2, None)]


def test_a_checkpoint_that_was_dropped_is_not_waited_for(folder: Folder) -> None:
    follower = Follower(open_store(str(folder.path)))
    folder.report(1, 1, "1-1-1")
    folder.report(1, 2, "1-1-2")
    folder.report(1, 3, "1-1-3")
    folder.commit("1-1-2")
    assert shown(follower.poll(1, 1)) == [(1, None), (2, "1-1-2")]
    assert shown(follower.poll(1, 1, final=True)) == [(3, None)]


def test_attempts_follow_each_other(folder: Folder) -> None:
    follower = Follower(open_store(str(folder.path)))
    folder.report(1, 1, "1-1-1")
    folder.report(3, 2)
    assert shown(follower.poll(1, 3)) == [(1, None), (2, None)]


def test_so_many_at_most_and_the_others_with_the_next_look(folder: Folder) -> None:
    folder.report(1, 1)
    folder.report(1, 2)
    folder.report(2, 3)
    follower = Follower(open_store(str(folder.path)))
    assert shown(follower.poll(1, 2, most=1)) == [(1, None)]
    assert shown(follower.poll(1, 2, most=0)) == []
    assert shown(follower.poll(1, 2, most=2)) == [(2, None), (3, None)]
    assert shown(follower.poll(1, 2, most=9)) == []


def test_a_torn_line_is_left_for_the_next_look(folder: Folder) -> None:
    follower = Follower(open_store(str(folder.path)))
    folder.report(1, 1)
    path = folder.path / "history" / "1-1.jsonl"
    whole = path.read_text()
    path.write_text(whole + '{"kind": "rep')
    assert shown(follower.poll(1, 1)) == [(1, None)]
    folder.report(1, 2)
    assert shown(follower.poll(1, 1)) == [(2, None)]


def test_the_segments_of_a_long_attempt_are_one(folder: Folder) -> None:
    """Also where a report's checkpoint was dropped and the next one that is stored stands in the next segment."""
    follower = Follower(open_store(str(folder.path)))
    folder.report(1, 1)
    assert shown(follower.poll(1, 1)) == [(1, None)]
    folder.report(1, 2, "1-1-2")
    second = folder.path / "history" / "1-1.1.jsonl"
    second.write_text(json.dumps({"kind": "report", "metrics": {"x": 3}, "checkpoint": "1-1-3"}) + "\n")
    assert follower.poll(1, 1) == []
    folder.commit("1-1-3")
    assert shown(follower.poll(1, 1)) == [(2, None), (3, "1-1-3")]
    second.write_text(second.read_text() + json.dumps({"kind": "report", "metrics": {"x": 4}}) + "\n")
    assert shown(follower.poll(1, 1)) == [(4, None)]


def test_a_report_says_where_in_the_training_it_was_made_and_what_is_done_again_comes_again(folder: Folder) -> None:
    follower = Follower(open_store(str(folder.path)))
    for attempt, x in ((1, 1), (1, 2), (2, 2)):
        folder.report(attempt, x)
    found = follower.poll(1, 2)
    assert [(one.position, one.step, one.attempt, one.run, one.time) for one in found] == [
        (1, 10, 1, 1, 5.0),
        (2, 20, 1, 1, 5.0),
        (2, 20, 2, 1, 5.0),
    ]
    assert [one.metrics for one in found] == [{"x": 1}, {"x": 2}, {"x": 2}]


def test_a_run_that_goes_on_from_another_belongs_to_the_training_that_began_there(tmp_path: Path) -> None:
    job = Job(tmp_path)
    runs.claim(job.store, "first", "auto", [])
    job.save("1-1-1")
    runs.claim(job.store, "second", "auto", [])
    folder = Folder(job.folder)
    folder.report(1, 2, run=2)
    assert [(one.run, one.first_run) for one in Follower(job.store).poll(2, 1)] == [(2, 1)]


@pytest.mark.parametrize(
    "row",
    [
        {"checkpoint": 7},
        {"checkpoint": "x"},
        {"checkpoint": {"id": 1}},
        {"position": "x"},
        {"position": [1]},
        {"position": 1e999},
        {"position": 1.5},
        {"attempt": "x"},
        {"run": [1]},
        {"step": "x"},
        {"epoch": {}},
        {"time": "x"},
        {"time": 1e999},
        {"metrics": [1]},
        {"metrics": "abc"},
        {"ranks": "abc"},
        {"ranks": [1]},
        {"ranks": 1},
    ],
)
def test_a_row_that_makes_no_sense_is_none(folder: Folder, row: dict[str, Any]) -> None:
    folder.report(1, 1)
    folder.report(1, 2)
    folder.rows[1][-1].update(row)
    folder.report(1, 3)
    assert shown(Follower(open_store(str(folder.path))).poll(1, 1)) == [(1, None), (3, None)]


@pytest.mark.parametrize(
    "line", ["[" * 100_000, "\udcff", '{"kind": "report"', "7", "null"], ids=["deep", "bytes", "torn", "number", "null"]
)
def test_a_line_that_is_no_row_is_none(folder: Folder, line: str) -> None:
    folder.report(1, 1)
    with (folder.path / "history" / "1-1.jsonl").open("ab") as file:
        file.write(line.encode("utf-8", "surrogateescape") + b"\n" + json.dumps(folder.rows[1][0]).encode() + b"\n")
    assert shown(Follower(open_store(str(folder.path))).poll(1, 1)) == [(1, None), (1, None)]


class Meanwhile:
    """A store on which, before a certain read or list, something else is done."""

    def __init__(self, folder: Folder, key: str, also: Callable[[], None]) -> None:
        self._store = open_store(str(folder.path))
        self._key, self._also = key, also

    def __getattr__(self, name: str) -> Any:
        def call(key: str, *more: Any) -> Any:
            if name in ("read", "size", "names") and key == self._key:
                self._key = ""
                self._also()
            return getattr(self._store, name)(key, *more)

        return call


def test_what_comes_into_a_segment_just_before_the_next_one_begins_is_seen(folder: Folder) -> None:
    """Between the look at the one and that at the other."""

    def roll() -> None:
        folder.report(1, 2)
        row = {"kind": "report", "metrics": {"x": 3}}
        (folder.path / "history" / "1-1.1.jsonl").write_text(json.dumps(row) + "\n")

    folder.report(1, 1)
    follower = Follower(cast(Store, Meanwhile(folder, "history/1-1.1.jsonl", roll)))
    found = [*follower.poll(1, 1), *follower.poll(1, 1)]
    assert shown(found) == [(1, None), (2, None), (3, None)]


def test_an_attempts_last_rows_come_although_the_next_one_has_begun(folder: Folder) -> None:
    """Rank 0's agent writes them once it hears of that."""
    follower = Follower(open_store(str(folder.path)))
    folder.report(1, 1)
    assert shown(follower.poll(1, 2)) == [(1, None)]
    folder.report(1, 2)
    folder.report(2, 3)
    assert shown(follower.poll(1, 2)) == [(2, None), (3, None)]


def test_an_attempts_last_rows_come_although_the_next_one_has_written(folder: Folder) -> None:
    def late() -> None:
        folder.report(1, 2)
        folder.report(2, 3)

    for key in ("history", "history/1-1.jsonl", "history/1-1.1.jsonl"):
        folder.rows.clear()
        folder.report(1, 1)
        (folder.path / "history" / "1-2.jsonl").unlink(missing_ok=True)
        follower = Follower(cast(Store, Meanwhile(folder, key, late)))
        found = [*follower.poll(1, 2), *follower.poll(1, 2)]
        assert shown(found) == [(1, None), (2, None), (3, None)]


def test_of_a_long_history_no_more_is_read_than_is_asked_for(folder: Folder) -> None:
    """A tracker that is behind looks often, with little room."""
    folder.report(1, 1)
    for segment in range(1, 20):
        row = {"kind": "report", "metrics": {"x": segment + 1}, "checkpoint": f"1-1-{segment}"}
        (folder.path / "history" / f"1-1.{segment}.jsonl").write_text(json.dumps(row) + "\n")
        folder.commit(f"1-1-{segment}")
    asked: list[str] = []

    class Counted(Meanwhile):
        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return super().__getattr__(name)

    follower = Follower(cast(Store, Counted(folder, "", lambda: None)))
    assert [len(follower.poll(1, 1, most=1)) for _ in range(20)] == [1] * 20
    assert asked.count("read") <= 2 * 20


@pytest.mark.parametrize(("times", "heard"), [(3, [1, 2]), (10**6, [])])
def test_a_storage_that_is_away_as_a_job_ends_is_looked_at_again(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, times: int, heard: list[int]
) -> None:
    monkeypatch.setattr(hearers, "POLL_S", 0.001)
    folder.report(1, 1)
    folder.report(1, 2)
    read, left = PathStore.read, iter(range(times))

    def reads(store: PathStore, key: str) -> bytes | None:
        if key.startswith("history") and next(left, None) is not None:
            raise StoreError(UNREADABLE, "away")
        return read(store, key)

    monkeypatch.setattr(PathStore, "read", reads)
    polled = Polled(str(folder.path))
    assert [report.position for report in polled.last(1, 1)] == heard
    assert polled.last(1, 1) == []


def test_a_ctrl_c_loses_no_report(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither as storage is asked for the next one, nor as one of several callbacks hears of it."""
    folder.commit("1-1-1")
    folder.report(1, 1, "1-1-1")
    folder.report(1, 2, "1-1-2")
    presses, heard = iter([True]), list[tuple[str, int]]()
    committed = Follower._is_committed

    def pressed(self: Follower, identity: str) -> bool:
        if identity == "1-1-2" and next(presses, False):
            raise KeyboardInterrupt
        return committed(self, identity)

    class Hears(UserCallback):
        def __init__(self, name: str, press: bool) -> None:
            self.name, self.press = name, press

        def on_report(self, context: RunContext, report: Report) -> None:
            heard.append((self.name, report.position))
            if self.press and report.position == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(Follower, "_is_committed", pressed)
    polled = Polled(str(folder.path))
    hears = hearers.Hearers(
        [Hears("first", press=True), Hears("second", press=False)], cast(RunContext, SimpleNamespace())
    )
    with pytest.raises(KeyboardInterrupt):
        hears.reports(polled.new(1, 1))
    with pytest.raises(KeyboardInterrupt):
        hears.reports(polled.last(1, 1))
    hears.reports(polled.last(1, 1))
    assert heard == [("first", 1), ("second", 1), ("first", 2), ("second", 2)]
