"""The example runs in each form that examples/digits/README.md and docs/quickstart.md name. The demo is a
command of its own: `make demo`, whose word `.ci/run` checks.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import HANG_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples" / "digits"


def run(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(home)}
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANG_S
    )


def test_the_trainer_form(tmp_path: Path) -> None:
    done = run(str(DIGITS / "trainer.py"), home=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"^accuracy (\d\.\d+)$", done.stdout, re.MULTILINE)
    assert found is not None and float(found[1]) >= 0.95
    best = re.search(r"^best checkpoint: \S+ with accuracy (\d\.\d+)$", done.stdout, re.MULTILINE)
    assert best is not None and float(best[1]) >= float(found[1]), "the best one, not the latest"
    assert (tmp_path / "trainjob_results").is_dir()


def test_the_manifest_form(tmp_path: Path) -> None:
    store = tmp_path / "checkpoints"
    done = run(
        "-m",
        "trainjob.cli",
        "run",
        "-f",
        str(DIGITS / "trainjob.yaml"),
        "--local",
        "--storage",
        str(store),
        home=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kept = [
        folder for folder in (store / "default" / "digits" / "checkpoints").iterdir() if (folder / "state.pt").exists()
    ]
    assert len(kept) == 2
