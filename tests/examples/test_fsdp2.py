"""The FSDP2 example as examples/fsdp2/README.md tells it: stopped with Ctrl-C, it goes on at another number of ranks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.patience import HANG_S
from support.torch_release import needs_mean_of_shards

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")]

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "fsdp2" / "train.py"


def start(store: Path, workers: int, steps: int) -> subprocess.Popen[str]:
    words = [
        sys.executable,
        "-m",
        "trainjob.cli",
        "run",
        str(SCRIPT),
        "--workers",
        str(workers),
        "--name",
        "letters",
        "--storage",
        str(store),
        "--plain",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(store.parent)}
    command = [*words, "--", "--steps", str(steps), "--save-every", "2", "--batch-size", "8"]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def losses(text: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+): loss (\d+\.\d+)", text)}


def test_two_ranks_save_and_one_goes_on(tmp_path: Path) -> None:
    needs_mean_of_shards()
    store = tmp_path / "checkpoints"
    job = start(store, workers=2, steps=1000)
    assert job.stdout is not None
    before = ""
    for line in job.stdout:
        before += line
        if "step 4: loss" in line:
            job.send_signal(signal.SIGINT)
    assert job.wait(HANG_S) == 130, before
    job.stdout.close()

    stopped = max(losses(before))
    after, _ = start(store, workers=1, steps=stopped + 4).communicate(timeout=HANG_S)
    found = re.search(r"rank 0 of 1: from step (\d+), saved by 2 ranks", after)
    assert found is not None, after
    assert stopped <= int(found[1]) <= stopped + 2  # what rank 0 printed was saved; the next may have been
    assert "completed" in after and "Warning" not in before + after
    assert losses(after)[stopped + 4] < losses(before)[2] - 0.2  # it has learned, and nothing of that was lost
