"""`tj checkpoints download`, `show` and `tj model get` of a checkpoint whose files user code has put where they stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.checkpoint import Job, read_tree, write_tree
from support.checkpoint_cli import Shell, shell
from trainjob.cli.checkpoints import put_elsewhere
from trainjob_api import contract

FILES = {"model.pt": b"weights", "deep/optim.pt": b"moments"}


class Notes(Job):
    """Checkpoints that are notes of a place."""

    place = ""

    def contents(self, id_: str) -> dict[str, bytes]:
        return {contract.ELSEWHERE_FILE: json.dumps({"path": self.place}).encode()}


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """A job with one checkpoint, whose files are in `theirs`."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))
    monkeypatch.chdir(tmp_path)
    made = shell(tmp_path, str(tmp_path / "store"), capsys)
    made.job = Notes(tmp_path, made.job.store)
    made.job.place = str(write_tree(tmp_path / "theirs", FILES))
    return made


def test_what_is_brought_is_what_the_note_names(noted: Shell) -> None:
    noted.save("1-1-1")
    said = noted.checkpoints("download", "-o", "out")
    assert said.code == contract.CLI_OK, said.err
    assert read_tree(noted.folder / "out") == FILES
    assert said.out == (
        f"checkpoint 1-1-1 is in {noted.folder}/out: 2 files, 14 B, copied from {noted.folder}/theirs; they have no "
        "checksums to compare with\n"
    )
    assert noted.tj("model", "get", "digits", "--storage", noted.storage, "-o", "got").code == contract.CLI_OK
    assert read_tree(noted.folder / "got") == FILES
    noted.checkpoints("download", "-o", "some", "--files", "model.*")
    assert read_tree(noted.folder / "some") == {"model.pt": b"weights"}
    nothing = noted.checkpoints("download", "-o", "none", "--files", "*.bin")
    assert (nothing.code, "it has deep/optim.pt, model.pt" in nothing.err) == (contract.CLI_NOT_FOUND, True)
    again = noted.checkpoints("download", "-o", "out")
    assert (again.code, "out is not empty (deep, model.pt)" in again.err) == (contract.CLI_ERROR, True)


def test_show_names_the_place(noted: Shell) -> None:
    noted.save("1-1-1")
    said = noted.checkpoints("show", "1-1-1").out
    assert f"  files       in {noted.folder}/theirs, where your own code put them (NO_UPLOAD)" in said.splitlines()
    assert json.loads(noted.checkpoints("show", "1-1-1", "-o", "json").out)["place"] == f"{noted.folder}/theirs"


@pytest.mark.parametrize("there", [False, True], ids=["new", "empty"])
def test_a_copy_that_fails_leaves_nothing_and_the_same_command_works_again(noted: Shell, there: bool) -> None:
    noted.save("1-1-1")
    out, broken = noted.folder / "out", noted.folder / "theirs" / "z.pt"
    if there:
        out.mkdir()
    broken.symlink_to("gone")
    said = noted.checkpoints("download", "-o", "out")
    assert said.code == contract.CLI_ERROR
    assert "where your own code put them (NO_UPLOAD), and cannot be read: " in said.err and "z.pt" in said.err
    again = f"`tj checkpoints download digits --storage {noted.folder}/store -o out`"
    assert said.err.splitlines()[-1] == f"next: `ls -l {noted.folder}/theirs` shows who may; then {again}"
    assert (out.exists(), list(out.glob("*"))) == (there, [])
    broken.unlink()
    assert noted.checkpoints("download", "-o", "out").code == contract.CLI_OK
    assert read_tree(out) == FILES


def test_what_a_killed_copy_left_is_no_hindrance(noted: Shell) -> None:
    noted.save("1-1-1")
    write_tree(noted.folder / "out" / put_elsewhere.UNFINISHED, {"model.pt": b"wei"})
    assert noted.checkpoints("download", "-o", "out").code == contract.CLI_OK
    assert read_tree(noted.folder / "out") == FILES


def test_a_target_that_cannot_be_written_is_named(noted: Shell) -> None:
    noted.save("1-1-1")
    (noted.folder / "file").write_bytes(b"")
    said = noted.checkpoints("download", "-o", "file/out")
    assert (said.code, "cannot be read" in said.err) == (contract.CLI_ERROR, False)
    assert f"{noted.folder}/file/out cannot be written: " in said.err
    assert said.err.splitlines()[-1].endswith("or name another with -o")


@pytest.mark.parametrize("place", ["s3://bucket/theirs", "/nowhere/theirs"])
def test_what_cannot_be_read_here_is_named(noted: Shell, place: str) -> None:
    noted.job.place = place
    noted.save("1-1-1")
    said = noted.checkpoints("download", "-o", "out")
    assert said.code == contract.CLI_NOT_FOUND
    assert f"the files of checkpoint 1-1-1 are in {place}, where your own code put them (NO_UPLOAD)" in said.err
    assert said.err.splitlines()[-1].startswith("next: "), said.err
    assert not (noted.folder / "out").exists()
