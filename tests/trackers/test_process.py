"""The process that feeds trackers beside rank 0's agent: what it reads, whom it waits for, when it stops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.patience import HANG_S
from trainjob.agent.tracking import MODULE
from trainjob.checkpoint.errors import UNREADABLE, StoreError
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.stores.path_store import PathStore
from trainjob.launch.handover.callbacks import Report, RunContext
from trainjob.trackers import feed, kinds, output, process
from trainjob.trackers.process import Feeding, Stdin, follow
from trainjob.trackers.tracker import Tracker

PATIENCE_S = HANG_S
"""Of a tracker whose server takes all: only a hang uses it up."""
STUCK_S = 2.0
"""Of a tracker that hangs. Forty of them, one after the other, take longer than a busy machine is late."""


class Shared(Tracker):
    """One server, whoever writes to it."""

    def __init__(self, server: list[Any], who: str, where: str | None = None) -> None:
        super().__init__(patience_s=PATIENCE_S)
        self.server, self.who, self.where = server, who, where

    def place(self, run_context: RunContext) -> str:
        return self.where or "the usual one"

    def open(self, run_context: RunContext, first: Report) -> None:
        self.server.append((self.who, "open", first.position))

    def restart(self, first: Report) -> None:
        self.server.append((self.who, "restart", first.position))

    def write(self, reports: Sequence[Report]) -> None:
        self.server += [(self.who, report.attempt, report.position) for report in reports]

    def leave(self) -> None:
        self.server.append((self.who, "leave"))

    def close(self, error: BaseException | None) -> None:
        self.server.append((self.who, "close", None if error is None else str(error)))

    def settle(self, run_context: RunContext, last: Report, error: BaseException | None) -> None:
        self.server.append((self.who, "settle", last.position, None if error is None else str(error)))


class Stuck(Tracker):
    """Its server neither answers nor refuses."""

    def __init__(self, where: str | None) -> None:
        super().__init__(patience_s=STUCK_S)
        self.where = where

    def place(self, run_context: RunContext) -> str:
        return str(self.where)

    def write(self, reports: Sequence[Report]) -> None:
        threading.Event().wait()


class Place:
    """A job's storage, its history, and a tracker's server."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = PathStore(str(folder))
        self.server: list[Any] = []
        self._who = ""
        made = {"mlflow": lambda where: Shared(self.server, self._who, where), "wandb": Stuck}
        monkeypatch.setattr(kinds, "_KINDS", made)

    def report(self, attempt: int, *positions: int, run: int = 1) -> None:
        key = layout.history_key(run, attempt)
        rows = [{"kind": "report", "position": at, "attempt": attempt, "run": run, "metrics": {}} for at in positions]
        before = self.store.read(key) or b""
        self.store.put(key, before + b"".join(json.dumps(row).encode() + b"\n" for row in rows))

    def process(self, who: str, attempt: int, *words: str) -> Feeding:
        self._who = who
        context = RunContext(name="job", path=self.store.uri(), run_config=None, scaling_config=None)
        return Feeding(words or ["mlflow"], context, self.store, attempt)

    @property
    def turns_begun(self) -> int:
        """Those whose holder has waited for all before."""
        return sum(b'"began": true' in path.read_bytes() for path in Path(self.store.uri("trackers")).glob("*/*state*"))

    @property
    def written(self) -> list[Any]:
        return [row for row in self.server if isinstance(row[1], int)]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path / "job", monkeypatch)


def until(true: Callable[[], object]) -> None:
    """Of what trackers' own threads do."""
    limit = time.monotonic() + HANG_S
    while not true() and time.monotonic() < limit:
        time.sleep(0.005)
    assert true()


def test_a_job_of_one_attempt(place: Place) -> None:
    place.report(1, 1, 2)
    feeding = place.process("a", 1)
    assert feeding.look(1)
    place.report(1, 3)
    feeding.finish(1, job_is_over=True, error=None)
    assert place.server == [("a", "open", 1), ("a", 1, 1), ("a", 1, 2), ("a", 1, 3), ("a", "close", None)]


def test_who_goes_on_in_the_next_attempt_begins_behind_what_is_there(place: Place) -> None:
    place.report(1, 1, 2, 3)
    first = place.process("a", 1)
    first.look(1)
    first.finish(1, job_is_over=False, error=None)
    place.report(1, 4)  # it ended before it could give this one
    place.report(2, 3, 4)
    second = place.process("b", 2)
    second.look(1)
    second.finish(1, job_is_over=True, error="it failed")
    assert place.written == [("a", 1, 1), ("a", 1, 2), ("a", 1, 3), ("b", 1, 4), ("b", 2, 3), ("b", 2, 4)]
    assert place.server[-1] == ("b", "close", "it failed")
    assert ("a", "leave") in place.server and ("b", "restart", 3) in place.server


def test_two_at_once_write_once(place: Place) -> None:
    """Rank 0's pod is cut off from the cluster, and sees the storage: it hears of no next attempt."""
    place.report(1, 1)
    old = place.process("old", 1)
    old.look(1)
    until(lambda: place.written)
    new = place.process("new", 2)
    new.look(1)
    until(lambda: not old.look(1))
    place.report(2, 2, 3)
    assert not old.look(1)
    new.look(1)
    new.finish(1, job_is_over=True, error=None)
    old.finish(1, job_is_over=False, error=None)
    assert place.written == [("old", 1, 1), ("new", 2, 2), ("new", 2, 3)]


def test_one_of_an_attempt_before_never_takes_the_turn_back(place: Place) -> None:
    """It died, and its agent, which is cut off, starts it again."""
    place.report(1, 1)
    place.report(2, 2)
    new = place.process("new", 2)
    new.look(1)
    until(lambda: len(place.written) == 2)
    old = place.process("old", 1)
    old.look(1)
    until(lambda: not old.look(1))
    place.report(2, 3)
    new.look(1)
    new.finish(1, job_is_over=True, error=None)
    assert place.written == [("new", 1, 1), ("new", 2, 2), ("new", 2, 3)]


def test_another_run_of_the_name_is_fed_from_its_begin(place: Place) -> None:
    place.report(1, 1, 2)
    first = place.process("a", 1)
    first.look(1)
    first.finish(1, job_is_over=True, error=None)
    place.report(1, 1, run=2)
    second = place.process("b", 1)
    second.look(2)
    second.finish(2, job_is_over=True, error=None)
    assert place.written == [("a", 1, 1), ("a", 1, 2), ("b", 1, 1)]


def test_a_long_history_that_is_recorded_already_is_none_that_is_lost(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(feed, "LIMIT", 4)
    first = place.process("a", 1)
    for position in range(1, 11):
        place.report(1, position)
        first.look(1)
        until(lambda count=position: len(place.written) == count)  # type: ignore[misc]
    first.finish(1, job_is_over=False, error=None)
    place.report(2, 11)
    second = place.process("b", 2)
    second.look(1)
    second.finish(1, job_is_over=True, error=None)
    assert place.written[-2:] == [("a", 1, 10), ("b", 2, 11)] and len(place.written) == 11
    assert "did not reach it" not in capsys.readouterr().err


class Slow(Shared):
    """Its server takes nothing for a while."""

    takes = threading.Event()

    def write(self, reports: Sequence[Report]) -> None:
        self.takes.wait()
        super().write(reports)


def test_reports_wait_on_storage_for_a_tracker_that_falls_behind(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(feed, "LIMIT", 4)
    Slow.takes.clear()
    monkeypatch.setitem(kinds._KINDS, "wandb", lambda where: Slow(place.server, "slow"))
    feeding = place.process("quick", 1, "wandb", "mlflow")
    for position in range(1, 31):
        place.report(1, position)
        assert feeding.look(1)
    until(lambda: feeding.look(1) and [row[2] for row in place.written if row[0] == "quick"] == list(range(1, 31)))
    place.report(2, 31)
    after = threading.Timer(0.2, Slow.takes.set)
    after.start()
    feeding.finish(1, job_is_over=True, error=None)
    after.join()
    assert [row[2] for row in place.written if row[0] == "slow"] == list(range(1, 31))
    assert "did not reach it" not in capsys.readouterr().err


def test_a_storage_that_fails_in_the_middle_of_a_look_makes_nothing_twice(place: Place) -> None:
    """What those before have recorded comes in two looks then."""
    place.report(1, 1, 2)
    place.report(2, 3)
    first = place.process("a", 2)
    first.look(1)
    first.finish(1, job_is_over=False, error=None)
    history = Path(place.store.uri(layout.history_key(1, 2)))
    kept = history.read_bytes()
    history.unlink()
    history.mkdir()  # what cannot be read
    second = place.process("b", 3)
    second.look(1)
    until(lambda: place.turns_begun == 2)
    history.rmdir()
    history.write_bytes(kept)
    place.report(3, 4)
    second.look(1)
    second.finish(1, job_is_over=True, error=None)
    assert [row for row in place.written if row[0] == "b"] == [("b", 3, 4)]


def is_away(place: Place, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """The storage, of history, for so many reads."""
    read, left = place.store.read, iter(range(times))

    def reads(key: str) -> bytes | None:
        if key.startswith(layout.HISTORY) and next(left, None) is not None:
            raise StoreError(UNREADABLE, "away")
        return read(key)

    monkeypatch.setattr(place.store, "read", reads)


def test_a_storage_that_is_away_at_the_last_look_is_looked_at_again(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process, "LOOK_S", 0.01)
    place.report(1, 1, 2)
    feeding = place.process("a", 1)
    assert feeding.look(1)
    place.report(1, 3)
    is_away(place, monkeypatch, 3)
    feeding.finish(1, job_is_over=True, error=None)
    assert place.written == [("a", 1, 1), ("a", 1, 2), ("a", 1, 3)]
    assert "cannot be read" not in capsys.readouterr().err


def test_a_storage_that_stays_away_at_the_last_look_is_told(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]

    def passes(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=passes))
    place.report(1, 1, 2)
    feeding = place.process("a", 1)
    assert feeding.look(1)
    until(lambda: len(place.written) == 2)
    is_away(place, monkeypatch, 10**9)
    feeding.finish(1, job_is_over=True, error=None)
    assert "the job's storage cannot be read at its end: what came last may be missing" in capsys.readouterr().err
    assert ("a", "close", None) in place.server


def test_what_a_tracker_has_no_time_for_is_counted(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(feed, "LIMIT", 4)
    feeding = place.process("a", 1, "wandb=stuck")
    for position in range(1, 31):
        place.report(1, position)
        feeding.look(1)
    feeding.finish(1, job_is_over=True, error=None)
    assert "30 reports did not reach it" in capsys.readouterr().err


def test_a_library_that_is_missing_holds_no_other_back(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.report(1, 1)
    feeding = place.process("a", 1, "comet", "mlflow")
    feeding.look(1)
    feeding.finish(1, job_is_over=True, error=None)
    assert len(place.written) == 1
    assert "comet: there is no tracker 'comet' (the training goes on without it)" in capsys.readouterr().err


def test_trackers_that_hang_hold_up_neither_each_other_nor_the_end_of_those_that_do_not(place: Place) -> None:
    place.report(1, 1)
    feeding = place.process("a", 1, *(f"wandb={n}" for n in range(40)), "mlflow")
    feeding.look(1)
    began = time.monotonic()
    feeding.finish(1, job_is_over=True, error=None)
    assert time.monotonic() - began < STUCK_S * 40 / 2, "they are waited for together"
    assert place.server[-1] == ("a", "close", None)


def test_where_reports_go_is_said(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.process("a", 1, "mlflow", "mlflow=/y").finish(1, job_is_over=True, error=None)
    assert capsys.readouterr().err == "tj  | tracking: mlflow: reports go to the usual one\n" + (
        "tj  | tracking: mlflow=/y: reports go to /y\n"
    )


def test_two_words_for_one_place_are_one_tracker(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.report(1, 1)
    feeding = place.process("a", 1, "mlflow=/x", "mlflow=/x", "mlflow=/y")
    feeding.look(1)
    feeding.finish(1, job_is_over=True, error=None)
    assert len(place.written) == 2
    assert "mlflow=/x: another tracker writes to the same place, /x; it is fed once" in capsys.readouterr().err


def test_a_job_that_ends_without_another_report_is_told_to_who_has_them_all(place: Place) -> None:
    """Its last attempts broke before their first report, as a bug does that strikes at one step."""
    place.report(1, 1, 2)
    first = place.process("a", 1)
    first.look(1)
    first.finish(1, job_is_over=False, error=None)
    second = place.process("b", 2)
    second.look(1)
    second.finish(1, job_is_over=True, error="rank 1 failed")
    assert place.server[-2:] == [("a", "leave"), ("b", "settle", 2, "rank 1 failed")]


def test_a_job_without_any_report_is_told_to_nobody(place: Place) -> None:
    feeding = place.process("a", 1)
    feeding.look(1)
    feeding.finish(1, job_is_over=True, error="rank 1 failed")
    assert place.server == []


def program(folder: Path, *words: str, ends_within_s: float = 60.0, library: str = "") -> subprocess.Popen[bytes]:
    """The process itself; `library`: what `import wandb` finds."""
    (folder / "libraries").mkdir()
    (folder / "libraries" / "wandb.py").write_text(library)
    path = os.pathsep.join(filter(None, [str(folder / "libraries"), os.environ.get("PYTHONPATH")]))
    options = {"--storage": str(folder), "--name": "job", "--run": "1", "--attempt": "1", "--folder": str(folder)}
    given = [word for option in options.items() for word in option]
    return subprocess.Popen(
        [sys.executable, "-m", MODULE, *given, "--ends-within", str(ends_within_s), *words],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )


def test_a_storage_that_hangs_keeps_no_process_behind_an_agent_that_is_gone(tmp_path: Path) -> None:
    history = tmp_path / layout.history_key(1, 1)
    history.parent.mkdir(parents=True)
    os.mkfifo(history)  # whoever opens it to read waits for a writer
    process = program(tmp_path, "csv", ends_within_s=0.5)
    assert process.stdin is not None and process.stderr is not None
    process.stdin.close()
    said = process.stderr.read().decode()
    assert process.wait(HANG_S) == 0
    assert "has not come to its end within 0.5s: what is left is given up" in said


BEGINS = """
import pathlib, sys, threading
run = None
def teardown():
    pass
def Settings(**_):
    pass
def init(**_):
    pathlib.Path(__file__).with_name("begun").touch()
"""
"""What is added to this is done in `init`."""
LIBRARIES = {
    "raises at import": "raise RuntimeError('no such symbol')",
    "exits at import": "raise SystemExit(1)",
    "hangs at import": "import threading; threading.Event().wait()",
    "exits": f"{BEGINS}    raise SystemExit(1)",
    "hangs": f"{BEGINS}    threading.Event().wait()",
    "prints without end": f"{BEGINS}    while True:\n        print('warning ' * 10)",
    "leaves a thread": f"{BEGINS}    threading.Thread(target=threading.Event().wait).start()\n    raise OSError('away')",
    "replaces the streams": f"{BEGINS}    raise OSError('away')\nsys.stdout = sys.stderr = None",
    "closes the streams": f"{BEGINS}    raise OSError('away')\nimport os\nos.close(1); os.close(2)",
}


@pytest.mark.parametrize("what", LIBRARIES)
def test_whatever_a_library_does_the_others_are_fed_and_the_log_has_room(tmp_path: Path, what: str) -> None:
    store = PathStore(str(tmp_path))
    row = {"kind": "report", "position": 1, "attempt": 1, "run": 1, "metrics": {"loss": 0.5}}
    store.put(layout.history_key(1, 1), json.dumps(row).encode() + b"\n")
    began = time.monotonic()
    process = program(tmp_path, "wandb=p", "csv", ends_within_s=3.0, library=LIBRARIES[what])
    assert process.stdin is not None and process.stderr is not None
    try:
        until(lambda: (tmp_path / "metrics.csv").exists() and "0.5" in (tmp_path / "metrics.csv").read_text())
        if BEGINS in LIBRARIES[what]:
            until((tmp_path / "libraries" / "begun").exists)
        process.stdin.close()
        said = process.stderr.read()
        assert process.wait(HANG_S) == 0
        seconds = time.monotonic() - began
        assert len(said) < output.BURST + output.RATE * seconds + 10_000, seconds
    finally:
        process.kill()
        process.wait()


def test_where_memory_runs_out_it_goes_before_the_ranks(tmp_path: Path) -> None:
    process = program(tmp_path, "csv", ends_within_s=30)
    try:
        until(lambda: Path(f"/proc/{process.pid}/oom_score_adj").read_text() == "1000\n")
    finally:
        process.kill()
        process.communicate()


class Told:
    """The agent's word, after so many looks."""

    def __init__(self, looks: int, ending: tuple[bool, str | None], meanwhile: Callable[[], None]) -> None:
        self._looks, self.ending, self._meanwhile = looks, ending, meanwhile

    def wait(self, seconds: float) -> bool:
        self._meanwhile()
        self._looks -= 1
        return self._looks <= 0


def test_it_ends_with_what_the_agent_says(place: Place) -> None:
    place.report(1, 1)
    follow(place.process("a", 1), Told(1, (False, None), lambda: place.report(1, 2)), 1, 0.0)
    assert place.server[-1] == ("a", "leave")
    follow(place.process("b", 2), Told(2, (True, "rank 1 failed"), lambda: None), 1, 0.0)
    assert place.written == [("a", 1, 1), ("a", 1, 2)], "nothing new, and what was recorded is not again"
    place.report(3, 3)
    follow(place.process("c", 3), Told(2, (True, "rank 1 failed"), lambda: None), 1, 0.0)
    assert place.server[-2:] == [("c", 3, 3), ("c", "close", "rank 1 failed")]


def test_where_nobody_is_to_be_fed_it_ends_at_once(place: Place) -> None:
    follow(place.process("a", 1, "comet"), Told(10**9, (False, None), lambda: None), 1, 0.0)


@pytest.mark.parametrize(
    ("sent", "ending"),
    [(b"", (False, None)), (b'{"error": null}\n', (True, None)), (b'{"error": "no luck"}\n', (True, "no luck"))],
)
def test_what_stdin_says(sent: bytes, ending: tuple[bool, str | None]) -> None:
    reads, writes = os.pipe()
    try:
        word = Stdin(reads)
        assert not word.wait(0.0)
        os.write(writes, sent)
        os.close(writes)
        assert word.wait(HANG_S) and word.ending == ending
    finally:
        os.close(reads)


def test_which_of_a_kind_a_tracker_is_hangs_on_no_other(place: Place) -> None:
    """An edit takes the first one away: the second goes on where it was."""
    place.report(1, 1, 2)
    before = place.process("before", 1, "mlflow=A", "mlflow=B")
    before.look(1)
    until(lambda: len(place.written) == 4)
    after = place.process("after", 1, "mlflow=B")
    place.report(1, 3)
    before.finish(1, job_is_over=False, error=None)
    after.finish(1, job_is_over=True, error=None)
    assert len(place.written) == 6 and {row for row in place.written if row[0] == "after"} <= {("after", 1, 3)}


def test_one_that_does_not_know_where_it_writes_leaves_the_others_fed(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Lost(Stuck):
        def place(self, run_context: RunContext) -> str:
            raise KeyError("WANDB_BASE_URL")

    monkeypatch.setitem(kinds._KINDS, "wandb", Lost)
    place.report(1, 1)
    feeding = place.process("a", 1, "wandb", "mlflow")
    feeding.finish(1, job_is_over=True, error=None)
    assert place.written == [("a", 1, 1)]
    assert "wandb: KeyError: 'WANDB_BASE_URL' (the training goes on without it)" in capsys.readouterr().err
