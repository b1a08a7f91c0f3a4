"""What a fork looks at before it becomes a rank, which waits for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from trainjob.session.warm import becoming


def test_only_modules_that_a_folder_could_hide_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "json.py").touch()
    asked: list[str] = []
    real = os.path.realpath

    def realpath(path: str) -> str:
        asked.append(path)
        return real(path)

    monkeypatch.setattr(os.path, "realpath", realpath)
    hidden = becoming._hidden_by(str(tmp_path), frozenset(sys.modules))
    assert hidden is not None and "json.py" in hidden
    assert asked == [sys.modules["json"].__file__, str(tmp_path / "json.py")]


@pytest.mark.parametrize("hides", ["json.py", "json.pyc", "json.abi3.so", "json/__init__.py", "json/__init__.pyc"])
def test_what_python_would_import_hides_a_module(tmp_path: Path, hides: str) -> None:
    (tmp_path / hides).parent.mkdir(exist_ok=True)
    (tmp_path / hides).touch()
    hidden = becoming._hidden_by(str(tmp_path), frozenset(["json"]))
    assert hidden == f"{tmp_path / hides.split('/')[0]} takes the place of a module that is imported ahead"


@pytest.mark.parametrize("hides", ["json.old.py", "json.txt", "json.cpython-25-x86_64-linux-gnu.so", "json/data.py"])
def test_what_it_would_not_hides_none(tmp_path: Path, hides: str) -> None:
    (tmp_path / hides).parent.mkdir(exist_ok=True)
    (tmp_path / hides).touch()
    assert becoming._hidden_by(str(tmp_path), frozenset(["json"])) is None
