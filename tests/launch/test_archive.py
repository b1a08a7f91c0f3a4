"""What travels of a folder, and what is refused."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from trainjob.launch.cluster import archive
from trainjob.launch.errors import LaunchError


def tree(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def names(folder: Path, *must: str) -> list[str]:
    return [file.name for file in archive.collect(str(folder), must)]


def test_caches_environments_and_hidden_folders_stay_here(tmp_path: Path) -> None:
    tree(
        tmp_path,
        "train.py",
        "lib/a.py",
        "lib/__pycache__/a.pyc",
        "b.pyc",
        ".venv/x.py",
        "env/pyvenv.cfg",
        "env/lib.py",
        ".hidden/x",
        "node_modules/x.js",
    )
    assert names(tmp_path) == ["lib/a.py", "train.py"]


@pytest.mark.parametrize("look", [1, 2])
def test_a_file_that_goes_while_it_is_looked_at_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    """As an editor's own files do."""
    tree(tmp_path, "train.py", "train.py~")
    real, left = os.stat, iter(range(1, 99))

    def watched(path: Any, *rest: Any, **more: Any) -> os.stat_result:
        if str(path).endswith("~") and next(left) == look:
            os.unlink(path)
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "stat", watched)
    assert "train.py" in names(tmp_path)


def test_tjignore(tmp_path: Path) -> None:
    tree(tmp_path, "train.py", "data/x.csv", "lib/data/y.csv", "lib/data.py", "runs/1/a", "keep/runs/b", "c.ckpt")
    (tmp_path / ".tjignore").write_text("data/\n\n# comment\n*.ckpt\nruns/1\n")
    assert names(tmp_path) == [".tjignore", "keep/runs/b", "lib/data.py", "train.py"]
    assert "c.ckpt" in names(tmp_path, "c.ckpt")


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_in_a_repository_git_decides(tmp_path: Path) -> None:
    tree(tmp_path, "train.py", "new.py", "out/model.bin", ".config/c.yaml", "gone.py")
    (tmp_path / ".gitignore").write_text("out/\n")
    for words in (["init", "-q"], ["add", "train.py", ".gitignore", "gone.py"]):
        subprocess.run(
            ["git", "-C", str(tmp_path), *words], check=True, env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
        )
    (tmp_path / "gone.py").unlink()
    assert names(tmp_path) == [".config/c.yaml", ".gitignore", "new.py", "train.py"]


def test_the_same_files_give_the_same_bytes_and_come_back(tmp_path: Path) -> None:
    tree(tmp_path, "train.py", "lib/a.py")
    (tmp_path / "run.sh").write_text("#!/bin/sh")
    (tmp_path / "run.sh").chmod(0o755)
    first = archive.pack(archive.collect(str(tmp_path)))
    os.utime(tmp_path / "train.py", (1, 1))
    assert archive.pack(archive.collect(str(tmp_path))) == first
    with tarfile.open(fileobj=io.BytesIO(first)) as packed:
        assert {entry.name: entry.mode for entry in packed} == {"lib/a.py": 0o644, "run.sh": 0o755, "train.py": 0o644}


def test_a_folder_of_data_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, "train.py", "small.bin")
    (tmp_path / "big.bin").write_bytes(b"\0" * 5000)
    monkeypatch.setattr(archive, "RAW_LIMIT", 4000)
    with pytest.raises(LaunchError, match=r"3 files of 5 KiB.*largest: big.bin \(5 KiB\)"):
        archive.collect(str(tmp_path))
    monkeypatch.setattr(archive, "FILES_LIMIT", 2)
    with pytest.raises(LaunchError, match="more than 2 files"):
        archive.collect(str(tmp_path))
