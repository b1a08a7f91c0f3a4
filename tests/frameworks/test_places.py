"""How a checkpoint comes back into the Trainer's output folder, which workers may share."""

from __future__ import annotations

import errno
import filecmp
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from support.patience import HANG_S
from trainjob.integrations import places


def checkpoint(folder: Path, loss: float = 0.5) -> Path:
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(bytes(100))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 6, "log_history": [{"loss": loss}]}))
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_a_killed_rank_left_half_written_is_replaced(tmp_path: Path) -> None:
    source, target = checkpoint(tmp_path / "source"), checkpoint(tmp_path / "output" / "checkpoint-6")
    (target / "model.safetensors").write_bytes(b"half")
    (target / "optimizer.pt").write_bytes(b"torn")
    places.place(str(source), str(target))
    assert content(target) == content(source)
    assert os.listdir(target.parent) == ["checkpoint-6"]


def test_a_folder_of_an_earlier_job_is_not_taken_for_it(tmp_path: Path) -> None:
    source, target = checkpoint(tmp_path / "source"), checkpoint(tmp_path / "output" / "checkpoint-6", loss=0.7)
    (source / "model.safetensors").write_bytes(b"1" * 100)
    places.place(str(source), str(target))
    assert content(target) == content(source)


def test_the_same_one_is_left_as_it_is(tmp_path: Path) -> None:
    source, target = checkpoint(tmp_path / "source"), checkpoint(tmp_path / "output" / "checkpoint-6")
    before = target.stat().st_ino
    places.place(str(source), str(target))
    assert target.stat().st_ino == before


def test_workers_that_share_the_folder_may_all_come_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = checkpoint(tmp_path / "source"), tmp_path / "output" / "checkpoint-6"
    copied, plain = threading.Barrier(4, timeout=HANG_S), shutil.copytree

    def together(*arguments: Any, **keywords: Any) -> Any:
        done = plain(*arguments, **keywords)
        copied.wait()
        return done

    monkeypatch.setattr(shutil, "copytree", together)
    errors: list[BaseException] = []

    def worker() -> None:
        try:
            places.place(str(source), str(target))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=worker) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert errors == []
    assert content(target) == content(source)
    assert os.listdir(target.parent) == ["checkpoint-6"]


def test_a_folder_that_goes_aside_while_it_is_compared_is_not_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = checkpoint(tmp_path / "source"), checkpoint(tmp_path / "output" / "checkpoint-6", loss=0.7)
    plain, gone = filecmp.cmp, []

    def compare(first: str, second: str, shallow: bool = True) -> bool:
        if not gone:
            gone.append(first)
            shutil.rmtree(target)
        return plain(first, second, shallow)

    monkeypatch.setattr(filecmp, "cmp", compare)
    places.place(str(source), str(target))
    assert content(target) == content(source) and gone
    assert os.listdir(target.parent) == ["checkpoint-6"]


def test_a_copy_that_is_there_is_not_moved_from_under_those_who_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = checkpoint(tmp_path / "source"), tmp_path / "output" / "checkpoint-6"
    plain, firsts = os.rename, []

    def another_was_first(old: str, new: str) -> None:
        if not firsts:
            shutil.copytree(source, target)
            firsts.append(target.stat().st_ino)
        plain(old, new)

    monkeypatch.setattr(os, "rename", another_was_first)
    places.place(str(source), str(target))
    assert target.stat().st_ino == firsts[0]


def test_a_copy_that_another_worker_put_there_and_a_third_one_took_away_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = checkpoint(tmp_path / "source"), tmp_path / "output" / "checkpoint-6"
    plain, refused = os.rename, []

    def rename(old: str, new: str) -> None:
        if new == str(target) and not refused:
            refused.append(old)
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        plain(old, new)

    monkeypatch.setattr(os, "rename", rename)
    places.place(str(source), str(target))
    assert content(target) == content(source) and refused
    assert os.listdir(target.parent) == ["checkpoint-6"]


def test_what_killed_ranks_left_is_swept_once_it_is_old(tmp_path: Path) -> None:
    source, output = checkpoint(tmp_path / "source"), tmp_path / "output"
    for name, age_s in ((".bringing-old", 7200), (".bringing-new", 0)):
        (output / name).mkdir(parents=True)
        at = (output / name).stat().st_mtime - age_s
        os.utime(output / name, (at, at))
    places.place(str(source), str(output / "checkpoint-6"))
    assert sorted(os.listdir(output)) == [".bringing-new", "checkpoint-6"]
