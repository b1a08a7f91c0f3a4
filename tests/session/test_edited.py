"""Modules that were edited since they were imported, wherever they lie and however they are found there."""

from __future__ import annotations

import importlib
import os
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainjob.session.warm import unchanged


@pytest.fixture(autouse=True)
def _own() -> Iterator[None]:
    """`own` can be imported anew."""
    yield
    sys.modules.pop("own", None)
    importlib.invalidate_caches()


def _edited_after(module: str, monkeypatch: pytest.MonkeyPatch, path: Path | str, edit: Path) -> str | None:
    """What is said of `module`, which is found in `path`, when `edit` has been written to since."""
    monkeypatch.setattr(unchanged, "_modules", lambda: iter([sys.modules[module].__dict__["__file__"]]))
    monkeypatch.syspath_prepend(path)
    importlib.import_module(module)
    before = unchanged.Edited(time.time_ns() + 10**9)
    assert before.changed() is None
    edit.write_bytes(edit.read_bytes() + b"\n")
    return before.changed()


@pytest.mark.parametrize("link", ["package", "module"])
def test_a_project_that_is_installed_as_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str) -> None:
    """As `flit install --symlink` does it: what is imported has a path among what is installed."""
    (tmp_path / "site-packages").mkdir()
    name, file = ("own", "own/__init__.py") if link == "package" else ("own.py", "own.py")
    (tmp_path / "project" / file).parent.mkdir(parents=True)
    (tmp_path / "project" / file).write_text("")
    (tmp_path / "site-packages" / name).symlink_to(tmp_path / "project" / name)
    why = _edited_after("own", monkeypatch, tmp_path / "site-packages", tmp_path / "project" / file)
    assert why == f"{tmp_path / 'site-packages' / file} has changed since it was imported"


@pytest.mark.parametrize("inside", ["", "python"])
def test_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str) -> None:
    """Spark's lie in a folder of one."""
    archive = tmp_path / "own.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(os.path.join(inside, "own.py"), "")
    why = _edited_after("own", monkeypatch, os.path.join(archive, inside).rstrip("/"), archive)
    assert why == f"{archive} has changed since it was imported"


def test_a_file_system_of_whole_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Lustre: what was edited after the imports had begun has a time from before."""
    second = time.time_ns() // 10**9 * 10**9
    (tmp_path / "own.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("own")
    own = str(tmp_path / "own.py")
    plain = unchanged._state
    monkeypatch.setattr(unchanged, "_state", lambda path: (1, 1, second, second) if path == own else plain(path))
    assert unchanged.Edited(second + 600 * 10**6).changed() == f"{own} was changed while it was imported"
    assert unchanged.Edited(second + 1600 * 10**6).changed() is None
