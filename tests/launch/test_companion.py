"""The control process of a loop in somebody's process: whatever it is told, and when, its answer is given."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from support.patience import HANG_S
from trainjob.launch import job as jobs
from trainjob.launch.in_process import companion
from trainjob.launch.in_process.companion import Order
from trainjob.launch.local.backend import LocalEvent
from trainjob.launch.local.lock import JobLock
from trainjob.screen.asked import Asker
from trainjob_api import defaults
from trainjob_api.v1alpha1 import TrainJob

COMPANION = (sys.executable, "-P", "-m", "trainjob.launch.in_process.companion")
TOLD_AT_THE_END = """
import os, sys, threading
from trainjob.launch.in_process import companion
from trainjob.launch.local.registry.recorder import Recorder
end, kill, told = Recorder.end, os.kill, threading.Event()

def tell(pid, number):
    kill(pid, number)
    told.set()

def ends(self, job):
    os.kill = tell
    os.write(2, b"it ends\\n")
    assert told.wait(60)
    end(self, job)

Recorder.end = ends
sys.exit(companion.main())
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainJob:
    """One that is over at once."""
    for name in ("state", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "train.py").write_text("")
    command = (sys.executable, str(tmp_path / "train.py"))
    return jobs.from_script(jobs.ScriptJob(command=command, name="job", storage=str(tmp_path / "storage")))


def started(
    job: TrainJob, command: tuple[str, ...], patience_s: float = 0.0, at_once: bytes = b""
) -> subprocess.Popen[bytes]:
    """With a folder to meet in, as the process that trains makes it. `at_once`: what it is told beside its order."""
    pipe, folder = subprocess.PIPE, tempfile.mkdtemp(prefix="trainjob-here-")
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
    asker = Asker.PYTHON.value
    order = Order(job=job.to_json(), show=False, tell=False, patience_s=patience_s, asker=asker, folder=folder)
    assert process.stdin is not None
    process.stdin.write(json.dumps(order).encode() + b"\n" + at_once)
    process.stdin.flush()
    return process


def answer(process: subprocess.Popen[bytes]) -> tuple[int, dict[str, Any]]:
    """Its exit code and last words."""
    out, err = process.communicate(timeout=HANG_S)
    lines = out.splitlines()
    assert lines, (process.returncode, err)
    return process.returncode, json.loads(lines[-1])


def test_one_that_is_told_to_stop_as_its_job_ends_says_how_it_ended(job: TrainJob, tmp_path: Path) -> None:
    process = started(job, (sys.executable, "-P", "-c", TOLD_AT_THE_END))
    assert process.stdin is not None and process.stderr is not None
    while b"it ends" not in (line := process.stderr.readline()):
        assert line, process.wait()
    process.stdin.write(b"s")
    code, said = answer(process)
    assert code == 0 and TrainJob.model_validate(said["job"]).status.holds("Complete") and not said["interrupted"]
    assert not list((tmp_path / "tmp").iterdir())


def test_one_whose_process_has_gone_before_its_job_begins_is_refused(job: TrainJob, tmp_path: Path) -> None:
    with JobLock(str(defaults.job_storage(job))):
        process = started(job, COMPANION, patience_s=HANG_S)
        assert answer(process) == (0, {"refused": "it was stopped before it began"})
    assert not list((tmp_path / "tmp").iterdir()), "nor the folder to meet in, which nobody else would take away"


def test_one_that_is_told_to_stop_before_it_has_read_its_order_stops(job: TrainJob, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\ntime.sleep(600)\n")
    process = started(job, COMPANION, at_once=b"s")
    assert process.stdout is not None
    code, said = process.wait(HANG_S), json.loads(process.stdout.read().splitlines()[-1])
    assert code == 0 and ("refused" in said or said["interrupted"]), said
    process.communicate()


def test_one_that_is_told_twice_at_once_says_how_it_ended(job: TrainJob, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\nprint('waits', flush=True)\ntime.sleep(600)\n")
    process = started(job, COMPANION)
    assert process.stdin is not None
    process.stdin.write(b"ss")
    code, said = answer(process)
    assert code == 0 and ("refused" in said or said["interrupted"]), said
    assert not list((tmp_path / "tmp").iterdir())


def test_a_standard_error_that_takes_nothing_ends_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is on a disk that is full, say."""
    with open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        companion._show(LocalEvent(kind="note", text="the job starts from the beginning"))
        monkeypatch.undo()
        with contextlib.suppress(OSError):  # what it holds
            full.close()
