"""examples/torchrun: a script that knows nothing of TrainJob comes to the same numbers with a killed rank as without. For
docs/frameworks.md.
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from support.isolation import ROOT
from support.patience import HANG_S
from support.spoken import said

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.timeout(2 * HANG_S + 30),
]
FOLDER = ROOT / "examples" / "torchrun"
STRIKE = """
import os, runpy, signal, sys, torch

plain, count = torch.save, 0

def save(*given, **named):
    global count
    count += 1
    if count == 3 and os.environ["TRAINJOB_ATTEMPT"] == "1" and os.environ["STRIKE"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    plain(*given, **named)

torch.save = save
# Gloo's threads come late, as on a busy machine: what they drop at the script's end, they drop amid Python's.
sys.setswitchinterval(1000)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def losses(here: Path, *, strike: bool) -> tuple[dict[int, str], str]:
    """Of the example's manifest, whose script runs with few steps; and what was shown."""
    here.mkdir()
    (here / "strike.py").write_text(STRIKE)
    job = yaml.safe_load((FOLDER / "trainjob.yaml").read_text(encoding="utf-8"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    torchrun, *options, script = container["command"]
    assert torchrun == "torchrun"
    words = [sys.executable, "-m", "torch.distributed.run", *options, "strike.py", str(ROOT / script)]
    container["command"] = ["env", f"STRIKE={int(strike)}", *words, "--steps", "20", "--save-every", "4"]
    (here / "job.yaml").write_text(yaml.safe_dump(job))
    run = ["-m", "trainjob.cli.main", "run", "-f", "job.yaml", "--local", "--storage", "."]
    shown = said(run, here, limit_s=HANG_S, OMP_NUM_THREADS="1")
    return {int(step): loss for step, loss in re.findall(r"step (\d+): loss (\S+)", shown)}, shown


def test_a_killed_rank_changes_no_number(tmp_path: Path) -> None:
    expected, _ = losses(tmp_path / "undisturbed", strike=False)
    found, shown = losses(tmp_path / "struck", strike=True)
    assert "2 attempts" in shown, shown
    assert len(re.findall(r"step 8: loss", shown)) == 1, "it continued, and did not begin again"
    assert sorted(expected) == [4, 8, 12, 16, 20] and found == expected
