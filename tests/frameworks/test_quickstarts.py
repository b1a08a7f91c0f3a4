"""What a framework's first script becomes: `before.py` runs by itself, `after.py` on two ranks with checkpoints, and few
lines differ. Each is what the framework's own first page shows, with data made on the spot.
"""

from __future__ import annotations

import difflib
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.spoken import said
from trainjob import Result

FOLDER = Path(__file__).with_name("quickstarts")
MOST = 4
LIMIT_S = 500
LINES = {"lightning": 3, "transformers": 2, "xgboost": 4, "lightgbm": 4}
"""As docs/frameworks.md says them."""


def changed(name: str) -> int:
    """Lines of `after.py` that are new or another; how far they are indented, and empty ones, do not count."""
    before, after = (
        [line.strip() for line in (FOLDER / name / file).read_text(encoding="utf-8").splitlines() if line.strip()]
        for file in ("before.py", "after.py")
    )
    kept = sum(block.size for block in difflib.SequenceMatcher(None, before, after).get_matching_blocks())
    return len(after) - kept


@pytest.mark.parametrize("name", LINES)
def test_few_lines_change(name: str) -> None:
    assert changed(name) == LINES[name] <= MOST


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT_S + 30)
@pytest.mark.parametrize("name", LINES)
def test_both_run(tmp_path: Path, name: str) -> None:
    library = {"transformers": "accelerate"}.get(name, name)
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed: make test-frameworks")
    said([str(FOLDER / name / "before.py")], tmp_path, limit_s=LIMIT_S)
    job = ["--workers", "2", "--name", "job", "--storage", str(tmp_path), "--prefork", "Never"]
    said(["-m", "trainjob.cli.main", "run", str(FOLDER / name / "after.py"), *job], tmp_path, limit_s=LIMIT_S)
    assert Result.from_path(str(tmp_path / "default" / "job")).checkpoint is not None
