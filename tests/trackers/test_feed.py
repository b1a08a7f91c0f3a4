"""A tracker's queue and thread: order, one opening for all attempts, what fails, what hangs."""

from __future__ import annotations

import errno
import io
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainjob import RunConfig, ScalingConfig
from trainjob.launch.handover.callbacks import RunContext, follows_reports
from trainjob.trackers import Report, Tracker, feed
from trainjob.trackers.feed import Feed
from trainjob.trackers.turn import Limits

CONTEXT = RunContext(name="job", path="/nowhere/default/job", run_config=RunConfig(), scaling_config=ScalingConfig())


def reported(position: int, attempt: int = 1, **metrics: Any) -> Report:
    metrics = metrics or {"loss": 1.0 / position}
    return Report(
        metrics=metrics, by_rank=[metrics], checkpoint=None, position=position, step=10 * position,
        attempt=attempt, run=1, first_run=1, time=1000.0 + position,
    )  # fmt: skip


class Notes(Tracker):
    """Writes down what it is asked, and does what the test wants meanwhile."""

    def __init__(self, *, fails: int = 0, hangs: threading.Event | None = None, patience_s: float = 60.0) -> None:
        super().__init__(patience_s=patience_s)
        self.told: list[Any] = []
        self.fails, self.hangs = fails, hangs
        self.began = threading.Event()

    def open(self, run_context: RunContext, first: Report) -> None:
        self.told.append(("open", run_context.name, first.position))

    def restart(self, first: Report) -> None:
        self.told.append(("restart", first.attempt, first.position))

    def write(self, reports: Sequence[Report]) -> None:
        self.began.set()
        if self.hangs is not None:
            self.hangs.wait()
        if self.fails:
            self.fails -= 1
            raise ConnectionError("the server is away")
        self.told += [(report.attempt, report.position) for report in reports]

    def close(self, error: BaseException | None) -> None:
        self.told.append(("close", error))


def test_a_run_is_opened_once_and_its_attempts_are_told_apart() -> None:
    notes = Notes()
    for report in (reported(1), reported(2), reported(2, 2), reported(3, 2)):
        notes.on_report(CONTEXT, report)
    notes.after_run(CONTEXT, None)
    assert notes.told == [
        ("open", "job", 1), (1, 1), (1, 2), ("restart", 2, 2), (2, 2), (2, 3), ("close", None)
    ]  # fmt: skip


def test_the_same_tracker_follows_one_run_after_the_other_and_one_without_reports_is_none() -> None:
    notes = Notes()
    error = ValueError("bad")
    notes.on_report(CONTEXT, reported(1))
    notes.after_run(CONTEXT, error)
    notes.after_run(CONTEXT, None)
    notes.on_report(CONTEXT, reported(1))
    notes.after_run(CONTEXT, None)
    assert notes.told == [
        *[("open", "job", 1), (1, 1), ("close", error)],
        *[("open", "job", 1), (1, 1), ("close", None)],
    ]


def test_what_fails_is_said_once_and_comes_again(capsys: pytest.CaptureFixture[str]) -> None:
    notes = Notes(fails=2)
    fed = Feed(notes, CONTEXT, retry_s=(0.0, 0.0))
    fed.put(reported(1))
    fed.put(reported(2))
    fed.end(None, 60.0)
    assert notes.told[0] == ("open", "job", 1) and notes.told[-1] == ("close", None)
    assert notes.told[1:-1] == [(1, 1), (1, 2)]
    assert capsys.readouterr().err.count("Notes: ConnectionError: the server is away") == 1


def test_one_that_goes_on_failing_ends_the_run_all_the_same_and_the_gap_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    notes = Notes(fails=10**9)
    fed = Feed(notes, CONTEXT, retry_s=(0.0, 0.0))
    fed.put(reported(1))
    fed.end(None, 60.0)
    said = capsys.readouterr().err
    assert "the server is away" in said and "1 report did not reach it" in said


def test_a_run_whose_last_reports_it_refuses_is_closed(capsys: pytest.CaptureFixture[str]) -> None:
    class Refuses(Notes):
        def write(self, reports: Sequence[Report]) -> None:
            if reports[0].attempt == 2:
                raise ValueError("no such attempt")
            super().write(reports)

    notes = Refuses()
    fed = Feed(notes, CONTEXT, retry_s=(0.0, 0.0))
    fed.put(reported(1))
    fed.put(reported(2, 2))
    fed.end(None, 60.0)
    assert notes.told == [("open", "job", 1), (1, 1), ("restart", 2, 2), ("close", None)]
    assert "1 report did not reach it" in capsys.readouterr().err


class Panic(BaseException):
    """What some native libraries raise: no Exception."""


def test_whatever_a_library_raises_is_said_and_comes_again(capsys: pytest.CaptureFixture[str]) -> None:
    class Panics(Notes):
        def write(self, reports: Sequence[Report]) -> None:
            if self.fails:
                self.fails -= 1
                raise SystemExit("no key") if self.fails else Panic("index out of bounds")
            super().write(reports)

        def close(self, error: BaseException | None) -> None:
            raise Panic("at the end")

    notes = Panics(fails=2)
    fed = Feed(notes, CONTEXT, retry_s=(0.0, 0.0))
    fed.put(reported(1))
    fed.end(None, 60.0)
    said = capsys.readouterr().err
    assert notes.told == [("open", "job", 1), (1, 1)]
    assert all(f"Panics: {text}" in said for text in ("SystemExit: no key", "Panic: index out", "Panic: at the end"))


def test_a_log_that_takes_nothing_more_holds_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    notes = Notes(fails=2)
    fed = Feed(notes, CONTEXT, retry_s=(0.0, 0.0))
    monkeypatch.setattr(sys, "stderr", Full())
    fed.put(reported(1))
    fed.end(None, 60.0)
    assert notes.told == [("open", "job", 1), (1, 1), ("close", None)]


def test_at_the_end_it_is_tried_again_soon_however_long_it_has_failed() -> None:
    failed, pauses = threading.Semaphore(0), list[float]()

    class Away(Notes):
        def write(self, reports: Sequence[Report]) -> None:
            failed.release()
            super().write(reports)

    notes = Away(fails=10**9)
    fed = Feed(notes, CONTEXT, retry_s=(0.001, 0.008), limits=Limits(pause=pauses.append))
    fed.put(reported(1))
    for _ in range(6):
        failed.acquire()
    fed.end(None, 60.0)
    assert pauses == [0.001, 0.002]


def test_one_that_hangs_holds_up_neither_reports_nor_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    hangs = threading.Event()
    notes = Notes(hangs=hangs, patience_s=0.0)
    for position in range(1, 4):
        notes.on_report(CONTEXT, reported(position))
    notes.began.wait()
    notes.after_run(CONTEXT, None)
    said = capsys.readouterr().err
    hangs.set()
    assert "has not come to its end within 0.0s and is not waited for (write() has not come back)" in said
    assert "3 reports did not reach it" in said


def test_one_that_does_not_answer_is_named_while_the_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A library may try for minutes before it says that its server is away."""
    monkeypatch.setattr(feed, "SLOW_S", 0.0)
    hangs, began = threading.Event(), threading.Event()

    class Away(Notes):
        def open(self, run_context: RunContext, first: Report) -> None:
            began.set()
            hangs.wait()

    notes = Away(patience_s=0.0)
    notes.on_report(CONTEXT, reported(1))
    began.wait()
    for position in (2, 3):
        notes.on_report(CONTEXT, reported(position))
    said = capsys.readouterr().err
    hangs.set()
    notes.after_run(CONTEXT, None)
    assert said == "tj  | Away: open() has not come back for 0.0s: its server may be away (the training goes on)\n"


def test_a_queue_that_nobody_empties_has_a_bound(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(feed, "LIMIT", 2)
    hangs = threading.Event()
    notes = Notes(hangs=hangs, patience_s=0.0)
    for position in range(1, 6):
        notes.on_report(CONTEXT, reported(position))
    notes.after_run(CONTEXT, None)
    hangs.set()
    assert "5 reports did not reach it" in capsys.readouterr().err


def test_a_tracker_asks_for_rank_0s_metrics_alone() -> None:
    assert not follows_reports([Notes()])


def test_a_tracker_that_does_not_know_where_it_writes_ends_nobody_who_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Lost(Notes):
        def place(self, run_context: RunContext) -> str:
            raise ValueError("no server is named")

    notes = Lost()
    notes.on_report(replace(CONTEXT, path=str(tmp_path)), reported(1))
    notes.after_run(CONTEXT, None)
    assert "Lost: ValueError: no server is named (the training goes on, this is tried again)" in capsys.readouterr().err
