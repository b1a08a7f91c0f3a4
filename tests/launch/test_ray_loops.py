"""Loops as people write them for Ray Train run with only their imports changed. Each script asserts its own results."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.warm_scripts import WarmScripts

FOLDER = Path(__file__).parent / "ray_loops"
NEEDS = {"with_lightning": ("pytorch_lightning",), "with_transformers": ("transformers", "accelerate")}


@pytest.fixture(scope="module")
def scripts() -> Iterator[WarmScripts]:
    with WarmScripts("torch") as made:
        yield made


@pytest.mark.slow
@pytest.mark.xdist_group("ray-loops")
@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_a_ray_train_loop_runs(name: str, tmp_path: Path, scripts: WarmScripts) -> None:
    for needed in NEEDS.get(name, ()):
        if find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    roots = [entry for entry in sys.path if entry.endswith(("/operator", "/worker-image"))]
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(roots), "OMP_NUM_THREADS": "1"}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path / "inductor")  # torch's own, which it leaves in TMPDIR
    done = scripts.run(FOLDER / f"{name}.py", [str(tmp_path / "results")], environment, tmp_path)
    assert done.code == 0, done.out + done.err
    assert list(temporary.iterdir()) == []


def test_there_are_ten_of_them() -> None:
    assert len(list(FOLDER.glob("*.py"))) >= 10
