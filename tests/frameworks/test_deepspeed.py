"""examples/deepspeed with the real library, as docs/frameworks.md runs it: each ZeRO stage with a killed rank, other
numbers of ranks, and a lock file that a killed build has left.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.isolation import ROOT
from support.spoken import said
from trainjob import Result

STRUCK = str(Path(__file__).with_name("struck.py"))
EXAMPLE = str(ROOT / "examples" / "deepspeed" / "train.py")
LIMIT_S = 500
STEPS = ("--steps", "24", "--save-every", "6")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(4 * LIMIT_S + 30),
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed: make test-frameworks"),
]


def run(here: Path, name: str, *words: str, workers: int = 2, options: tuple[str, ...] = ()) -> str:
    """What is shown."""
    job = ["--workers", str(workers), "--name", name, "--storage", str(here), "--prefork", "Never", *options]
    return said(["-m", "trainjob.cli.main", "run", words[0], *job, "--", *words[1:]], here, limit_s=LIMIT_S)


def losses(here: Path, name: str) -> dict[int, float]:
    """What was reported at each step at last."""
    return {row["step"]: row["metrics"]["loss"] for row in Result.from_path(str(here / "default" / name)).rows}


@pytest.fixture(scope="module")
def stage_2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where an undisturbed run of stage 2 is. In its home is the lock of a killed build, at which DeepSpeed would wait
    without a word and without an end.
    """
    here = tmp_path_factory.mktemp("stage-2")
    operator = f"py{sys.version_info.major}{sys.version_info.minor}_cpu/deepspeed_shm_comm"
    folder = here / ".cache" / "torch_extensions" / operator
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    run(here, "plain", EXAMPLE, *STEPS, "--stage", "2")
    assert not list(here.rglob("build.ninja")), "nothing is compiled"
    assert sorted(losses(here, "plain")) == [6, 12, 18, 24]
    return here


def struck(here: Path, stage: str) -> dict[int, float]:
    """Of a run whose rank 1 is killed."""
    shown = run(here, "struck", STRUCK, "3", EXAMPLE, *STEPS, "--stage", stage)
    assert "attempt 2 resumes from checkpoint 1-1-2" in shown, shown
    return losses(here, "struck")


def goes_on(here: Path, saved: Path, stage: str, workers: int, expected: dict[int, float]) -> None:
    """At another number of ranks, from the checkpoint of step 12, to numbers that are the same but for rounding."""
    run(here, "other", EXAMPLE, *STEPS, "--stage", stage, workers=workers, options=("--resume-from", str(saved)))
    found = losses(here, "other")
    assert sorted(found) == [18, 24], "it continued, and did not begin again"
    assert found == pytest.approx({step: expected[step] for step in (18, 24)}, rel=1e-4)


@pytest.mark.parametrize("stage", ["1", "2"])
def test_a_killed_rank_changes_no_number(tmp_path: Path, stage_2: Path, stage: str) -> None:
    """Stage 1 computes what stage 2 does."""
    assert struck(tmp_path, stage) == losses(stage_2, "plain")


def test_two_ranks_checkpoint_goes_on_at_one(tmp_path: Path, stage_2: Path) -> None:
    saved = stage_2 / "default" / "plain" / "checkpoints" / "1-1-2"
    goes_on(tmp_path, saved, "2", 1, losses(stage_2, "plain"))


def test_stage_3_changes_no_number_either_and_goes_on_at_four(tmp_path: Path) -> None:
    run(tmp_path, "plain", EXAMPLE, *STEPS, "--stage", "3")
    expected = losses(tmp_path, "plain")
    assert struck(tmp_path, "3") == expected
    goes_on(tmp_path, tmp_path / "default" / "plain" / "checkpoints" / "1-1-2", "3", 4, expected)


BUILDS = """
import os
import deepspeed.ops.op_builder.builder as builder
seen = []
builder.OpBuilder.jit_load = lambda self: seen.append(os.environ["TORCH_EXTENSIONS_DIR"])
import trainjob.deepspeed
for attempt in ("1", "2"):
    os.environ.pop("TORCH_EXTENSIONS_DIR", None)
    os.environ["TRAINJOB_ATTEMPT"] = attempt
    builder.OpBuilder.jit_load(None)
os.environ["TORCH_EXTENSIONS_DIR"] = "/mine"
builder.OpBuilder.jit_load(None)
print("seen", len(set(seen[:2])), seen[2])
"""


def test_each_attempt_builds_in_a_folder_of_its_own(tmp_path: Path) -> None:
    assert "seen 2 /mine" in said(["-c", BUILDS], tmp_path, limit_s=LIMIT_S)
