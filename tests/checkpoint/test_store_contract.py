"""What every store promises, on a path and on a real S3 server; and checkpoints, runs and retention over both."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import pytest

from support.checkpoint import Interposed, Job, fetched, read_tree, write_tree
from trainjob.checkpoint import errors
from trainjob.checkpoint.choice import catalogue
from trainjob.checkpoint.choice.settle import settle
from trainjob.checkpoint.errors import CheckpointError, DamagedError, StoreError
from trainjob.checkpoint.publishing.retention import Policy
from trainjob.checkpoint.publishing.retire import Retainer, remove
from trainjob.checkpoint.publishing.shares import commit, fetch
from trainjob.checkpoint.reading import runs, stored
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.stores import digest
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.store import Store, Stored
from trainjob.checkpoint.stores.transfer import nothing

ID = CheckpointId(1, 1, 1)


def test_an_exclusive_name_is_written_once(any_store: Store) -> None:
    assert any_store.create("a/b/c.json", b"first")
    assert not any_store.create("a/b/c.json", b"second")
    assert any_store.read("a/b/c.json") == b"first"
    any_store.put("a/b/c.json", b"third")
    assert any_store.read("a/b/c.json") == b"third"
    assert any_store.size("a/b/c.json") == 5


def test_of_many_writers_of_a_name_one_wins(any_store: Store) -> None:
    won: list[int] = []
    start = threading.Barrier(6)

    def write(number: int) -> None:
        start.wait()
        if any_store.create("runs/1.json", b"%d" % number):
            won.append(number)

    team = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()
    assert any_store.read("runs/1.json") == b"%d" % won[0] and len(won) == 1


def test_what_is_not_there(any_store: Store, tmp_path: Path) -> None:
    assert any_store.read("x") is None and any_store.size("x") is None and any_store.checksum("x", nothing) is None
    assert any_store.download("x", str(tmp_path / "x"), nothing) is None
    assert (
        any_store.names("x") == []
        and any_store.sizes("x") == {}
        and any_store.sizes("") == {}
        and any_store.unfinished("") == []
    )
    any_store.delete("x")
    any_store.prune("x")
    any_store.tidy("x")


def test_folders_are_listed(any_store: Store) -> None:
    for key in ("a/x/1", "a/x/2 ü", "a/y/z/3", "a/empty", "ab/4"):
        any_store.put(key, b"" if key == "a/empty" else b"data")
    assert any_store.names("a") == [("empty", False), ("x", True), ("y", True)]
    assert any_store.names("") == [("a", True), ("ab", True)]
    assert any_store.sizes("a") == {"a/x/1": 4, "a/x/2 ü": 4, "a/y/z/3": 4, "a/empty": 0}
    assert (
        any_store.size("a/empty") == 0
        and any_store.read("a/empty") == b""
        and any_store.size("a/x") in (None, any_store.size("a/x"))
    )
    any_store.delete("a/x/1")
    assert any_store.names("a/x") == [("2 ü", False)]


@pytest.mark.parametrize("size", [0, 1, 3_000_001])
def test_an_upload_keeps_what_is_there_if_it_is_the_same(any_store: Store, tmp_path: Path, size: int) -> None:
    write_tree(tmp_path, {"one": b"x" * size, "two": b"y" * (size or 1)})
    moved: list[int] = []
    expected = Stored(
        size, digest.text(any_store.algorithm, digest.update(any_store.algorithm, b"x" * size)), any_store.algorithm
    )
    assert any_store.upload("d/f", str(tmp_path / "one"), moved.append) == expected
    assert sum(moved) == size
    assert any_store.upload("d/f", str(tmp_path / "one"), nothing) == expected
    with pytest.raises(StoreError, match=r"d/f is stored already with \d+ bytes and .* left as it is") as caught:
        any_store.upload("d/f", str(tmp_path / "two"), nothing)
    assert caught.value.kind == errors.CONFLICT
    any_store.flush()
    moved.clear()
    assert any_store.checksum("d/f", moved.append, any_store.algorithm) == expected
    assert any_store.download("d/f", str(tmp_path / "copy" / "f"), nothing, any_store.algorithm) == expected
    assert (tmp_path / "copy" / "f").read_bytes() == b"x" * size
    assert sum(moved) == size


def test_a_checksum_by_the_other_algorithm_can_be_had(any_store: Store) -> None:
    any_store.put("f", b"data" * 1000)
    for algorithm in digest.ALGORITHMS:
        assert any_store.checksum("f", nothing, algorithm) == Stored(
            4000, digest.text(algorithm, digest.update(algorithm, b"data" * 1000)), algorithm
        )


def test_a_staged_file_that_is_gone_is_named(any_store: Store) -> None:
    with pytest.raises(StoreError, match="cannot read the staged file /nowhere/m: No such file") as caught:
        any_store.upload("m", "/nowhere/m", nothing)
    assert caught.value.kind == errors.LOST


def test_a_download_replaces_a_link_and_leaves_what_it_leads_to(any_store: Store, tmp_path: Path) -> None:
    """A restore's folder may hold links to staged files."""
    any_store.put("f", b"data")
    write_tree(tmp_path, {"staged": b"other"})
    (tmp_path / "f").symlink_to(tmp_path / "staged")
    any_store.download("f", str(tmp_path / "f"), nothing)
    assert (tmp_path / "f").read_bytes() == b"data" and (tmp_path / "staged").read_bytes() == b"other"


def test_a_download_that_cannot_be_written_names_the_local_path(any_store: Store, tmp_path: Path) -> None:
    any_store.put("f", b"data")
    write_tree(tmp_path, {"file": b""})
    with pytest.raises(StoreError, match=f"cannot write {tmp_path}/file/f"):
        any_store.download("f", str(tmp_path / "file" / "f"), nothing)


def test_probe_leaves_nothing(any_store: Store) -> None:
    any_store.probe()
    assert any_store.sizes("") == {}


def test_a_checkpoint_is_committed_verified_listed_and_brought(any_store: Store, tmp_path: Path) -> None:
    job = Job(tmp_path, any_store)
    for index in (1, 2):
        job.save(f"1-1-{index}")
    assert job.save("1-1-2") == stored.verify(any_store, "checkpoints/1-1-2")
    assert {entry.algorithm for entry in stored.verify(any_store, "checkpoints/1-1-2").entries} == {any_store.algorithm}
    assert job.good() == ["1-1-1", "1-1-2"]
    uri = catalogue.checkpoint_uri(any_store, ID)
    assert fetched(open_store(uri), "", str(tmp_path / "brought")).id == ID
    assert read_tree(tmp_path / "brought") == job.contents("1-1-1")
    assert catalogue.open_checkpoint(uri).manifest.id == ID


def test_files_of_finished_shares_are_brought_before_the_commit(any_store: Store, tmp_path: Path) -> None:
    job = Job(tmp_path, any_store)
    job.share("1-1-1", 0)
    fetch(any_store, job.note("1-1-1"), ["model.pt"], str(tmp_path / "brought"))
    assert read_tree(tmp_path / "brought") == {"model.pt": job.contents("1-1-1")["model.pt"]}
    with pytest.raises(DamagedError, match="no share records deep/er"):
        fetch(any_store, job.note("1-1-1"), ["deep/er/optim ü.pt"], str(tmp_path / "brought"))


def test_damage_is_found_and_marked_and_the_one_before_is_taken(any_store: Store, tmp_path: Path) -> None:
    job = Job(tmp_path, any_store)
    for index in (1, 2):
        manifest = job.save(f"1-1-{index}")
    key = layout.file_key(CheckpointId(1, 1, 2), "model.pt")
    whole = any_store.read(key) or b""
    any_store.put(key, whole[:-1] + b"!")
    with pytest.raises(
        DamagedError,
        match=rf"model.pt is damaged: expected {any_store.algorithm} [0-9a-f]+ over {len(whole)} bytes, found",
    ):
        stored.fetch(any_store, "checkpoints/1-1-2", manifest.entries, str(tmp_path / "brought"))
    warnings: list[str] = []
    newest = stored.newest_good(any_store, 1, warnings)
    assert newest is not None and newest.id == ID and "was found damaged before" in warnings[0]


def test_retention_keeps_what_it_must(any_store: Store, tmp_path: Path) -> None:
    job = Job(tmp_path, any_store)
    for id_ in ("1-1-1", "1-1-2", "1-1-3", "1-1-4"):
        job.save(id_)
    job.share("1-1-5", 0)
    job.save("1-2-6")
    kept = Retainer(any_store, 1).retain(Policy(keep=2), {CheckpointId(1, 1, 2)})
    assert [str(id_) for id_ in kept.removed] == ["1-1-1", "1-1-3"]
    assert job.good() == job.folders() == ["1-1-2", "1-1-4", "1-2-6"]
    assert not any(
        key.startswith(("checkpoints/1-1-1/", "checkpoints/1-1-5/")) for key in any_store.sizes("checkpoints")
    )


def test_runs_are_claimed_once_ended_and_continued(any_store: Store, tmp_path: Path) -> None:
    assert [settle(any_store, uid, "auto", []).run for uid in ("a", "a", "b")] == [1, 1, 2]
    Job(tmp_path, any_store).save("2-1-1")
    third = settle(any_store, "c", "auto", [])
    assert third.run == 3 and third.choice is not None and str(third.choice.note.id) == "2-1-1"
    runs.write_end(any_store, 3, {"step": 5})
    assert catalogue.read_end(any_store, 3) == {"step": 5}
    assert settle(any_store, "d", "auto", []).choice is None
    named = settle(open_store(any_store.uri() + "-other"), "e", any_store.uri("checkpoints/2-1-1"), [])
    assert named.uri == any_store.uri("checkpoints/2-1-1")
    with pytest.raises(StoreError, match="is the folder of a job, not of a checkpoint; its newest checkpoint is"):
        settle(open_store(any_store.uri() + "-third"), "e", any_store.uri(), [])


def test_a_removal_between_any_two_steps_of_an_older_leaders_commit_is_never_a_torn_restore(
    any_store: Store, tmp_path: Path
) -> None:
    """The zombie may fail or succeed; what readers see verifies, and the next retention leaves nothing of it."""
    for at in itertools.count(1):
        job = Job(tmp_path / str(at), open_store(any_store.uri(str(at))))
        job.save("1-2-5")
        job.share("1-1-3", 0)
        job.share("1-1-3", 1)
        zombie = Interposed(job.store, at, lambda job=job: remove(job.store, CheckpointId(1, 1, 3)))
        try:
            commit(zombie, job.note("1-1-3"), "zombie")
        except CheckpointError:
            pass
        if zombie.calls < at:
            break
        assert job.good() == ["1-2-5"]
        Retainer(job.store, 1).retain(Policy(keep=2), set())
        assert job.folders() == ["1-2-5"]


class Misread:
    """A store one of whose listings was changed on its way: it says another size of every file."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def sizes(self, folder: str) -> dict[str, int]:
        return {key: size + 1 for key, size in self._store.sizes(folder).items()}


def test_a_listing_alone_condemns_nothing(any_store: Store, tmp_path: Path) -> None:
    job = Job(tmp_path, any_store)
    for rank in (0, 1):
        job.share("1-1-1", rank)
    done = commit(Misread(any_store), job.note("1-1-1"), "nonce")  # type: ignore[arg-type]
    assert done.manifest == stored.verify(Misread(any_store), "checkpoints/1-1-1")  # type: ignore[arg-type]
    any_store.put(layout.file_key(ID, "model.pt"), b"other")
    with pytest.raises(DamagedError, match="found 5 bytes"):
        stored.load(Misread(any_store), "checkpoints/1-1-1")  # type: ignore[arg-type]
