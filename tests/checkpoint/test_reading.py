"""Checkpoint.files(), open() and as_directory() of a committed checkpoint, outside of a job: on a path and in a
bucket.
"""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.reading import committed, overwrite
from trainjob import Checkpoint
from trainjob.checkpoint.choice import catalogue
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.storage_child.operations import OPERATIONS
from trainjob.checkpoint.stores.store import Store
from trainjob.launch.outcome import result
from trainjob.session import elsewhere
from trainjob.session.errors import CheckpointError

FILES = {
    "model.pt": (b"weights" * 1000, 0),
    "layers ü/0.bin": (b"zero", 0),
    "layers ü/1.bin": (b"one", 1),
    ".trainjob/rank-0.state": (b"state", 0),
}


@pytest.fixture
def uri(any_store: Store, tmp_path: Path) -> str:
    return committed(any_store, tmp_path / "staged", FILES)


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def brought(folder: Path) -> list[str]:
    """Names of files that were downloaded."""
    return sorted(
        path.name for copies in folder.glob("trainjob-checkpoint-*") for path in copies.rglob("*") if path.is_file()
    )


def test_files_come_from_the_manifest_and_nothing_is_downloaded(uri: str, own_temporary_folder: Path) -> None:
    overwrite(uri, "model.pt", b"damaged, and nobody has looked")
    assert Checkpoint(uri).files() == ["layers ü/0.bin", "layers ü/1.bin", "model.pt"]
    assert brought(own_temporary_folder) == []


def test_open_brings_exactly_that_file_once(uri: str, own_temporary_folder: Path) -> None:
    checkpoint = Checkpoint(uri)
    with checkpoint.open("layers ü/1.bin") as file:
        assert file.read() == b"one"
        assert file.seek(1) == 1
        assert file.read() == b"ne"
        assert not file.writable()
    if uri.startswith("s3://"):
        assert brought(own_temporary_folder) == ["1.bin"]
        overwrite(uri, "layers ü/1.bin", b"two")
    with checkpoint.open(Path("layers ü") / "1.bin") as file:
        assert file.read() == b"one"


def test_several_are_brought_in_one_go(uri: str, own_temporary_folder: Path) -> None:
    checkpoint = Checkpoint(uri)
    checkpoint.bring(["model.pt", "layers ü/0.bin"])
    overwrite(uri, "layers ü/1.bin", None)
    assert brought(own_temporary_folder) == (["0.bin", "model.pt"] if uri.startswith("s3://") else [])
    with checkpoint.open("layers ü/0.bin") as file:
        assert file.read() == b"zero"
    with pytest.raises(CheckpointError, match="has no file"):
        checkpoint.bring(["model.pt", "nothing"])


def test_as_directory_brings_what_lacks_and_not_again_what_is_here(uri: str) -> None:
    checkpoint = Checkpoint(uri)
    checkpoint.bring(["layers ü/0.bin"])
    if uri.startswith("s3://"):
        overwrite(uri, "layers ü/0.bin", b"lost")
    with checkpoint.as_directory() as path:
        assert Path(path, "model.pt").read_bytes() == FILES["model.pt"][0]
        assert Path(path, "layers ü/0.bin").read_bytes() == FILES["layers ü/0.bin"][0]


def test_what_the_library_keeps_beside_them_is_no_file_of_the_users(uri: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint(uri)
    with checkpoint.as_directory() as path:
        assert listing(path) == checkpoint.files() == ["layers ü/0.bin", "layers ü/1.bin", "model.pt"]
    assert listing(checkpoint.to_directory(str(tmp_path / "copy"))) == checkpoint.files()
    overwrite(uri, ".trainjob/rank-0.state", None)
    with Checkpoint(uri).as_directory() as path:
        assert listing(path) == checkpoint.files()


def listing(folder: str) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


def test_many_threads_ask_for_one_file(uri: str) -> None:
    checkpoint = Checkpoint(uri)

    def inode(_: int) -> int:
        with checkpoint.open("model.pt") as file:
            assert file.read() == FILES["model.pt"][0]
            return os.fstat(file.fileno()).st_ino

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(inode, range(16)))) == 1


def test_what_is_downloaded_goes_with_the_handle(uri: str, own_temporary_folder: Path) -> None:
    checkpoint = Checkpoint(uri)
    checkpoint.open("model.pt").close()
    copy = pickle.loads(pickle.dumps(checkpoint))
    del checkpoint
    assert brought(own_temporary_folder) == []
    with copy.open("model.pt") as file:
        assert file.read() == FILES["model.pt"][0]


def test_an_unknown_file_names_the_nearest(uri: str) -> None:
    with pytest.raises(CheckpointError, match=r"no file 'modell.pt'. The nearest: 'model.pt'; files\(\) lists all 3"):
        Checkpoint(uri).open("modell.pt")
    with pytest.raises(CheckpointError, match=r"The nearest: 'layers ü/0\.bin'"):
        Checkpoint(uri).open("0.bin")
    for name in (".trainjob/rank-0.state", "../1-1-1/model.pt", "/etc/passwd"):
        with pytest.raises(CheckpointError, match="has no file"):
            Checkpoint(uri).open(name)


@pytest.mark.parametrize("data", [b"ZERO", b"longer", None])
def test_damage_is_found_by_who_opens_that_file_and_remembered(uri: str, data: bytes | None) -> None:
    overwrite(uri, "layers ü/0.bin", data)
    checkpoint = Checkpoint(uri)
    with checkpoint.open("model.pt") as file:
        assert file.read() == FILES["model.pt"][0]
    with pytest.raises(CheckpointError, match=r"layers ü/0.bin is damaged: expected"):
        checkpoint.open("layers ü/0.bin")
    with pytest.raises(CheckpointError, match="found damaged before"):
        Checkpoint(uri).files()


def test_one_that_retention_took_is_said(uri: str, any_store: Store) -> None:
    any_store.delete(layout.manifest_key(CheckpointId.parse("1-1-1")))
    if uri.startswith("s3://"):
        with pytest.raises(CheckpointError, match=r"holds no checkpoint.*retention"):
            Checkpoint(uri).files()


def test_metadata_and_dicts_need_their_own_file_alone(
    any_store: Store, tmp_path: Path, own_temporary_folder: Path
) -> None:
    source = Checkpoint.from_dict({"epoch": 3})
    source.set_metadata({"a": 1})
    files = {name: (Path(source.path, name).read_bytes(), 0) for name in os.listdir(source.path)}
    checkpoint = Checkpoint(committed(any_store, tmp_path / "dict", {**files, "large.bin": (bytes(1000), 0)}))
    del source
    assert checkpoint.get_metadata() == {"a": 1}
    assert checkpoint.to_dict() == {"epoch": 3}
    assert "large.bin" not in brought(own_temporary_folder)


def _noted(store: Store, tmp_path: Path, place: str) -> str:
    """The URI of a checkpoint whose files user code has put to `place`."""
    folder = tmp_path / "note"
    folder.mkdir()
    elsewhere.write(str(folder), place)
    return committed(store, tmp_path / "staged note", {elsewhere.FILE: ((folder / elsewhere.FILE).read_bytes(), 0)})


def test_a_note_that_could_not_be_read_is_read_again(any_store: Store, tmp_path: Path) -> None:
    place = tmp_path / "mine"
    place.mkdir()
    (place / "model.pt").write_bytes(b"weights")
    uri = _noted(any_store, tmp_path, str(place))
    manifest = any_store.read("checkpoints/1-1-1/.trainjob/manifest.json")
    overwrite(uri, ".trainjob/manifest.json", b"torn")
    checkpoint = Checkpoint(uri)
    with pytest.raises(CheckpointError):
        checkpoint.files()
    overwrite(uri, ".trainjob/manifest.json", manifest)
    assert checkpoint.files() == ["model.pt"] and checkpoint.path == str(place)


def test_a_copy_in_another_process_of_one_whose_files_are_in_a_bucket_elsewhere(
    any_store: Store, tmp_path: Path
) -> None:
    checkpoint = Checkpoint(_noted(any_store, tmp_path, "s3://bucket/mine"))
    for _ in range(2):
        with pytest.raises(CheckpointError, match="were put to s3://bucket/mine by your own code"):
            checkpoint.files()
        assert checkpoint.path == "s3://bucket/mine"
        checkpoint = pickle.loads(pickle.dumps(checkpoint))


def test_handles_of_a_result_and_of_the_list_know_the_place_of_files_elsewhere(
    any_store: Store, tmp_path: Path
) -> None:
    uri = _noted(any_store, tmp_path, "s3://bucket/mine")
    of_result = result.handle(uri.rpartition("/checkpoints/")[0], catalogue.read_manifest(uri))
    (row,) = OPERATIONS["reported"].run(any_store, {"run": 1}, lambda total: None)["checkpoints"]
    for checkpoint in (of_result, Checkpoint.from_restored(row)):
        assert pickle.loads(pickle.dumps(checkpoint)).path == "s3://bucket/mine"
        assert checkpoint.path == "s3://bucket/mine" and checkpoint.uri == uri


def test_the_path_of_one_that_lies_in_a_bucket_asks_nobody(bucket_store: Store, tmp_path: Path) -> None:
    uri = committed(bucket_store, tmp_path / "staged", FILES)
    checkpoint = result.handle(uri.rpartition("/checkpoints/")[0], catalogue.read_manifest(uri))
    for path in (".trainjob/manifest.json", "model.pt"):
        overwrite(uri, path, None)
    assert checkpoint.path == uri
