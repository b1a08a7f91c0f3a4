"""from_dict and save_sharded write over what waits for them, and come to the same files as without."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainjob import Checkpoint, CheckpointError
from trainjob.session import recycled
from trainjob_api import contract

NAME = contract.DICT_FILE


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, and TMPDIR beside it."""
    for name in ("recycled", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv(contract.ENV_RECYCLED, str(tmp_path / "recycled"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path / "recycled"


def body_of(checkpoint: Checkpoint) -> bytes:
    return (Path(checkpoint.path) / NAME).read_bytes()


@pytest.mark.parametrize("former", [0, 10, 5000, 5_000_000], ids=["empty", "shorter", "about as long", "longer"])
@pytest.mark.parametrize("size", [0, 4000, 300_000], ids=["nothing", "in pieces", "at once"])
def test_what_is_written_over_is_as_a_new_file(waiting: Path, former: int, size: int) -> None:
    data = {"body": bytes(range(250)) * (size // 250), "text": "é", "list": list(range(2000))}
    (waiting / NAME).write_bytes(b"\xff" * former)
    inode = (waiting / NAME).stat().st_ino
    over, new = Checkpoint.from_dict(data), Checkpoint.from_dict(data)
    assert (Path(over.path) / NAME).stat().st_ino == inode != (Path(new.path) / NAME).stat().st_ino
    assert body_of(over) == body_of(new) and over.to_dict() == data
    assert os.listdir(waiting) == []


def test_another_name_is_not_for_it(waiting: Path, tmp_path: Path) -> None:
    (waiting / "__0_0.distcp").write_bytes(b"former")
    Checkpoint.from_dict({"a": 1})
    assert os.listdir(waiting) == ["__0_0.distcp"]


@pytest.mark.parametrize("what", ["a link to nothing", "not there", "a file for a folder"])
def test_what_cannot_be_written_over_is_written_anew(
    waiting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "a link to nothing":
        (waiting / NAME).symlink_to(tmp_path / "nothing")
    elif what == "not there":
        waiting.rmdir()
    else:
        monkeypatch.setenv(contract.ENV_RECYCLED, __file__)
    assert Checkpoint.from_dict({"a": 1}).to_dict() == {"a": 1}
    assert not (tmp_path / "nothing").exists()


def test_what_may_not_be_opened_is_written_anew(waiting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (waiting / NAME).write_bytes(b"former")
    inode = (waiting / NAME).stat().st_ino
    held = os.open(waiting / NAME, os.O_RDONLY)  # its inode is no other's meanwhile

    class Refused(recycled._WrittenOver):
        def __init__(self, raw: object) -> None:
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(recycled, "_WrittenOver", Refused)
    made = Checkpoint.from_dict({"a": 1})
    assert made.to_dict() == {"a": 1} and (Path(made.path) / NAME).stat().st_ino != inode
    os.close(held)


def test_a_value_that_no_pickle_takes_is_named_all_the_same(waiting: Path, tmp_path: Path) -> None:
    (waiting / NAME).write_bytes(b"former" * 1000)
    with pytest.raises(CheckpointError, match=r"\['lock'\] cannot be pickled"):
        Checkpoint.from_dict({"body": bytes(100), "lock": open(__file__)})  # noqa: SIM115 - it is not read
    assert os.listdir(tmp_path / "tmp") == []


def test_without_an_agent_nothing_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(contract.ENV_RECYCLED, raising=False)
    with recycled.new_file(str(tmp_path / "a")) as file:
        file.write(b"1")
    assert (tmp_path / "a").read_bytes() == b"1"
