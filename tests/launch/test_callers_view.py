"""What ends a script that called `fit()` is printed with the script's own frames, and ours are nowhere in it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import HANG_S

TRAINING = """
import os, signal
from trainjob import DataParallelTrainer, RunConfig, ScalingConfig, TrainingFailedError, report

def deep(config):
    return config["absent"]

def breaks(config):
    deep(config)

def interrupted(config):
    os.kill(config["launcher"], signal.SIGINT)
    while True:
        report({"alive": 1})

def main(loop, workers):
    DataParallelTrainer(
        loop,
        train_loop_config={"launcher": os.getpid()},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(storage_path="results", verbose=0),
    ).fit()
"""


def _stderr(folder: Path, call: str) -> tuple[int, str]:
    (folder / "script.py").write_text(f"{TRAINING}\nif __name__ == '__main__':\n    {call}\n")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    return done.returncode, done.stderr


def _places(stderr: str) -> list[tuple[str, str]]:
    """(file, function) of each frame that the launcher printed."""
    return [
        (os.path.basename(file), function)
        for file, function in re.findall(r'^  File "([^"]+)", line \d+, in (.+)$', stderr, re.MULTILINE)
    ]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_failure_is_printed_with_the_frames_of_the_script_alone(tmp_path: Path, workers: int) -> None:
    code, said = _stderr(tmp_path, f"main(breaks, {workers})")
    assert code == 1
    callers = [("script.py", "<module>"), ("script.py", "main")]
    assert _places(said) == [*callers, ("script.py", "breaks"), ("script.py", "deep")]
    assert "KeyError: 'absent'" in said
    if workers:
        assert said.rstrip().splitlines()[-1].startswith("next: Fix ")


def test_ctrl_c_is_printed_with_the_frames_of_the_script_alone(tmp_path: Path) -> None:
    code, said = _stderr(tmp_path, "main(interrupted, 1)")
    assert code == -signal.SIGINT
    assert _places(said) == [("script.py", "<module>"), ("script.py", "main")]
    assert said.rstrip().splitlines()[-1] == "KeyboardInterrupt"


def test_a_failure_that_the_script_turns_into_another_is_printed_so_too(tmp_path: Path) -> None:
    call = """try:
        main(breaks, 1)
    except TrainingFailedError as error:
        raise ValueError("mine") from error"""
    _, said = _stderr(tmp_path, call)
    callers = [("script.py", "<module>"), ("script.py", "main")]
    ranks = [("script.py", "breaks"), ("script.py", "deep")]
    assert _places(said) == [*callers, *ranks, ("script.py", "<module>")]
    assert said.rstrip().splitlines()[-1] == "ValueError: mine"


def test_what_is_caught_is_as_it_was_raised_and_a_hook_of_the_script_is_called(tmp_path: Path) -> None:
    call = """import sys, traceback
    sys.excepthook = lambda kind, error, tb: print("own hook", len(traceback.extract_tb(tb)), file=sys.stderr)
    try:
        main(breaks, 1)
    except TrainingFailedError as error:
        print("caught", len(traceback.extract_tb(error.__traceback__)) > 2, file=sys.stderr)
        raise"""
    _, said = _stderr(tmp_path, call)
    assert said.splitlines()[-2:] == ["caught True", "own hook 2"]
