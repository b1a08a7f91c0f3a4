"""The ranks of a trainer import what the launcher imported, wherever it was started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import HANG_S

MAIN = """
import os, sys
from helper import train
from trainjob import RunConfig, ScalingConfig, TorchTrainer

if __name__ == "__main__":
    run = RunConfig(name="paths", storage_path=sys.argv[1])
    print("came back:", TorchTrainer(train, scaling_config=ScalingConfig(num_workers=1), run_config=run).fit().return_value)
"""
HELPER = """
def train():
    import late
    return f"{__file__} {late.__file__}"
"""


@pytest.mark.slow
def test_a_module_of_the_current_folder_does_not_hide_the_launchers(tmp_path: Path) -> None:
    right, wrong = tmp_path / "project", tmp_path / "elsewhere"
    for folder in (right, wrong):
        folder.mkdir()
        (folder / "helper.py").write_text(HELPER)
        (folder / "late.py").write_text("")
    (right / "main.py").write_text(MAIN)
    roots = [entry for entry in sys.path if entry.endswith(("/operator", "/worker-image"))]
    done = subprocess.run(
        [sys.executable, str(right / "main.py"), str(tmp_path / "results")],
        cwd=wrong,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(roots), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert f"came back: {right}/helper.py {right}/late.py" in done.stdout, done.stdout + done.stderr
