"""The path store: exclusive names, and one worded error for everything that storage can do wrong."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.checkpoint import Job, write_tree
from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import CheckpointError, StoreError
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.path_store import PathStore
from trainjob.checkpoint.stores.store import Stored
from trainjob.checkpoint.stores.transfer import each, nothing


@pytest.fixture
def store(tmp_path: Path) -> PathStore:
    return PathStore(str(tmp_path / "a store ü"))


def test_a_name_that_is_taken_leaves_no_temporary_file(store: PathStore) -> None:
    assert store.create("a/b/c.json", b"first")
    assert not store.create("a/b/c.json", b"second")
    store.put("a/b/c.json", b"third")
    assert os.listdir(os.path.join(store.root, "a/b")) == ["c.json"]


def test_what_is_below_a_file_is_not_there(store: PathStore) -> None:
    store.create("file", b"")
    assert store.read("file/below") is None and store.names("file") == []


def test_an_upload_that_is_there_is_not_written_again(store: PathStore, tmp_path: Path) -> None:
    write_tree(tmp_path, {"one": b"x" * 3_000_001})
    stored = store.upload("d/f", str(tmp_path / "one"), nothing)
    assert stored == Stored(3_000_001, f"{zlib.crc32(b'x' * 3_000_001):08x}", "crc32")
    inode = os.stat(store.uri("d/f")).st_ino
    assert store.upload("d/f", str(tmp_path / "one"), nothing) == stored
    assert os.stat(store.uri("d/f")).st_ino == inode


def test_temporary_files_are_passed_over_and_empty_folders_pruned(store: PathStore) -> None:
    store.create("c/1/x/f", b"1")
    Path(store.uri("c/1/x/.trainjob-tmp-9-ab")).write_bytes(b"torn")
    assert store.names("c/1/x") == [("f", False)]
    assert store.unfinished("c") == ["c/1/x/.trainjob-tmp-9-ab"]
    store.prune("c/1")
    assert store.read("c/1/x/f") == b"1"
    store.tidy("c")
    assert list(store.sizes("c")) == ["c/1/x/f"]
    store.delete("c/1/x/f")
    store.prune("c/1")
    assert store.names("c") == []


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("gs://bucket/x", "gs:// is not supported by this version. Give the absolute path"),
        ("s3://b/x", "'b' is not 3 to 63 lower-case letters"),
        ("s3://bucket//x/../y", "has an empty part"),
        ("results/x", "is not an absolute path. Give one, for example /"),
        ("", "is not an absolute path"),
    ],
)
def test_other_storage_is_refused_in_a_sentence(uri: str, expected: str) -> None:
    with pytest.raises(StoreError, match=expected) as caught:
        open_store(uri)
    assert caught.value.kind == errors.INVALID


def test_a_file_uri_is_a_path() -> None:
    assert open_store("file:///mnt/a%20b").uri() == "/mnt/a b"


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Small file systems with the mount options that a test asks for."""
    folders = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"mount {len(folders)}"
        folder.mkdir()
        if (
            os.geteuid() != 0
            or subprocess.run(
                ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True
            ).returncode
        ):
            pytest.skip("mounting a file system needs root")
        folders.append(folder)
        return folder

    try:
        yield mount
    finally:
        for folder in folders:
            subprocess.run(["umount", str(folder)], check=True)


def failure(work: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(CheckpointError) as caught:
        work()
    return caught.value.kind, str(caught.value)


def test_a_full_storage_is_one_clear_error_and_can_be_gone_on_with(
    mounted: Callable[[str], Path], tmp_path: Path
) -> None:
    disk = mounted("size=1m")
    job = Job(tmp_path)
    job.folder, job.store = disk / "job", PathStore(str(disk / "job"))
    write_tree(disk, {"hog": b"x" * 1_000_000})
    big = write_tree(tmp_path / "big", {"m": b"m" * 200_000})
    kind, text = failure(lambda: job.store.upload("checkpoints/1-1-1/m", str(big / "m"), nothing))
    assert kind == errors.FULL
    assert (
        "cannot store" in text
        and "1-1-1/m: No space left on device; likely the file system is full" in text
        and "checkpoint.keep" in text
    )
    assert [p.name for p in disk.rglob("*") if p.is_file()] == ["hog"]
    (disk / "hog").unlink()
    job.save("1-1-1")
    assert job.good() == ["1-1-1"]


def test_a_file_size_limit_is_one_clear_error(store: PathStore, tmp_path: Path) -> None:
    big = write_tree(tmp_path / "big", {"m": b"m" * 200_000}) / "m"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        kind, text = failure(lambda: store.upload("m", str(big), nothing))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert kind == errors.FULL and "File too large" in text and "ulimit -f" in text
    assert store.names("") == [] and os.listdir(store.root) == []


def test_read_only_storage_is_one_clear_error(mounted: Callable[[str], Path]) -> None:
    disk = mounted("size=1m")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    kind, text = failure(PathStore(str(disk / "job")).probe)
    assert kind == errors.READ_ONLY
    assert (
        f"cannot make the folder {disk}/job: Read-only file system; likely the file system is mounted read-only. "
        "Mount it writable" in text
    )


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user reaches; pytest's own are private."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_a_parent_that_may_not_be_written_is_named(open_folder: Path) -> None:
    parent = open_folder / "locked"
    parent.mkdir()
    parent.chmod(0o555)

    def probe() -> tuple[str, str]:
        return failure(PathStore(str(parent / "ns/job")).probe)

    kind, text = as_nobody(probe) if os.geteuid() == 0 else probe()
    assert kind == errors.READ_ONLY
    assert f"cannot make the folder {parent}/ns: Permission denied; likely user" in text and f"ls -ld {parent}" in text


def as_nobody(work: Callable[[], tuple[str, str]]) -> tuple[str, str]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setuid(65534)
            os.write(writer, "\0".join(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader, "rb") as pipe:
        kind, text = pipe.read().decode().split("\0")
    return kind, text


def test_a_file_where_a_folder_should_be_is_named(tmp_path: Path) -> None:
    write_tree(tmp_path, {"file": b""})
    kind, text = failure(PathStore(str(tmp_path / "file/job")).probe)
    assert (
        kind == errors.READ_ONLY
        and f"cannot make the folder {tmp_path}/file: a file of that name is in the way" in text
    )


def test_a_staged_file_that_is_gone_is_named(store: PathStore) -> None:
    kind, text = failure(lambda: store.upload("m", "/nowhere/m", nothing))
    assert kind == errors.LOST and "cannot read the staged file /nowhere/m: No such file" in text


def test_probe_leaves_nothing(store: PathStore) -> None:
    store.probe()
    assert os.listdir(store.root) == []


def test_the_first_error_of_many_threads_is_the_one_that_is_raised() -> None:
    done: list[int] = []

    def work(item: int) -> None:
        if item == 50:
            raise KeyError(item)
        done.append(item)

    with pytest.raises(KeyError):
        each(range(10_000), work, 4)
    assert len(done) < 9_999
    done.clear()
    each(range(50), work, 4)
    assert sorted(done) == list(range(50))
    each([], work, 4)
