"""Several runs of one name on this machine: each is remembered, listed, and looked at by `--run`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from support.trainjobs import document
from trainjob.cli.main import main
from trainjob.launch.local import lock
from trainjob.launch.local.lock import JobLock
from trainjob.launch.local.registry import earlier, output, records
from trainjob.launch.local.registry.output import Keeper
from trainjob.launch.local.registry.recorder import ENV_COMMAND, Recorder
from trainjob.launch.local.registry.records import Record
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob

NOW = 1_800_000_000.0


class Machine:
    """On which a name is run again and again."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = NOW
        self._capsys, self._folder = capsys, folder / "store" / "default" / "digits"
        self._folder.mkdir(parents=True)
        monkeypatch.setattr(time, "time", lambda: self.now)

    def runs(self, end: str | None, run: int | None, attempts: int = 1) -> Record:
        """One run, ten seconds long; `end` None: its launcher is killed."""
        self.now += 100
        kept = Recorder(self._job(), lambda text: None, lambda text: None)
        self.now += 10
        job = self._job(end, run, attempts)
        kept.status(job)
        kept.line(f"r00 | of run {run}")
        if end is not None:
            kept.end(job)
        else:
            records.write(kept.record)
        return kept.record

    def _job(self, end: str | None = None, run: int | None = None, attempts: int = 0) -> TrainJob:
        status: dict[str, Any] = {}
        at = "2030-01-01T00:00:00Z"
        if run is not None:
            began = {"number": attempts, "run": run, "cause": "Started", "worldSize": 2, "members": "0-1"}
            status["attempt"] = {**began, "state": "Ended", "workers": 2, "startedAt": at}
            status["checkpoint"] = {"latest": {"id": f"{run}-{attempts}-7", "level": "Durable"}}
        if end in ("Complete", "Failed"):
            status["conditions"] = [
                {"type": end, "status": "True", "reason": end, "message": "it is over", "lastTransitionTime": at}
            ]
        if end == "Failed":
            status["lastFailure"] = {
                "attempt": max(attempts, 1), "time": at, "reason": "UserCodeError", "rank": 0,
                "message": f"rank 0 raised ValueError: bad batch of run {run}",
            }  # fmt: skip
        storage = {"spec.checkpoint": {"storage": str(self._folder.parent.parent)}}
        return TrainJob.model_validate(
            document({"metadata": {"name": "digits", "namespace": "default"}, **storage, "status": status})
        )

    def tj(self, *words: str) -> tuple[int, str, str]:
        """(exit code, standard output, standard error)."""
        code = main(list(words))
        said = self._capsys.readouterr()
        return code, said.out, said.err


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Machine:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv(ENV_COMMAND, json.dumps(["python", "/usr/bin/tj", "run", "train.py", "--name", "digits"]))
    return Machine(tmp_path, capsys, monkeypatch)


@pytest.fixture
def three(machine: Machine) -> Machine:
    """One that failed, one whose launcher was killed, one that completed."""
    machine.runs("Failed", 1, attempts=4)
    machine.runs(None, 2)
    machine.runs("Complete", 3)
    return machine


def test_three_runs_of_a_name_are_three_rows(three: Machine) -> None:
    _, listed, _ = three.tj("list")
    assert [line.split()[:3] for line in listed.splitlines()] == [
        ["NAME", "STATUS", "RUN"],
        ["digits", "Complete", "3"],
    ]
    _, listed, _ = three.tj("list", "--runs")
    rows = [line.split()[1:3] for line in listed.splitlines()[1:]]
    assert rows == [["Complete", "3"], ["Killed", "2"], ["Failed", "1"]]
    _, shown, _ = three.tj("history", "digits")
    table = shown.split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in table[:4]] == ["RUN", "3", "2", "1"]
    assert "Failed" in table[3] and "1-4-7" in table[3] and "bad batch of run 1" in table[3] and " 4 " in table[3]
    assert table[2].endswith("its launcher was killed")
    assert "`tj history digits --run 2`" in table[4]
    assert "run 3   Complete" in shown
    rows = [json.loads(line) for line in three.tj("history", "digits", "-o", "json")[1].splitlines()]
    assert [(row["run"], row["status"], row["attempts"]) for row in rows if row.get("kind") == "run"] == [
        (3, "Complete", 1),
        (2, "Killed", 1),
        (1, "Failed", 4),
    ]


def test_an_earlier_run_is_looked_at(three: Machine) -> None:
    _, shown, _ = three.tj("history", "digits", "--run", "1")
    assert shown.startswith("run 1   Failed   started ") and "ATTEMPT" in shown and "run 3" not in shown
    code, shown, _ = three.tj("status", "digits", "--run", "1")
    assert code == contract.CLI_OK and shown.startswith("digits   run 1   on this machine   Failed")
    assert "bad batch of run 1" in shown and "checkpoint 1-4-7" in shown and "`tj logs digits --run 1`" in shown
    assert "others: 3 Complete, 2 Killed" in shown
    assert "next: Look at the ranks' lines (`tj logs digits --run 1`)" in shown, "what failed is to be mended first"
    assert "`tj run train.py --name digits --resume-from digits/1-4-7` trains on from its newest" in shown
    assert three.tj("status", "digits", "--run", "2")[1].startswith("digits   run 2   on this machine   Killed")
    assert "others: 2 Killed, 1 Failed" in three.tj("status", "digits")[1]
    assert three.tj("logs", "digits", "--run", "2")[1] == "r00 | of run 2\n"
    assert three.tj("logs", "digits", "--run", "1-4-7")[1] == "r00 | of run 1\n", "a checkpoint names its run"
    code, shown, said = three.tj("logs", "digits")
    assert shown == "r00 | of run 3\n" and "`tj logs digits --run 2` shows the one before" in said
    assert json.loads(three.tj("status", "digits", "--run", "1", "-o", "json")[1])["run"] == 1


@pytest.mark.parametrize("command", ["status", "logs", "history"])
def test_a_run_that_there_never_was(three: Machine, command: str) -> None:
    code, _, said = three.tj(command, "digits", "--run", "9")
    assert code == contract.CLI_NOT_FOUND and "run 9" in said
    code, _, said = three.tj(command, "digits", "--run", "last")
    assert code == contract.CLI_USAGE and "'last' is no run" in said
    assert "--run is for jobs of this machine" in three.tj(command, "digits", "--run", "1", "-n", "team")[2]


def test_a_run_that_never_came_to_storage_is_named_by_its_start(machine: Machine) -> None:
    machine.runs("Complete", 1)
    failed = machine.runs("Failed", None)
    machine.runs("Complete", 2)
    start = output.stamp(failed.started)
    _, shown, _ = machine.tj("history", "digits")
    assert [line.split()[0] for line in shown.splitlines()[1:4]] == ["2", start, "1"]
    assert machine.tj("logs", "digits", "--run", start)[1] == "r00 | of run None\n"
    assert "Failed" in machine.tj("status", "digits", "--run", start)[1]


def test_old_runs_go_and_the_newest_stay(machine: Machine) -> None:
    made = [machine.runs("Complete", number + 1) for number in range(earlier.KEPT + 3)]
    kept = earlier.of(made[-1])
    assert [each.number for each in kept] == [each.number for each in reversed(made[2:-1])]
    folder = Path(records.folder_of(made[-1].id)) / earlier.FOLDER
    assert len(list(folder.iterdir())) == earlier.KEPT


def test_what_is_older_than_an_age_goes_of_jobs_that_stay_too(machine: Machine) -> None:
    machine.runs("Failed", 1)
    machine.now += 40 * 86400
    machine.runs("Complete", 2)
    code, said, asked = machine.tj("rm", "--older-than", "30d")
    assert code == contract.CLI_USAGE and "digits: records and output of 1 earlier run, " in asked
    code, said, _ = machine.tj("rm", "--older-than", "30d", "--yes")
    assert code == contract.CLI_OK and "digits: records and output of 1 earlier run are removed" in said
    assert machine.tj("logs", "digits", "--run", "1")[0] == contract.CLI_NOT_FOUND
    assert machine.tj("logs", "digits")[1] == "r00 | of run 2\n"
    machine.tj("rm", "digits", "--yes")
    assert records.find_all() == ([], []) and not list((Path(records.state_folder()) / "jobs").iterdir())


def test_output_that_is_compressed_while_its_size_is_asked_for_stops_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.runs("Failed", 1)
    machine.now += 40 * 86400
    machine.runs("Complete", 2)
    listed = output.of_run

    def gone_by_then(folder: str, started: float) -> list[output.Piece]:
        found = listed(folder, started)
        for piece in found:
            os.rename(piece.path, f"{piece.path}.elsewhere")
        return found

    monkeypatch.setattr(output, "of_run", gone_by_then)
    assert "records and output of 1 earlier run, 0 B" in machine.tj("rm", "--older-than", "30d")[2]


def test_a_record_without_a_number_and_a_damaged_one_take_nothing_along(three: Machine) -> None:
    """As an earlier version wrote them, and as a full disk leaves them."""
    newest = records.find_all()[0][0]
    for path in (Path(records.folder_of(newest.id)) / earlier.FOLDER).iterdir():
        found = json.loads(path.read_text())
        if found.pop("run") == 2:
            path.write_text("{")
        else:
            path.write_text(json.dumps(found))
    assert [each.number for each in earlier.of(newest)] == [1], "as its attempt says"
    assert "Failed" in three.tj("status", "digits", "--run", "1")[1]


def test_a_launcher_that_dies_between_keeping_and_writing_leaves_each_run_once(machine: Machine) -> None:
    last = machine.runs("Complete", 1)
    earlier.keep(last.id)
    assert earlier.of(last) == [] and [each.started for each in records.find_all()[0]] == [last.started]


def test_while_another_run_has_the_name_an_earlier_one_does_not_run(machine: Machine) -> None:
    machine.runs(None, 1)
    newest = machine.runs(None, 2)
    assert newest.folder is not None
    with JobLock(newest.folder):
        assert machine.tj("list", "--runs", "-o", "json")[0] == contract.CLI_OK
        assert [each.state for each in earlier.of(newest)] == [records.KILLED]
        assert newest.state == records.RUNNING and lock.started(os.getpid()) == newest.born


def test_several_jobs_without_storage_are_told_apart_by_their_ids(machine: Machine) -> None:
    for pid in (7, 8):
        records.write(Record(name="x", namespace="default", folder=None, pid=pid, started=pid, outcome="Complete"))
    code, _, said = machine.tj("status", "x")
    ids = [each.id for each in records.find_all()[0]]
    assert code == contract.CLI_USAGE and all(each in said for each in ids)
    assert machine.tj("status", ids[0])[0] == contract.CLI_OK


def test_output_that_no_record_knows_is_told_by_its_folder(machine: Machine) -> None:
    newest = machine.runs("Complete", 1)
    keeper = Keeper(newest.output, 5.0)
    keeper.line("r00 | old", 1)
    keeper.close()
    assert f"others: {newest.output}" in machine.tj("logs", "digits")[2]
