"""The process that feeds trackers beside rank 0's agent: started with the attempt, again when it dies, told of the end."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.agent_rig import Rig, processes_with
from support.oldest_python import oldest_python
from support.tuned_agent import entry
from trainjob_api import contract

pytestmark = pytest.mark.slow

LOOP = """
import pathlib, time, trainjob
for step in (1, 2, 3):
    trainjob.report({"loss": 1.0 / step}, step=step)
    while not pathlib.Path(f"go-{step}").exists():
        time.sleep(0.02)
"""
SOON = entry(tracking__AGAIN_S=0.1)


def rig(folder: Path, **more: Any) -> Rig:
    return Rig(folder, **{"script": LOOP, "storage": folder / "store", "entry": SOON, **more})


def run(made: Rig, attempt: int, words: Sequence[str] | None = None) -> None:
    made.run(attempt, tracking=[f"csv={made.folder / 'table'}"] if words is None else words)


def edit(made: Rig, *words: str) -> None:
    """As an edit of spec.tracking reaches rank 0's agent while the attempt runs."""
    made.coordinator.tell(0, **{**made.coordinator.instructions[0], "tracking": list(words)})


def rows(folder: Path, table: str = "table") -> list[str]:
    path = folder / table / "metrics.csv"
    return [line.split(",")[0] for line in path.read_text().splitlines()[1:]] if path.exists() else []


def feeders(folder: Path, table: str = "table") -> list[int]:
    """Processes of ours that feed a tracker of this test."""
    found = []
    for name in os.listdir("/proc"):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0") if name.isdecimal() else []
        except OSError:
            continue
        if b"trainjob.trackers.process" in words and f"csv={folder / table}".encode() in words:
            found.append(int(name))
    return found


def go(made: Rig, step: int) -> None:
    (made.work / f"go-{step}").touch()


def test_it_is_started_again_and_goes_on_where_it_was(tmp_path: Path) -> None:
    with rig(tmp_path) as made:
        run(made, 1)
        made.wait(lambda: rows(tmp_path) == ["1"], "the first report")
        (pid,) = feeders(tmp_path)
        os.kill(pid, signal.SIGKILL)
        made.wait_text(0, "the process that feeds the trackers ended with signal 9; it is started again")
        go(made, 1)
        made.wait(lambda: rows(tmp_path) == ["1", "2"], "the second, by another process")
        assert feeders(tmp_path) != [pid]
        go(made, 2)
        go(made, 3)
        made.wait(made.completed, "completed")
        made.exit(0)
        assert (made.exit_code(0), made.exit_code(1)) == (0, 0)
        assert rows(tmp_path) == ["1", "2", "3"]
        assert feeders(tmp_path) == [] == processes_with(str(made.folder))


def test_one_that_cannot_live_is_given_up_and_training_goes_on(tmp_path: Path) -> None:
    with rig(tmp_path) as made:
        run(made, 1)
        for death in (1, 2, 3):
            made.wait(lambda: feeders(tmp_path), f"process {death}")
            os.kill(feeders(tmp_path)[0], signal.SIGKILL)
            made.wait(lambda count=death: made.text(0).count("ended with signal 9") == count, f"death {death}")
        made.wait_text(0, "it is not started again before the next attempt")
        for step in (1, 2, 3):
            go(made, step)
        made.wait(made.completed, "completed")
        made.exit(0)
        assert made.exit_code(0) == 0


def test_one_that_died_just_before_the_end_is_started_for_what_is_left(tmp_path: Path) -> None:
    with rig(tmp_path, entry=entry(tracking__AGAIN_S=600.0)) as made:
        run(made, 1)
        made.wait(lambda: rows(tmp_path) == ["1"], "the first report")
        os.kill(feeders(tmp_path)[0], signal.SIGKILL)
        made.wait_text(0, "it is started again")
        for step in (1, 2, 3):
            go(made, step)
        made.wait(made.completed, "completed")
        made.exit(0)
        assert made.exit_code(0) == 0
        assert rows(tmp_path) == ["1", "2", "3"]


def unread(pid: int) -> int:
    """Bytes that wait in the pipe that is a process's stdin."""
    pipe = os.open(f"/proc/{pid}/fd/0", os.O_RDONLY | os.O_NONBLOCK)
    try:
        (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
        return int(count)
    finally:
        os.close(pipe)


def test_one_that_dies_at_the_end_is_started_for_what_is_left(tmp_path: Path) -> None:
    with rig(tmp_path) as made:
        run(made, 1)
        made.wait(lambda: rows(tmp_path) == ["1"], "the first report")
        (pid,) = feeders(tmp_path)
        os.kill(pid, signal.SIGSTOP)
        for step in (1, 2, 3):
            go(made, step)
        made.wait(made.completed, "completed")
        made.exit(0)
        made.wait(lambda: unread(pid), "it is told of the end")
        os.kill(pid, signal.SIGKILL)
        assert made.exit_code(0) == 0
        assert "the process that feeds the trackers ended with signal 9; it is started again" in made.text(0)
        assert rows(tmp_path) == ["1", "2", "3"]


def test_what_cannot_be_started_costs_the_training_nothing(tmp_path: Path) -> None:
    """No program takes an argument with a zero byte."""
    with rig(tmp_path) as made:
        for step in (1, 2, 3):
            go(made, step)
        run(made, 1, ["csv=/a\0b"])
        made.wait_text(0, "the process that feeds the trackers cannot be started")
        made.wait(made.completed, "completed")
        made.wait_text(0, "it is not started again before the next attempt")
        made.exit(0)
        assert made.exit_code(0) == 0
        assert made.text(0).count("the process that feeds the trackers cannot be started") == 3


def test_an_image_whose_python_is_too_old_for_trackers_trains_without_them(tmp_path: Path) -> None:
    python = oldest_python()
    with rig(tmp_path, python=python, command=[python, "train.py"], entry=("-m", "trainjob.agent")) as made:
        for step in (1, 2, 3):
            go(made, step)
        run(made, 1)
        made.wait(made.completed, "completed")
        made.exit(0)
        assert made.exit_code(0) == 0
        text = made.text(0)
        assert text.count("spec.tracking") == 1 and "Python 3.10 or newer" in text and "Traceback" not in text


def test_an_agent_that_is_killed_leaves_none_behind(tmp_path: Path) -> None:
    with rig(tmp_path) as made:
        run(made, 1)
        made.wait(lambda: rows(tmp_path) == ["1"], "the first report")
        made.agents[0].process.kill()
        made.exit_code(0)
        made.wait(lambda: feeders(tmp_path) == [], "it is gone")


@pytest.mark.parametrize("hangs", [signal.SIGSTOP, None])
def test_an_agent_that_goes_away_leaves_none_behind(tmp_path: Path, hangs: int | None) -> None:
    """One that hangs is ended, too."""
    with rig(tmp_path) as made:
        run(made, 1)
        made.wait(lambda: rows(tmp_path) == ["1"], "the first report")
        if hangs is not None:
            os.kill(feeders(tmp_path)[0], hangs)
        made.agents[0].process.send_signal(signal.SIGTERM)
        assert made.exit_code(0) == contract.EXIT_REMOVED
        made.wait(lambda: feeders(tmp_path) == [], "it is gone")


def test_the_next_attempt_has_one_of_its_own(tmp_path: Path) -> None:
    with rig(tmp_path) as made:
        run(made, 1)
        made.wait(lambda: rows(tmp_path) == ["1"], "the first report")
        first = feeders(tmp_path)
        made.kill_rank(1)
        made.wait(lambda: made.ended(1), "one ended")
        run(made, 2)
        made.wait(lambda: len(feeders(tmp_path)) == 1 and feeders(tmp_path) != first, "another process alone")
        for step in (1, 2, 3):
            go(made, step)
        made.wait(made.completed, "completed")
        made.exit(0)
        assert made.exit_code(0) == 0 and rows(tmp_path) == ["1", "2", "3"]


def test_an_edit_counts_while_the_attempt_runs(tmp_path: Path) -> None:
    """What was reported before it, too."""
    with rig(tmp_path) as made:
        run(made, 1)
        made.wait(lambda: rows(tmp_path) == ["1"], "the first report")
        edit(made, f"csv={tmp_path / 'other'}")
        made.wait(lambda: rows(tmp_path, "other") == ["1"], "the first report, in the other table")
        made.wait(lambda: feeders(tmp_path) == [], "nobody feeds the first table")
        go(made, 1)
        made.wait(lambda: rows(tmp_path, "other") == ["1", "2"], "the second report")
        edit(made)
        made.wait(lambda: feeders(tmp_path, "other") == [], "nobody feeds the other table")
        made.wait_text(0, "spec.tracking was edited: no tracker is fed now")
        go(made, 2)
        edit(made, f"csv={tmp_path / 'other'}")
        made.wait(lambda: rows(tmp_path, "other") == ["1", "2", "3"], "the third report in the table")
        go(made, 3)
        made.wait(made.completed, "completed")
        made.exit(0)
        assert made.exit_code(0) == 0 and rows(tmp_path) == ["1"] and rows(tmp_path, "other") == ["1", "2", "3"]


def test_an_edit_gives_a_process_that_was_given_up_another_chance(tmp_path: Path) -> None:
    with rig(tmp_path) as made:
        run(made, 1, ["csv=/a\0b"])
        made.wait_text(0, "it is not started again before the next attempt")
        edit(made, f"csv={tmp_path / 'table'}")
        made.wait(lambda: rows(tmp_path) == ["1"], "the first report")
        os.kill(feeders(tmp_path)[0], signal.SIGKILL)
        made.wait_text(0, "the process that feeds the trackers ended with signal 9; it is started again")
        for step in (1, 2, 3):
            go(made, step)
        made.wait(made.completed, "completed")
        made.exit(0)
        assert made.exit_code(0) == 0 and rows(tmp_path) == ["1", "2", "3"]
