from __future__ import annotations

import gc
import os
import pickle
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from trainjob import Checkpoint
from trainjob.session.errors import CheckpointError


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`to_directory()` without a path makes a folder that its caller owns."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "ein Ordner ü"
    (path / "sub").mkdir(parents=True)
    (path / "model.pt").write_bytes(b"weights")
    (path / "sub" / "vocab.txt").write_text("a b")
    return path


def test_as_directory_is_the_folder_itself(folder: Path) -> None:
    with Checkpoint.from_directory(str(folder)).as_directory() as path:
        assert Path(path) == folder


def test_to_directory_copies_without_our_own_files(folder: Path, tmp_path: Path) -> None:
    (folder / ".trainjob").mkdir()
    (folder / ".trainjob" / "manifest.json").write_text("{}")
    target = Checkpoint(str(folder)).to_directory(str(tmp_path / "copy"))
    found = sorted(str(path.relative_to(target)) for path in Path(target).rglob("*") if path.is_file())
    assert found == ["model.pt", "sub/vocab.txt"]
    assert (folder / "model.pt").exists()


def test_to_directory_without_a_path_makes_one(folder: Path) -> None:
    target = Path(Checkpoint(str(folder)).to_directory())
    assert (target / "sub" / "vocab.txt").read_text() == "a b"


def test_dicts_come_back_as_they_were_when_given() -> None:
    state = {"epoch": 3, "weights": [1.0, 2.0]}
    checkpoint = Checkpoint.from_dict(state)
    state["epoch"] = 4
    assert checkpoint.to_dict() == {"epoch": 3, "weights": [1.0, 2.0]}


def test_a_file_is_no_folder_and_the_argument_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_text("x")
    with pytest.raises(CheckpointError) as raised:
        Checkpoint.from_directory(str(tmp_path / "model.pt"))
    said = str(raised.value)
    assert said.startswith(f"Checkpoint.from_directory(path='{tmp_path}/model.pt'): that is a file.")
    assert f"Give the folder that holds it: '{tmp_path}'" in said
    assert Checkpoint.from_directory(f"file://{tmp_path}").path == str(tmp_path)


@pytest.mark.parametrize("path", [None, 3, b"/tmp"])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(CheckpointError, match="path of a folder, got "):
        Checkpoint.from_directory(path)


def test_a_dict_checkpoints_folder_goes_with_the_last_handle() -> None:
    checkpoint = Checkpoint.from_dict({"a": 1})
    path = checkpoint.path
    assert os.path.isdir(path)
    del checkpoint
    gc.collect()
    assert not os.path.exists(path)


def test_what_cannot_be_pickled_is_said() -> None:
    with pytest.raises(CheckpointError, match="cannot be pickled"):
        Checkpoint.from_dict({"f": lambda: 1})


def test_metadata_travels_with_the_files(folder: Path) -> None:
    checkpoint = Checkpoint(str(folder))
    assert checkpoint.get_metadata() == {}
    checkpoint.set_metadata({"a": 1})
    checkpoint.update_metadata({"b": [2]})
    assert Checkpoint(checkpoint.to_directory()).get_metadata() == {"a": 1, "b": [2]}


def test_a_committed_folder_is_not_changed(folder: Path) -> None:
    (folder / ".trainjob").mkdir()
    with pytest.raises(CheckpointError, match="committed"):
        Checkpoint(str(folder)).set_metadata({"a": 1})


def test_a_restored_one_says_where_it_was_taken(folder: Path) -> None:
    checkpoint = Checkpoint.from_restored(
        {"id": "1-2-14", "path": str(folder), "step": 140, "epoch": 2, "metrics": {"loss": 0.1}, "world_size": 4}
    )
    assert (checkpoint.id, checkpoint.step, checkpoint.epoch, checkpoint.metrics, checkpoint.world_size) == (
        "1-2-14",
        140,
        2,
        {"loss": 0.1},
        4,
    )
    assert pickle.loads(pickle.dumps(checkpoint)).id == "1-2-14"


def test_a_missing_folder_says_what_may_have_happened(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint folder at .*nowhere.*retention"):
        Checkpoint(str(tmp_path / "nowhere")).to_directory()


def test_other_schemes_and_file_systems_are_refused_in_words(folder: Path) -> None:
    assert Checkpoint(f"file://{folder}").path == str(folder)
    with pytest.raises(CheckpointError, match="not on this machine"):
        Checkpoint("gs://bucket/x")
    with pytest.raises(CheckpointError, match="filesystem"):
        Checkpoint(str(folder), filesystem=object())
    with pytest.raises(CheckpointError, match=r"not made by Checkpoint\.from_dict"):
        Checkpoint(str(folder)).to_dict()


def test_files_of_a_plain_folder_are_what_report_would_take(folder: Path) -> None:
    (folder / ".trainjob").mkdir()
    (folder / ".trainjob" / "rank-0.state").write_bytes(b"state")
    checkpoint = Checkpoint.from_directory(str(folder))
    assert checkpoint.files() == ["model.pt", "sub/vocab.txt"]
    with checkpoint.open("sub/vocab.txt") as file:
        assert file.read() == b"a b"
        assert file.seek(2) == 2
        assert file.read(1) == b"b"


def test_a_plain_folder_has_nothing_outside_of_itself(folder: Path) -> None:
    (folder.parent / "secret").write_text("not yours")
    (folder / ".trainjob").mkdir()
    (folder / ".trainjob" / "rank-0.state").write_bytes(b"state")
    for name in ("../secret", str(folder / "model.pt"), ".trainjob/rank-0.state", "sub", "nothing"):
        with pytest.raises(CheckpointError, match="has no file"):
            Checkpoint(str(folder)).open(name)


def test_where_a_script_has_removed_its_temporary_folder_it_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind a link, by which ranks are told theirs where its path is long."""
    folder, link = tmp_path / "tmp", tmp_path / "t"
    link.symlink_to(folder)
    for told in (folder, link):
        monkeypatch.setattr(tempfile, "tempdir", str(told))
        assert not folder.exists()
        assert Checkpoint.from_dict({"step": 1}).to_dict() == {"step": 1}
        shutil.rmtree(folder)
