"""examples/gpt/train.py: tensor parallel x data parallel at four ranks, one of which is killed; resumed at two, then at
eight. Its losses are those of two ranks that nothing happened to. For docs/frameworks.md.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.isolation import ROOT
from support.patience import HANG_S
from support.spoken import said
from support.torch_release import needs_mean_of_shards
from trainjob import Result

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")]

SCRIPT = str(ROOT / "examples" / "gpt" / "train.py")
STRUCK = str(ROOT / "tests" / "frameworks" / "struck.py")


def trained(here: Path, name: str, workers: int, steps: int, *, strike: int = 0, more: tuple[str, ...] = ()) -> str:
    words = ["run", STRUCK, "--workers", str(workers), "--name", name, "--storage", str(here), *more]
    script = ["--", str(strike), SCRIPT, "--steps", str(steps), "--save-every", "2"]
    return said(["-m", "trainjob.cli.main", *words, *script], here, limit_s=HANG_S, OMP_NUM_THREADS="1")


def losses(here: Path, name: str) -> dict[int, float]:
    return {row["step"]: row["metrics"]["loss"] for row in Result.from_path(str(here / "default" / name)).rows}


@pytest.mark.timeout(4 * HANG_S)
def test_a_mesh_goes_on_after_a_kill_and_at_other_sizes(tmp_path: Path) -> None:
    needs_mean_of_shards()
    shown = trained(tmp_path, "gpt", 4, 6, strike=3)
    assert re.search(r"attempt 2 resumes from checkpoint 1-1-2", shown), shown
    found = losses(tmp_path, "gpt")
    for workers, steps in ((2, 8), (8, 10)):
        trained(tmp_path, "gpt", workers, steps, more=("--resume-from", "gpt"))
        found |= losses(tmp_path, "gpt")
    trained(tmp_path, "undisturbed", 2, 10, more=("--prefork", "Never"))
    expected = losses(tmp_path, "undisturbed")
    assert sorted(found) == sorted(expected) == [2, 4, 6, 8, 10]
    # Sums over another number of ranks differ in their last bits.
    assert found == pytest.approx(expected, rel=1e-4)
