"""`fit()` in a notebook: what its cell shows while the job runs, and keeps. IPython is the real one; its shell has the
name of a kernel's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import HANG_S

CELL = """
import json, sys
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

class ZMQInteractiveShell(InteractiveShell):
    pass

shell = ZMQInteractiveShell.instance()
shell.display_pub = publisher = CapturingDisplayPublisher()
from IPython import get_ipython
import IPython
IPython.get_ipython = lambda: shell

import trainjob
from trainjob import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from trainjob.launch import DataParallelTrainer

def train(config):
    import os, signal
    found = trainjob.get_checkpoint()
    for epoch in range(found.to_dict()["epoch"] + 1 if found else 0, 4):
        if epoch == 2 and config["dies"] and found is None:
            os.kill(os.getpid(), signal.SIGKILL)
        trainjob.report({"<b>loss": 0.5}, checkpoint=Checkpoint.from_dict({"epoch": epoch}), step=epoch + 1, total_steps=4)
    print("trained")

workers, verbose, storage = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
result = DataParallelTrainer(
    train,
    train_loop_config={"dies": workers > 0},
    scaling_config=ScalingConfig(num_workers=workers),
    run_config=RunConfig(name="digits", storage_path=storage, verbose=verbose, failure_config=FailureConfig(max_failures=1)),
).fit()
assert result.metrics["<b>loss"] == 0.5
with open(sys.argv[4], "w") as file:
    json.dump([{"data": one["data"], "update": one["update"], "id": one["transient"].get("display_id")} for one in publisher.outputs], file)
"""


def run(tmp_path: Path, workers: int, verbose: int | None) -> tuple[list[dict[str, object]], str, str]:
    """The outputs of the cell, and what it wrote to stdout and stderr."""
    script, outputs = tmp_path / "cell.py", tmp_path / "outputs.json"
    script.write_text(CELL)
    command = [sys.executable, str(script), str(workers), json.dumps(verbose), str(tmp_path / "runs"), str(outputs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(outputs.read_text()), done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_the_cell_has_one_view_which_ends_with_the_last_state(tmp_path: Path, workers: int) -> None:
    shown, out, err = run(tmp_path, workers, None)
    first, *later = shown
    assert first["update"] is False
    assert later and all(one["update"] for one in later), "one output, drawn anew"
    assert len({one["id"] for one in shown}) == 1
    last = later[-1]["data"]["text/html"]
    for words in ("digits", "Complete", "step 4/4 (100%)", "&lt;b&gt;loss=0.5", "complete"):
        assert words in last
    assert "<b>loss" not in last
    assert ("KilledBySignal" in last and "last failure: attempt 1" in last) is (workers > 0)
    assert "trained" in out, "the workers' lines are below it"
    assert "tj  |" not in err and "digits: " not in err, "said in the view, and there alone"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_verbose_0_shows_no_view(tmp_path: Path, workers: int) -> None:
    shown, out, _ = run(tmp_path, workers, 0)
    assert shown == []
    assert "trained" in out
