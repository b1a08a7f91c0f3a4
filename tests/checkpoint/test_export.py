"""Bringing a checkpoint into a folder of the user's: whole, in part, gone on with, and never over something else."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from support.checkpoint import Job, read_tree
from trainjob.checkpoint import export
from trainjob.checkpoint.choice import catalogue, inventory
from trainjob.checkpoint.errors import DamagedError, StoreError
from trainjob.checkpoint.export import NOTE, Export
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.stores.store import Store
from trainjob.checkpoint.stores.transfer import nothing


@pytest.fixture
def job(tmp_path: Path, any_store: Store) -> Job:
    found = Job(tmp_path, any_store)
    found.save("1-1-1")
    found.save("1-1-2")
    return found


def wish(job: Job, target: Path, id_: str = "1-1-1", *patterns: str, whole: bool = True) -> Export:
    entry = next(entry for entry in inventory.look(job.store) if str(entry.id) == id_)
    assert entry.manifest is not None
    return Export(
        job.store, entry.prefix, entry.manifest, export.select(entry.manifest, patterns, whole), str(target), whole
    )


def bring(wanted: Export) -> list[str]:
    """The paths that came."""
    lacking = export.prepare(wanted)
    export.download(wanted, lacking, nothing)
    return sorted(entry.path for entry in lacking)


def test_the_folder_is_a_checkpoint_of_its_own(job: Job, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "out"
    bring(wish(job, target))
    assert read_tree(target) == job.contents("1-1-1")
    assert str(catalogue.open_checkpoint(str(target)).manifest.id) == "1-1-1"
    assert not (target / NOTE).exists()
    assert bring(wish(job, target)) == []


def test_a_part_is_no_checkpoint(job: Job, tmp_path: Path) -> None:
    assert bring(wish(job, tmp_path / "out", "1-1-1", "*.pt", whole=False)) == ["deep/er/optim ü.pt", "model.pt"]
    assert bring(wish(job, tmp_path / "one", "1-1-1", "deep/*", whole=False)) == ["deep/er/optim ü.pt"]
    assert not (tmp_path / "out" / layout.RESERVED).exists()
    assert export.select(wish(job, tmp_path).manifest, ["*.bin"], False) == []


def test_what_was_cut_off_is_gone_on_with(job: Job, tmp_path: Path) -> None:
    target, wanted = tmp_path / "out", wish(job, tmp_path / "out")
    lacking = export.prepare(wanted)
    model = [entry for entry in lacking if entry.path == "model.pt"]
    with pytest.raises(RuntimeError):
        export.download(wanted, model, lambda _count: (_ for _ in ()).throw(RuntimeError("cut off")))
    (target / "empty").write_bytes(b"torn")
    assert bring(wanted)  # something was lacking
    assert read_tree(target) == job.contents("1-1-1")
    bring(wish(job, tmp_path / "two"))
    (tmp_path / "two" / "model.pt").unlink()
    export._write_note(wish(job, tmp_path / "two"))
    assert bring(wish(job, tmp_path / "two")) == ["model.pt"], "the others are there already"


def test_another_download_or_other_files_stay_as_they_are(job: Job, tmp_path: Path) -> None:
    target = tmp_path / "out"
    export.prepare(wish(job, target))
    with pytest.raises(StoreError, match=r"holds a part of checkpoint 1-1-1 .* was cut off"):
        export.prepare(wish(job, target, "1-1-2"))
    (target / NOTE).write_text("torn")
    with pytest.raises(StoreError, match="was cut off"):
        export.prepare(wish(job, target))
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "model.pt").write_bytes(b"precious")
    with pytest.raises(StoreError, match=r"is not empty \(model.pt\)"):
        export.prepare(wish(job, mine))
    assert (mine / "model.pt").read_bytes() == b"precious"
    with pytest.raises(StoreError, match="cannot use the folder"):
        export.prepare(wish(job, mine / "model.pt"))


def test_what_cannot_fit_is_refused_before_it_begins(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(1000, 1000, 100))
    with pytest.raises(StoreError, match="GiB free and the checkpoint needs"):
        export.prepare(wish(job, tmp_path / "out"))
    assert not any((tmp_path / "out").iterdir())


def test_damage_is_found_on_the_way_and_leaves_no_checkpoint(job: Job, tmp_path: Path) -> None:
    wanted = wish(job, tmp_path / "out")
    job.store.put(f"{wanted.prefix}/model.pt", b"!" * 250)
    with pytest.raises(DamagedError, match=r"model\.pt is damaged: expected"):
        bring(wanted)
    assert (tmp_path / "out" / NOTE).exists()
    assert not (tmp_path / "out" / layout.RESERVED / layout.MANIFEST).exists()
    assert inventory.look_at(job.store, wanted.prefix, wanted.manifest.id).good, "nothing is marked"
