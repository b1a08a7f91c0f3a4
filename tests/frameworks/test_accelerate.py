"""A script of Accelerate as it is: under its launcher, as a function, and where its ranks do not find each other.

For examples/accelerate and docs/frameworks.md; that a killed rank changes nothing is in test_examples.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support.isolation import ROOT
from support.spoken import said
from trainjob import Result

if find_spec("accelerate") is None:
    pytest.skip("accelerate is not installed", allow_module_level=True)

SCRIPT = ROOT / "examples" / "accelerate" / "train.py"
SMALL = ["--epochs", "2", "--rows", "80", "--save-every", "4"]
"""20 batches a rank in two epochs, two batches a step."""
LIMIT_S = 500

FUNCTION = f"""
import runpy
from trainjob import RunConfig, ScalingConfig, TorchTrainer
TorchTrainer(
    runpy.run_path({str(SCRIPT)!r})["train"],
    train_loop_config={{"epochs": 2, "rows": 80, "save_every": 4}},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name="job", storage_path=".", preload=["torch"]),  # and nothing is learned
).fit()
"""


def losses(here: Path) -> dict[int, float]:
    return {row["step"]: row["metrics"]["loss"] for row in Result.from_path(str(here / "default" / "job")).rows}


def manifest(command: list[str]) -> str:
    container = {"name": "trainer", "image": "none", "command": command}
    job: dict[str, Any] = {
        "apiVersion": "trainjob.dev/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "job"},
        "spec": {"workers": 2, "template": {"spec": {"containers": [container]}}},
    }
    return json.dumps(job)


@pytest.mark.slow
@pytest.mark.timeout(3 * LIMIT_S)
def test_under_its_launcher_and_as_a_function_it_comes_to_the_same_numbers(tmp_path: Path) -> None:
    launched, function = tmp_path / "launched", tmp_path / "function"
    for folder in (launched, function):
        folder.mkdir()
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", str(SCRIPT), *SMALL]
    (launched / "job.yaml").write_text(manifest(["sh", "-c", 'exec "$@"', "sh", *launcher]))
    said(["-m", "trainjob.cli.main", "run", "-f", "job.yaml", "--local", "--storage", "."], launched, limit_s=LIMIT_S)
    (function / "fit.py").write_text(FUNCTION)
    said(["fit.py"], function, limit_s=LIMIT_S)
    assert list(losses(launched)) == [4, 8, 12, 16, 20]
    assert losses(launched) == losses(function)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
def test_ranks_that_train_alone_are_told(tmp_path: Path) -> None:
    words = ["-m", "trainjob.cli.main", "run", str(SCRIPT), "--workers", "2", "--name", "job", "--storage", "."]
    told = said([*words, "--", *SMALL], tmp_path, limit_s=LIMIT_S, ACCELERATE_USE_CPU="false")
    assert told.count("The ranks train apart: this rank takes optimizer steps") == 1, told
    assert "in Accelerate: Accelerator(cpu=True) without GPUs" in told
