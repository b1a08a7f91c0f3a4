"""Reports that have no room in a tracker's queue are read on the job's storage, in order, each once."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from trackers.test_feed import CONTEXT, Notes, reported
from trainjob.checkpoint.reading import runs
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.stores.opening import open_store
from trainjob.launch.handover.callbacks import Report, RunContext
from trainjob.trackers import feed
from trainjob.trackers.feed import Feed

LIMIT_S = 60.0
ROOM = 3


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "LIMIT", ROOM)


def history(folder: Path, attempt: int, positions: Sequence[int]) -> None:
    """As rank 0's agent writes it."""
    store = open_store(str(folder))
    store.create(layout.run_key(1), runs.Claim(1, "uid", None, None, "", "nonce").dumps())
    common = {"kind": "report", "run": 1, "attempt": attempt, "time": 1.0, "metrics": {"loss": 1.0}, "checkpoint": None}
    store.put(
        layout.history_key(1, attempt),
        "".join(json.dumps({**common, "position": n}) + "\n" for n in positions).encode(),
    )


class Slow(Notes):
    """Its first call waits until the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.may = threading.Event(), threading.Event()

    def open(self, run_context: RunContext, first: Report) -> None:
        self.inside.set()
        assert self.may.wait(LIMIT_S)


def fed(folder: Path, notes: Notes, reports: Sequence[Report]) -> Feed:
    made = Feed(notes, replace(CONTEXT, path=str(folder)), retry_s=(0.001, 0.008))
    for report in reports:
        made.put(report)
    return made


def written(notes: Notes) -> list[tuple[int, int]]:
    return [one for one in notes.told if len(one) == 2 and isinstance(one[0], int)]


def test_none_is_lost_of_a_tracker_that_was_away_for_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history(tmp_path, 1, range(1, 12))
    history(tmp_path, 2, range(9, 21))
    every = [(1, n) for n in range(1, 12)] + [(2, n) for n in range(9, 21)]
    notes = Slow()
    made = fed(tmp_path, notes, [reported(n, attempt) for attempt, n in every])
    notes.may.set()
    made.end(None, LIMIT_S)
    assert written(notes) == every and notes.told.count(("restart", 2, 9)) == 1
    assert "did not reach it" not in capsys.readouterr().err


def test_what_came_while_its_server_let_it_in_is_written_once(tmp_path: Path) -> None:
    history(tmp_path, 1, range(1, 9))
    notes = Slow()
    made = fed(tmp_path, notes, [reported(1)])
    assert notes.inside.wait(LIMIT_S)
    for position in range(2, 9):
        made.put(reported(position))
    notes.may.set()
    made.end(None, LIMIT_S)
    assert written(notes) == [(1, n) for n in range(1, 9)]


class Flaky(Slow):
    """Its server takes a batch only at the third time."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def write(self, reports: Sequence[Report]) -> None:
        self.calls += 1
        if self.calls % 3:
            raise ConnectionError(f"away for the {self.calls}. time")
        super().write(reports)


def test_a_server_that_takes_each_batch_late_is_not_given_up_at_the_end(tmp_path: Path) -> None:
    history(tmp_path, 1, range(1, 5 * ROOM + 1))
    notes = Flaky()
    made = fed(tmp_path, notes, [reported(1)])
    assert notes.inside.wait(LIMIT_S)
    for position in range(2, 5 * ROOM + 1):
        made.put(reported(position))
    made.last(None, LIMIT_S)
    notes.may.set()
    made.wait()
    assert written(notes) == [(1, n) for n in range(1, 5 * ROOM + 1)]


def test_what_comes_meanwhile_is_in_its_place_and_the_queue_is_used_again(tmp_path: Path) -> None:
    history(tmp_path, 1, range(1, 30))  # later reports are stored before they are handed on
    notes = Slow()
    made = fed(tmp_path, notes, [reported(n) for n in range(1, 9)])
    notes.may.set()
    for position in range(9, 30):
        made.put(reported(position))
    made.end(None, LIMIT_S)
    assert written(notes) == [(1, n) for n in range(1, 30)]


def test_a_storage_that_is_away_is_asked_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notes = Slow()
    made = fed(tmp_path, notes, [reported(n) for n in range(1, 8)])
    asked = threading.Event()
    say = made._say

    def heard(text: str) -> None:
        say(text)
        asked.set()

    made._say = heard  # type: ignore[method-assign]
    notes.may.set()
    assert asked.wait(LIMIT_S)
    assert "more reports wait for it on the job's storage, which cannot be read now" in capsys.readouterr().err
    history(tmp_path, 1, range(1, 8))
    made.end(None, LIMIT_S)
    assert written(notes) == [(1, n) for n in range(1, 8)]


def test_what_the_storage_does_not_have_is_counted_and_the_rest_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history(tmp_path, 1, [1, 2, 3, 9])
    notes = Slow()
    made = fed(tmp_path, notes, [reported(n) for n in range(1, 6)])
    notes.may.set()
    made.end(None, LIMIT_S)
    assert written(notes) == [(1, 1), (1, 2), (1, 3)]
    assert "2 reports did not reach it" in capsys.readouterr().err


def test_without_a_storage_the_loss_is_said_when_it_happens(capsys: pytest.CaptureFixture[str]) -> None:
    notes = Slow()
    made = fed(Path("/nowhere/default/job"), notes, [reported(n) for n in range(1, 4)])
    assert notes.inside.wait(LIMIT_S)
    assert capsys.readouterr().err == ""
    made.put(reported(4))
    assert "3 reports wait for it, and this process does not see the job's storage" in capsys.readouterr().err
    notes.may.set()
    made.end(None, LIMIT_S)
    assert "1 report did not reach it" in capsys.readouterr().err
