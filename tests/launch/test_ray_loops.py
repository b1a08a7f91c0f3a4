"""Loops as people write them for Ray Train run with only their imports changed. Each script asserts its own results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import HANG_S

FOLDER = Path(__file__).parent / "ray_loops"
NEEDS = {"with_lightning": ("pytorch_lightning",), "with_transformers": ("transformers", "accelerate")}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_a_ray_train_loop_runs(name: str, tmp_path: Path) -> None:
    for needed in NEEDS.get(name, ()):
        pytest.importorskip(needed)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    roots = [entry for entry in sys.path if entry.endswith(("/operator", "/worker-image"))]
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(roots), "OMP_NUM_THREADS": "1"}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path / "inductor")  # torch's own, which it leaves in TMPDIR
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), str(tmp_path / "results")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(temporary.iterdir()) == []


def test_there_are_ten_of_them() -> None:
    assert len(list(FOLDER.glob("*.py"))) >= 10
