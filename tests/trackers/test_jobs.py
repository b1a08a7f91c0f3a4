"""Trackers of whole jobs: a killed rank's steps are done again, and the tracker has each of them once."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from support.spoken import said

LIMIT_S = 400
LOOP = """
import os, signal, sys
import trainjob
from trainjob import Checkpoint

def train(config):
    context = trainjob.get_context()
    found = trainjob.get_checkpoint()
    start = 0 if found is None else found.to_dict()["step"]
    for step in range(start + 1, 7):
        if (context.rank, context.attempt, step) == (1, 1, 5):
            os.kill(os.getpid(), signal.SIGKILL)
        kept = Checkpoint.from_dict({"step": step}) if step == 2 else None
        trainjob.report({"loss": config["scale"] / step, "deep": {"accuracy": 0.5}}, checkpoint=kept, step=10 * step)
"""
FUNCTION = (
    LOOP
    + """
from trainjob import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig
from trainjob.trackers import CSVLogger, TensorBoardLogger, Tracker

class Failing(Tracker):
    def write(self, reports):
        raise ConnectionError("the server is away")

if __name__ == "__main__":
    DataParallelTrainer(
        train,
        train_loop_config={"scale": 60.0},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="job", storage_path=".", failure_config=FailureConfig(max_failures=1),
            callbacks=[Failing(), CSVLogger(), TensorBoardLogger()],
        ),
    ).fit()
"""
)
SCRIPT = LOOP + '\nif __name__ == "__main__":\n    train({"scale": 60.0})\n'


def table(path: Path) -> list[tuple[str, ...]]:
    with open(path, newline="", encoding="utf-8") as file:
        return [
            (row["report"], row["step"], row["loss"], row["deep.accuracy"], row["attempt"])
            for row in csv.DictReader(file)
        ]


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.parametrize("way", ["a function", "a script"])
def test_one_line_a_step_whatever_breaks(tmp_path: Path, way: str) -> None:
    (tmp_path / "main.py").write_text(FUNCTION if way == "a function" else SCRIPT)
    run = ["-m", "trainjob.cli.main", "run", "main.py", "--workers", "2", "--name", "job", "--storage", "."]
    words = ["main.py"] if way == "a function" else [*run, "--track", "csv", "--track", "tensorboard"]
    shown = said(words, tmp_path, limit_s=LIMIT_S)
    job = tmp_path / "default" / "job"
    assert table(job / "metrics.csv") == [
        (str(n), str(10 * n), str(60.0 / n), "0.5", "1" if n <= 2 else "2") for n in range(1, 7)
    ], shown
    assert len(list((job / "tensorboard").iterdir())) == 1, "one run across attempts"
    if way == "a function":
        assert shown.count("Failing: ConnectionError: the server is away") == 1
        assert "reports did not reach it" in shown


def test_a_tracker_that_does_not_exist_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"there is no tracker 'comet'"):
        said(["-m", "trainjob.cli.main", "run", "x.py", "--track", "comet"], tmp_path, limit_s=LIMIT_S)


BESIDE_AGENTS = (
    LOOP.replace("os.kill(os.getpid(), signal.SIGKILL)", "told(2); os.kill(victim(), signal.SIGKILL)")
    .replace(
        "def train(config):",
        """
import glob, json, time

def victim():
    return os.getppid() if os.environ["VICTIM"] == "agent" else os.getpid()

def told(position):
    while not any(json.loads(row).get("position") == position for row in rows()):
        time.sleep(0.01)

def rows():
    return [row for name in glob.glob("storage/default/job/history/*") for row in open(name)]

def recorded(position):
    while [turn["recorded"] for turn in turns()].count([1, 2, position]) < 2:
        time.sleep(0.01)

def turns():
    return [json.load(open(name)) for name in glob.glob("storage/default/job/trackers/*/*.state.json")]

def train(config):""",
    )
    .replace("(1, 1, 5)", "(0, 1, 5)")
    .replace(
        "        kept = ",
        "        if (context.rank, context.attempt, step) == (0, 2, 6):\n            recorded(5)\n        kept = ",
    )
    + '\ntrain({"scale": 60.0})\n'
)
"""Rank 0, or its agent, is killed at the fifth step, once the history of those before the checkpoint is stored: an agent
that is killed takes a second of it along. The last step waits for both trackers: their process, behind all others on
these cores, has a time of its own for what comes then, and a busy machine takes minutes to start it.
"""


def of_manifest(folder: Path, tracking: list[str], victim: str) -> str:
    """What is said of a job whose manifest names trackers."""
    (folder / "main.py").write_text(BESIDE_AGENTS)
    container = {
        "name": "trainer",
        "image": "local",
        "command": [sys.executable, str(folder / "main.py")],
        "env": [{"name": "VICTIM", "value": victim}],
    }
    spec = {
        "workers": 2,
        "tracking": tracking,
        "checkpoint": {"storage": str(folder / "storage")},
        "failurePolicy": {"maxFailures": 2},
        "template": {"spec": {"containers": [container]}},
    }
    document = {
        "apiVersion": "trainjob.dev/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "job"},
        "spec": spec,
    }
    (folder / "job.yaml").write_text(json.dumps(document))
    words = ["-m", "trainjob.cli.main", "run", "-f", "job.yaml", "--local", "--plain"]
    return said(words, folder, limit_s=LIMIT_S)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.parametrize("victim", ["rank", "agent"])
def test_trackers_of_a_manifest_are_fed_beside_rank_0s_agent_wherever_that_is(tmp_path: Path, victim: str) -> None:
    events = tmp_path / "events"
    shown = of_manifest(tmp_path, ["csv", f"tensorboard={events}"], victim)
    job = tmp_path / "storage" / "default" / "job"
    rows = table(job / "metrics.csv")
    assert [row[:-1] for row in rows] == [(str(n), str(10 * n), str(60.0 / n), "0.5") for n in range(1, 7)], shown
    # What a killed agent had staged may be gone with it.
    assert [row[-1] for row in rows[2:]] == ["2"] * 4 and {row[-1] for row in rows[:2]} <= {"1", "2"}, shown
    assert list(events.iterdir())
    for turns in (job / "trackers").iterdir():
        newest = max(turns.glob("*.state.json"), key=lambda path: int(path.name.split(".")[0]))
        assert json.loads(newest.read_text()) == {"began": True, "left": True, "recorded": [1, 2, 6]}
