"""66 scripts that use Ray Train as its guides and docstrings (2.60) do. They were written for this project after the
behaviours of Ray's API and are no copies. `tj migrate` rewrites their imports: then 58 run, and the other eight are
refused in a sentence that says what to do instead.

Data is made up and small, models are tiny, `use_gpu=False`. A script that is refused begins with what the refusal says:
`# expect:` where `tj migrate` says so too, `# expect when run:` where only the run can; one that needs a library that
may be missing begins with `# needs:`. `make test` runs only those whose imports are refused: all others start ranks,
which takes a quarter of an hour (`make ray-examples`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.patience import HANG_S
from trainjob.cli.main import main
from trainjob_api.contract import CLI_ERROR, CLI_OK

FOLDER = Path(__file__).parent / "ray_examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
EXPECT = re.compile(r"# expect(?P<late> when run)?: (?P<said>.+)")
NEEDS = re.compile(r"# needs: (\w+)")
AT_IMPORT = ("40", "59", "61", "63", "64")
EVERY = os.environ.get("TRAINJOB_TEST_EVERY_RAY_EXAMPLE") == "1"


def expected(example: Path) -> re.Match[str] | None:
    """What the refusal says, and when; None: it runs."""
    return EXPECT.match(example.read_text(encoding="utf-8").splitlines()[0])


def test_most_run_and_the_others_say_what_to_do() -> None:
    refused = [example for example in EXAMPLES if expected(example)]
    assert (len(EXAMPLES), len(refused)) == (66, 8)
    assert {example.stem[:2] for example in refused} >= set(AT_IMPORT)


@pytest.mark.slow
@pytest.mark.parametrize(
    "example", [one for one in EXAMPLES if EVERY or one.stem.startswith(AT_IMPORT)], ids=lambda example: example.stem
)
def test_an_example_of_ray_train(example: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs = NEEDS.match(example.read_text(encoding="utf-8"))
    if needs is not None and find_spec(needs[1]) is None:
        pytest.skip(f"{needs[1]} is not installed: make test-frameworks")
    script = tmp_path / "main.py"
    script.write_text(example.read_text(encoding="utf-8"), encoding="utf-8")
    refusal = expected(example)
    foreseen = refusal is not None and refusal["late"] is None
    assert main(["migrate", str(script), "--write"]) == (CLI_ERROR if foreseen else CLI_OK)
    assert "trainjob" in script.read_text(encoding="utf-8"), capsys.readouterr()
    roots = [entry for entry in sys.path if entry.endswith(("/operator", "/worker-image"))]
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    (tmp_path / "home").mkdir()
    environment = {**os.environ, "HOME": str(tmp_path / "home"), "PYTHONPATH": os.pathsep.join([*roots, *given])}
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=tmp_path,
        env={**environment, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert (done.returncode == 0) == (refusal is None), done.stdout
    assert refusal is None or refusal["said"] in done.stdout, done.stdout
