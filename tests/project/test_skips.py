"""What a run did not try is counted by reason at its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support import skips

TESTS = """
import pytest
@pytest.mark.skip(reason="no GPU")
@pytest.mark.parametrize("n", range(3))
def test_one(n): pass
def test_other(): pytest.skip("no cluster")
def test_done(): pass
"""


def test_reasons_are_counted() -> None:
    assert skips.told([]) == []
    assert skips.told(["b", "Skipped: a", "a"]) == ["3 skipped:", "     2  a", "     1  b"]


def test_a_run_ends_with_them(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    (tmp_path / "test_some.py").write_text(TESTS)
    words = ["-m", "pytest", "-n", "2", "-p", "no:cacheprovider", "-c", str(root.parent / "pyproject.toml")]
    words += ["--confcutdir", str(tmp_path), "-p", "conftest", str(tmp_path)]
    ran = subprocess.run([sys.executable, *words], cwd=root, capture_output=True, text=True, env=None, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "4 skipped:\n     3  no GPU\n     1  no cluster\n" in ran.stdout
