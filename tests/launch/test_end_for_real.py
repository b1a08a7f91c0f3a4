"""A job of this machine that has ended, and a Ctrl-C, SIGTERM or SIGHUP before its process has: the end stays what it
was, it is said, and nothing is left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import HANG_S
from trainjob.launch.local.registry import records
from trainjob_api import contract

pytestmark = pytest.mark.slow

STRUCK = """
import os, sys
from trainjob.cli import ending
from trainjob.cli.main import main
from trainjob.launch.local import lock, scratch
from trainjob.launch.local.registry import output, recorder

place, name, number = sys.argv[1:4]
owner = {"output": output.Keeper, "recorder": recorder.Recorder, "scratch": scratch.Scratch, "lock": lock.JobLock,
         "ending": ending}[place]
real = getattr(owner, name)

def struck(*given, **named):
    os.kill(os.getpid(), int(number))
    return real(*given, **named)

setattr(owner, name, struck)
sys.exit(main(sys.argv[4:]))
"""
MOMENTS = [
    ("recorder", "end", signal.SIGINT),
    ("output", "close", signal.SIGTERM),
    ("scratch", "remove", signal.SIGHUP),
    ("lock", "release", signal.SIGINT),
    ("ending", "conclude", signal.SIGTERM),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("state", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return tmp_path


def run(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=place, capture_output=True, text=True, timeout=HANG_S, env=dict(os.environ)
    )


def state() -> str:
    ((record,), _) = records.find_all()
    return record.state


@pytest.mark.parametrize(("where", "what", "number"), MOMENTS)
def test_a_job_that_is_complete_stays_so(place: Path, where: str, what: str, number: signal.Signals) -> None:
    (place / "train.py").write_text("print('trained')\n")
    command = ("run", "train.py", "--name", "job", "--storage", "store")
    done = run(place, "-c", STRUCK, where, what, str(int(number)), *command)
    assert (done.returncode, state()) == (contract.CLI_OK, "Complete"), done.stderr
    assert "job completed in" in done.stderr
    assert not list((place / "tmp").iterdir())
    assert [path.suffix for path in (place / "store/default/job/output").iterdir()] == [".gz"]


WAITED_FOR = """
import os, signal, sys, threading
from trainjob.cli.main import main
from trainjob.trackers.tracker import Tracker

def after_run(self, run_context, error):
    assert error is None
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()

Tracker.after_run = after_run
sys.exit(main(sys.argv[1:]))
"""


def test_a_tracker_that_is_waited_for_is_left_at_ctrl_c_and_the_job_complete(place: Path) -> None:
    (place / "train.py").write_text("import trainjob\ntrainjob.report({'loss': 1.0})\n")
    done = run(place, "-c", WAITED_FOR, "run", "train.py", "--name", "job", "--storage", "store", "--track", "csv")
    assert (done.returncode, state()) == (contract.CLI_OK, "Complete"), done.stderr
    assert "job completed in" in done.stderr


OWN = """
import os, signal, sys
from trainjob.launch import job as jobs
from trainjob.launch.local import scratch
from trainjob.launch.local.backend import run_job

def own(number, frame):
    print("own handler", os.listdir(os.environ["TMPDIR"]))

def struck(self):
    os.kill(os.getpid(), signal.SIGTERM)
    remove(self)

signal.signal(signal.SIGTERM, own)
remove, scratch.Scratch.remove = scratch.Scratch.remove, struck
command = (sys.executable, "train.py")
outcome = run_job(jobs.from_script(jobs.ScriptJob(command=command, name="job", storage=os.path.abspath("store"))))
print(outcome.job.status.phase, outcome.interrupted, signal.getsignal(signal.SIGTERM) is own)
"""


def test_a_handler_of_the_callers_own_is_called_when_nothing_is_left(place: Path) -> None:
    (place / "train.py").write_text("print('trained')\n")
    done = run(place, "-c", OWN)
    assert done.stdout.splitlines() == ["own handler []", "Complete False True"], done.stderr
