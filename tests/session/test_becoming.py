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
