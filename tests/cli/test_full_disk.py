"""A job of this machine whose storage took no checkpoints until it was stopped: the cause stands wherever one looks."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.trainjobs import document
from trainjob.cli import ending
from trainjob.cli.local import stop
from trainjob.cli.main import main
from trainjob.launch.local.registry import records
from trainjob.launch.local.registry.records import Record
from trainjob.screen.asked import Asker
from trainjob.screen.failure import Retry
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob

AT = "2030-01-01T00:00:00Z"
FULL = "Checkpoint 1-1-8 cannot be stored: No space left on device"


def job(storage: Path, *, ended: bool) -> TrainJob:
    began = {"number": 1, "run": 1, "cause": "Started", "worldSize": 2, "members": "0-1", "workers": 2, "startedAt": AT}
    entry = {"attempt": 1, "cause": "Started", "endCause": "Suspended", "startedAt": AT, "endedAt": AT, "worldSize": 2}
    degraded = {"type": "Degraded", "status": "True", "reason": contract.REASON_CHECKPOINT_FAILING, "message": FULL}
    status: dict[str, Any] = {
        "attempt": {**began, "state": "Ended" if ended else "Running"},
        "history": [entry] if ended else [],
        "conditions": [{**degraded, "lastTransitionTime": AT}],
        "checkpoint": {"latest": {"id": "1-1-7", "level": "Durable"}},
    }
    about = {"metadata": {"name": "digits", "namespace": "default"}, "spec.checkpoint": {"storage": str(storage)}}
    return TrainJob.model_validate(document({**about, "status": status}))


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "store" / "default" / "digits"
    folder.mkdir(parents=True)
    return Record(
        name="digits",
        namespace="default",
        folder=str(folder),
        command=("/usr/bin/python", "/usr/bin/tj", "run", "train.py", "--name", "digits"),
        started=time.time() - 100,
        ended=time.time() - 40,
        outcome="Stopped",
        run=1,
        output=str(folder / "output"),
        job=job(tmp_path / "store", ended=True).to_json(),
    )


@pytest.mark.parametrize("ended", [True, False], ids=["stopped", "its launcher killed"])
def test_status_and_history_say_why_and_what_comes_before_the_next_run(
    record: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str], ended: bool
) -> None:
    outcome = "Stopped" if ended else None
    told = {**vars(record), "outcome": outcome, "job": job(tmp_path / "store", ended=ended).to_json()}
    records.write(Record(**told))
    assert main(["status", "digits"]) == 0
    shown = capsys.readouterr().out
    (row,) = [line for line in shown.splitlines() if line.startswith("1  ")]
    assert row.endswith(FULL) and ("Stopped" if ended else "Killed") in row
    said = shown.splitlines()
    at = said.index(next(line for line in said if line.startswith("next: ")))
    assert "has room (`df -h " in said[at] and "(--storage)" in said[at]
    assert said[at + 1].startswith("      then `tj run train.py --name digits` resumes from its newest checkpoint")
    assert main(["history", "digits"]) == 0
    assert FULL in capsys.readouterr().out


def test_an_earlier_run_says_why_too(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    from trainjob.launch.local.registry import earlier

    records.write(record)
    earlier.keep(record.id)
    records.write(
        Record(**{**vars(record), "started": record.started + 50, "run": 2, "job": {}, "outcome": "Complete"})
    )
    assert main(["history", "digits"]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("1  ")]
    assert row.endswith(FULL)


def test_a_run_in_the_foreground_ends_with_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome: Any = SimpleNamespace(job=job(tmp_path, ended=True), storage=None)
    again = Retry(command="tj run train.py", script="train.py", storage=str(tmp_path), asker=Asker.SHELL)
    ending.conclude(outcome, again, 3.0)
    first, then, last = capsys.readouterr().err.splitlines()
    assert "checkpoint 1-1-7 is saved. The last checkpoints could not be stored" in first
    assert then.startswith("next: ") and "df -h" in then and "(--storage)" in then
    assert last == "      then `tj run train.py` resumes from it"


def test_a_stop_says_what_it_waits_for_and_how_long_at_most(record: Record) -> None:
    first, second = stop.awaited(record)
    assert "that takes 60 s at most" in first and "nothing for 30 s" in first
    assert second == f"storage does not take it: {FULL}"
