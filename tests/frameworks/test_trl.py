"""examples/trl with the real libraries, as docs/frameworks.md runs it: fine-tuning with LoRA, and a rank that is killed."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support.isolation import ROOT
from support.spoken import said
from trainjob import Result

STRUCK = str(Path(__file__).with_name("struck.py"))
EXAMPLE = str(ROOT / "examples" / "trl" / "train.py")
STEPS = ("--steps", "12", "--save-every", "3", "--output", "out")
LIMIT_S = 500
OTHERWISE = re.compile("runtime|_per_second|^num_tokens$")
"""How long things took; trl counts tokens anew after each start."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * LIMIT_S + 30),
    pytest.mark.skipif(find_spec("trl") is None, reason="trl is not installed: make test-frameworks"),
]


def run(here: Path, name: str, *words: str) -> str:
    """What is shown."""
    job = ["--workers", "2", "--name", name, "--storage", str(here), "--prefork", "Never"]
    return said(["-m", "trainjob.cli.main", "run", words[0], *job, "--", *words[1:]], here, limit_s=LIMIT_S)


def numbers(here: Path, name: str) -> dict[int, dict[str, Any]]:
    """What was reported at each step at last."""
    rows = Result.from_path(str(here / "default" / name)).rows
    return {row["step"]: {key: it for key, it in row["metrics"].items() if not OTHERWISE.search(key)} for row in rows}


def test_an_adapter_goes_on_at_the_next_step_with_the_same_numbers(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "struck").mkdir()
    run(tmp_path / "plain", "job", EXAMPLE, *STEPS)
    # Rank 1 is gone before its second report: step 6 is done again.
    shown = run(tmp_path / "struck", "job", STRUCK, "2", EXAMPLE, *STEPS)
    assert "attempt 2 resumes from checkpoint 1-1-1" in shown, shown
    expected = numbers(tmp_path / "plain", "job")
    assert sorted(expected) == [3, 6, 9, 12]
    assert expected[12]["loss"] < expected[3]["loss"] and expected[12]["mean_token_accuracy"] > 0
    assert numbers(tmp_path / "struck", "job") == expected
    rows = Result.from_path(str(tmp_path / "struck" / "default" / "job")).rows
    assert min(row["step"] for row in rows if row["attempt"] == 2) == 6, "it continued, and did not begin again"

    newest = Result.from_path(str(tmp_path / "struck" / "default" / "job")).checkpoint
    assert newest is not None
    weights = [Path(file).name for file in newest.files() if file.endswith((".safetensors", ".bin"))]
    assert sorted(weights) == ["adapter_model.safetensors", "training_args.bin"], "the model itself is not saved"
