"""The examples with other people's training loops: real libraries, real ranks, one of which is killed.

An interrupted run reports the same numbers as an undisturbed one, bit for bit, and resumes: it does not begin again, nor
at three ranks. For
examples/lightning, examples/transformers, examples/accelerate, examples/sklearn, examples/jax, examples/tensorflow, examples/xgboost, examples/lightgbm and
docs/frameworks.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support.isolation import ROOT
from support.spoken import said
from trainjob import Result

STRUCK = Path(__file__).with_name("struck.py")
LIMIT_S = 500


@dataclass(frozen=True)
class Example:
    """An example, made small."""

    folder: str
    library: str
    arguments: tuple[str, ...]
    strike: int
    """The report before which rank 1 is killed."""
    last: int
    """The step of the last report."""
    last_at_three: int = 0
    """At three ranks, where it is another one: an epoch then has other batches."""


EXAMPLES = [
    # 2 epochs of 12 steps: reports at 10, 12 (an epoch's end), 20, 24; the third is inside the second epoch.
    Example("lightning", "lightning", ("--epochs", "2", "--points", "480"), strike=3, last=24),
    Example("transformers", "accelerate", ("--steps", "9", "--save-every", "3", "--output", "out"), strike=2, last=9),
    # 20 batches a rank, two a step: reports at 4, 8, 12, 16, 20; the epoch ends at 10.
    Example(
        "accelerate",
        "accelerate",
        ("--epochs", "2", "--rows", "80", "--save-every", "4"),
        strike=2,
        last=20,
        last_at_three=14,
    ),
    # 12 settings, two a report, and the model of the best one.
    Example("sklearn", "sklearn", ("300",), strike=3, last=13),
    Example("jax", "jax", ("--steps", "40", "--save-every", "10"), strike=3, last=40),
    Example("tensorflow", "tensorflow", ("--steps", "40", "--save-every", "10"), strike=3, last=40),
    Example("xgboost", "xgboost", ("--rounds", "15", "--rows", "400"), strike=2, last=15),
    Example("lightgbm", "lightgbm", ("--rounds", "15", "--rows", "400"), strike=2, last=15),
]


def trained(example: Example, here: Path, strike: int) -> tuple[Result, str]:
    """The job's result, and what was shown."""
    here.mkdir()
    script = ROOT / "examples" / example.folder / "train.py"
    words = ["run", str(STRUCK), "--workers", "2", "--name", "job", "--storage", str(here)]
    if not strike:
        words += ["--prefork", "Never"]  # no rank is started again: there is nobody to learn imports for
    words += ["--", str(strike), str(script), *example.arguments]
    shown = said(["-m", "trainjob.cli.main", *words], here, limit_s=LIMIT_S)
    return Result.from_path(str(here / "default" / "job")), shown


def numbers(result: Result) -> dict[int, dict[str, Any]]:
    """What was reported at each step at last; how long things took is left out."""
    return {
        row["step"]: {
            name: value for name, value in row["metrics"].items() if not re.search("runtime|_per_second", name)
        }
        for row in result.rows
    }


@pytest.mark.slow
@pytest.mark.timeout(3 * LIMIT_S + 30)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.folder)
def test_a_killed_rank_changes_no_number(example: Example, tmp_path: Path) -> None:
    if find_spec(example.library) is None:
        pytest.skip(f"{example.library} is not installed: make test-frameworks")
    undisturbed, _ = trained(example, tmp_path / "undisturbed", 0)
    struck, said = trained(example, tmp_path / "struck", example.strike)

    found = re.search(r"attempt 2 resumes from checkpoint 1-1-(\d+)", said)
    assert found is not None, said
    expected = numbers(undisturbed)
    resumed_at = [row["step"] for row in struck.rows if row["attempt"] == 1][int(found[1]) - 1]
    again = [row["step"] for row in struck.rows if row["attempt"] == 2]
    assert min(again) > resumed_at, "it continued, and did not begin again"
    assert max(expected) == example.last
    assert len(expected) >= 3
    assert numbers(struck) == expected
    if example.folder != "lightning":  # test_sharded has it, to the sample
        goes_on_at_three(example, tmp_path)


def goes_on_at_three(example: Example, here: Path) -> None:
    """From the first checkpoint of the undisturbed run of two ranks."""
    checkpoint = here / "undisturbed" / "default" / "job" / "checkpoints" / "1-1-1"
    words = ["run", str(ROOT / "examples" / example.folder / "train.py"), "--workers", "3", "--name", "three"]
    words += ["--storage", str(here), "--resume-from", str(checkpoint), "--max-failures", "0", "--prefork", "Never"]
    said(["-m", "trainjob.cli.main", *words, "--", *example.arguments], here, limit_s=LIMIT_S)
    begun = Result.from_path(str(here / "undisturbed" / "default" / "job")).rows[0]["step"]
    steps = list(numbers(Result.from_path(str(here / "default" / "three"))))
    assert min(steps, default=0) > begun, "it continued, and did not begin again"
    assert max(steps) == (example.last_at_three or example.last)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.parametrize("example", EXAMPLES[-2:], ids=lambda example: example.folder)
def test_a_rank_that_dies_behind_the_last_round_leaves_nothing_to_do(example: Example, tmp_path: Path) -> None:
    if find_spec(example.library) is None:
        pytest.skip(f"{example.library} is not installed: make test-frameworks")
    struck, said = trained(example, tmp_path / "struck", -3)
    assert "2 attempts" in said, said
    assert max(numbers(struck)) == example.last
