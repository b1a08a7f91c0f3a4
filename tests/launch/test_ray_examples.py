"""The 66 examples of Ray Train's guides and docstrings (2.60), written down after them, with their imports rewritten by
`tj migrate`: 56 run, and the other ten are refused in a sentence that says what to do instead.

Data is made up and small, models are tiny, `use_gpu=False`; where a guide says `...` there is the least that runs.
`# expect:` stands on top of those that are refused. `make test` runs only those whose imports are refused: all others start
ranks, which takes a quarter of an hour (`make ray-examples`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainjob.cli.main import main

FOLDER = Path(__file__).parent / "ray_examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
EXPECT = "# expect: "
AT_IMPORT = ("40", "59", "60", "61", "63", "64")
EVERY = os.environ.get("TRAINJOB_TEST_EVERY_RAY_EXAMPLE") == "1"
TIMEOUT_S = 170


def expected(example: Path) -> str | None:
    """What the refusal says; None: it runs."""
    first = example.read_text(encoding="utf-8").splitlines()[0]
    return first.removeprefix(EXPECT).strip() if first.startswith(EXPECT) else None


def test_most_run_and_the_others_say_what_to_do() -> None:
    refused = [example for example in EXAMPLES if expected(example)]
    assert (len(EXAMPLES), len(refused)) == (66, 10)
    assert {example.stem[:2] for example in refused} >= set(AT_IMPORT)


@pytest.mark.slow
@pytest.mark.parametrize(
    "example", [one for one in EXAMPLES if EVERY or one.stem.startswith(AT_IMPORT)], ids=lambda example: example.stem
)
def test_an_example_of_ray_train(example: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "main.py"
    script.write_text(example.read_text(encoding="utf-8"), encoding="utf-8")
    main(["migrate", str(script), "--write"])
    assert "trainjob" in script.read_text(encoding="utf-8"), capsys.readouterr()
    roots = [entry for entry in sys.path if entry.endswith(("/operator", "/worker-image"))]
    (tmp_path / "home").mkdir()
    environment = {**os.environ, "HOME": str(tmp_path / "home"), "PYTHONPATH": os.pathsep.join(roots)}
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=tmp_path,
        env={**environment, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    refusal = expected(example)
    assert (done.returncode == 0) == (refusal is None), done.stdout
    assert refusal is None or refusal in done.stdout.strip().splitlines()[-1] or "no counterpart" in done.stdout
