"""Shares, commit, verification: what counts as a checkpoint, and what is said of one that does not."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import pytest

from support.checkpoint import Job, note_of, write_tree
from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import CheckpointError, DamagedError, StagingError, StoreError
from trainjob.checkpoint.publishing.retire import remove
from trainjob.checkpoint.publishing.shares import Share, commit, share
from trainjob.checkpoint.reading import stored
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.manifest import NoteFile

ID = CheckpointId(1, 1, 1)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_without_its_manifest_a_checkpoint_does_not_exist(job: Job) -> None:
    assert job.share("1-1-1", 0) == 250
    first = commit(job.store, job.note("1-1-1"), "n")
    assert first.manifest is None and first.missing == (1,)
    assert job.good() == []
    job.share("1-1-1", 1)
    assert job.good() == []
    done = commit(job.store, job.note("1-1-1"), "n")
    assert done.manifest is not None and done.manifest.nonce == "n" and done.manifest.total_bytes == 359
    assert job.good() == ["1-1-1"]


def test_committing_again_changes_nothing(job: Job) -> None:
    manifest = job.save("1-1-1")
    before = {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in job.folder.rglob("*") if p.is_file()}
    assert job.save("1-1-1") == manifest
    other = commit(job.store, job.note("1-1-1"), "another leader")
    assert other.manifest == manifest
    assert {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in job.folder.rglob("*") if p.is_file()} == before


def test_a_later_attempt_can_finish_what_an_older_one_began(job: Job) -> None:
    job.share("1-1-1", 0)
    later = Job(job.folder.parent)
    later.share("1-1-1", 0)
    later.share("1-1-1", 1)
    assert commit(later.store, later.note("1-1-1"), "later").manifest is not None
    assert job.good() == ["1-1-1"]


@pytest.mark.parametrize("path", ["model.pt", "deep/er/optim ü.pt"])
def test_damage_names_file_expected_and_found_and_the_one_before_is_taken(job: Job, path: str) -> None:
    job.save("1-1-1")
    job.save("1-1-2")
    file = job.path("1-1-2") / path
    whole = file.read_bytes()
    warnings: list[str] = []

    file.write_bytes(whole[:-1])
    assert stored.newest_good(job.store, 1, warnings).id == ID  # type: ignore[union-attr]
    assert warnings[0].startswith("checkpoint 1-1-2 is skipped for the one before: ")
    assert f"{file} is damaged: expected {len(whole)} bytes, found {len(whole) - 1} bytes" in warnings[0]

    file.unlink()
    assert stored.newest_good(job.store, 1, warnings).id == ID  # type: ignore[union-attr]
    assert "found no such file" in warnings[1]

    file.write_bytes(whole[:-1] + b"!")
    assert stored.newest_good(job.store, 1, []).id == CheckpointId(1, 1, 2)  # type: ignore[union-attr]
    with pytest.raises(
        DamagedError, match=rf"is damaged: expected crc32 [0-9a-f]{{8}} over {len(whole)} bytes, found [0-9a-f]{{8}}"
    ) as caught:
        stored.verify(job.store, "checkpoints/1-1-2")
    assert str(file) in str(caught.value)

    file.write_bytes(whole)
    assert stored.newest_good(job.store, 1, warnings).id == ID, "the mark stays"  # type: ignore[union-attr]
    assert "was found damaged before" in warnings[-1]


def test_a_damaged_manifest_is_skipped(job: Job) -> None:
    job.save("1-1-1")
    job.save("1-1-2")
    manifest = Path(job.store.uri(layout.manifest_key(CheckpointId(1, 1, 2))))
    text = manifest.read_text()
    for broken in (text.replace('"step": 10', '"step": 11'), text[:100], "", "[]"):
        manifest.write_text(broken)
        warnings: list[str] = []
        assert stored.newest_good(job.store, 1, warnings).id == ID  # type: ignore[union-attr]
        assert "manifest.json is damaged: expected" in warnings[0]
    manifest.write_bytes(Path(job.store.uri(layout.manifest_key(ID))).read_bytes())
    assert stored.newest_good(job.store, 1, warnings).id == ID  # type: ignore[union-attr]
    assert "expected the manifest of 1-1-2, found that of 1-1-1" in warnings[-1]


def test_unreadable_storage_is_not_taken_for_damage(job: Job) -> None:
    """Marking every checkpoint as damaged because storage was away for a moment would lose them all."""
    job.save("1-1-1")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(StoreError) as caught:
            stored.verify(job.store, "checkpoints/1-1-1")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert caught.value.kind == errors.UNREADABLE
    assert job.good() == ["1-1-1"]


def test_different_bytes_under_one_name_on_two_agents(job: Job, tmp_path: Path) -> None:
    zero, one = (
        write_tree(tmp_path / "0", {"m": b"zero", "same": b"same"}),
        write_tree(tmp_path / "1", {"m": b"ONE!", "same": b"same"}),
    )
    note = note_of("1-1-1", {"m": (4, 0), "same": (4, 0)})._replace(
        duplicates=(NoteFile("m", 4, 1), NoteFile("same", 4, 1))
    )
    assert note.ranks == (0, 1)
    for rank, folder in ((0, zero), (1, one)):
        share(job.store, Share(ID, rank, str(folder), **note.share_of(rank)))
    done = commit(job.store, note, "n")
    (warning,) = done.warnings
    assert "ranks 0 and 1 gave different files under one name ('m'): rank 0's counts" in warning
    assert (job.path("1-1-1") / "m").read_bytes() == b"zero"


def test_a_staged_file_that_changed_after_its_release_is_never_committed(job: Job) -> None:
    (job.stage("1-1-1") / "model.pt").write_bytes(b"short")
    with pytest.raises(StagingError, match=r"changed after its release \(expected 250 bytes, found 5\)"):
        job.share("1-1-1", 0)
    assert commit(job.store, job.note("1-1-1"), "n").missing == (0, 1)


def test_a_share_of_other_files_is_refused(job: Job) -> None:
    job.share("1-1-1", 0)
    with pytest.raises(
        StoreError, match=r"records other files than rank 0 holds; likely another job uses this folder"
    ) as caught:
        share(job.store, Share(ID, 0, str(job.stage("1-1-1")), [("model.pt", 250)]))
    assert caught.value.kind == errors.CONFLICT


def test_a_commit_whose_files_are_gone_is_refused(job: Job) -> None:
    job.share("1-1-1", 0)
    job.share("1-1-1", 1)
    (job.path("1-1-1") / "model.pt").unlink()
    with pytest.raises(StoreError, match="was stored with 250 bytes, found no such file") as caught:
        commit(job.store, job.note("1-1-1"), "n")
    assert caught.value.kind == errors.LOST
    with pytest.raises(StoreError, match=r"released with 251 bytes by rank 0, whose share holds 250 bytes"):
        commit(job.store, job.note("1-1-1")._replace(files=(NoteFile("model.pt", 251, 0),)), "n")


def test_a_checkpoint_whose_removal_began_is_neither_read_nor_stored_nor_committed(job: Job) -> None:
    job.save("1-1-1")
    job.store.create(layout.retired_key(ID), b"{}")
    assert job.good() == []
    job.store.delete(layout.manifest_key(ID))
    done = commit(job.store, job.note("1-1-1"), "n")
    assert done.manifest is None and done.missing == ()
    job.store.delete(layout.share_key(ID, 0))
    with pytest.raises(CheckpointError, match="has been removed by retention"):
        job.share("1-1-1", 0)
    remove(job.store, ID)
    assert job.folders() == []


def test_thousands_of_files_are_stored_and_verified_in_seconds(job: Job, tmp_path: Path) -> None:
    files = {f"d{n % 50}/f{n}": b"%d" % n for n in range(1_000)}
    folder = write_tree(tmp_path / "many", files)
    note = note_of("1-1-1", {p: (len(data), 0) for p, data in files.items()})
    start = time.process_time()
    share(job.store, Share(ID, 0, str(folder), **note.share_of(0)))
    assert commit(job.store, note, "n").manifest is not None
    assert len(stored.verify(job.store, "checkpoints/1-1-1").entries) == 1_000
    assert time.process_time() - start < 30
    remove(job.store, ID)
    assert os.listdir(job.store.uri("checkpoints")) == []
