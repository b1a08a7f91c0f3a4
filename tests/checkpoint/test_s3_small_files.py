"""Thousands of small files over S3: what goes side by side, what does not, and that both come to the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import s3
from support.s3_faults import Faults
from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.reading import stored
from trainjob.checkpoint.records.manifest import FileEntry
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.s3 import requests as s3_requests
from trainjob.checkpoint.stores.s3.errands import LIMIT, TOLERATED
from trainjob.checkpoint.stores.s3.small_files import FEW
from trainjob.checkpoint.stores.store import Store, Stored, Wanted
from trainjob.checkpoint.stores.transfer import nothing

SIZES = {
    "empty": 0,
    "one byte": 1,
    "ü and space": 1000,
    "at the limit": LIMIT,
    **{f"deep/er/part-{n}": 100 + n for n in range(20)},
}


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    made = Faults(s3.endpoint())
    monkeypatch.setattr(s3_requests, "_clients", {})
    monkeypatch.setattr(s3_requests, "PAUSE_S", 0.002)
    s3.use(monkeypatch, made.endpoint)
    yield made
    made.close()


@pytest.fixture
def store(faults: Faults) -> Store:
    return open_store(s3.fresh_uri())


def rows(folder: Path, sizes: dict[str, int]) -> list[tuple[str, str, int]]:
    """Files of these sizes, as a store takes them."""
    for name, size in sizes.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(os.urandom(size))
    return [(f"f/{name}", str(folder / name), size) for name, size in sizes.items()]


def wanted(up: dict[str, Stored], into: Path | None) -> list[Wanted]:
    return [Wanted(key, None if into is None else str(into / key), expected) for key, expected in up.items()]


def test_small_files_take_one_request_each_both_ways(store: Store, faults: Faults, tmp_path: Path) -> None:
    files = rows(tmp_path, {**SIZES, "large": LIMIT + 1})
    store.size("x")  # credentials and the like are there
    moved: list[int] = []
    faults.follow(None)
    up = store.upload_small(files, moved.append)
    assert set(up) == {key for key, _, size in files if size <= LIMIT}, "the large one is left to others"
    assert len(faults.requests) == len(up) == len(SIZES) and sum(moved) == sum(SIZES.values())
    assert all(store.checksum(key, nothing, store.algorithm) == found for key, found in up.items()), (
        "as `upload` would have said"
    )
    faults.follow(None)
    assert (
        store.download_small(wanted(up, tmp_path / "brought"), moved.append)
        == set(up)
        == store.download_small(wanted(up, None), nothing)
    )
    assert len(faults.requests) == 2 * len(up) and sum(moved) == 2 * sum(SIZES.values())
    assert all(
        (tmp_path / "brought" / key).read_bytes() == (tmp_path / key.removeprefix("f/")).read_bytes() for key in up
    )


def test_a_few_are_not_worth_it(store: Store, faults: Faults, tmp_path: Path) -> None:
    files = rows(tmp_path, {f"part-{n}": 10 for n in range(FEW - 1)})
    assert store.upload_small(files, nothing) == {} and not faults.requests


def test_what_is_there_is_not_written_again_and_what_is_another_stays(store: Store, tmp_path: Path) -> None:
    files = rows(tmp_path, SIZES)
    store.create("f/one byte", b"!" if (tmp_path / "one byte").read_bytes() != b"!" else b"?")
    kept = store.read("f/one byte")
    up = store.upload_small(files, nothing)
    assert set(SIZES) - {key.removeprefix("f/") for key in up} == {"one byte"}
    assert store.upload_small(files, nothing) == {}, "the names are taken"
    assert store.read("f/one byte") == kept
    with pytest.raises(StoreError, match="is stored already with 1 bytes") as caught:
        store.upload("f/one byte", str(tmp_path / "one byte"), nothing)
    assert caught.value.kind == errors.CONFLICT
    assert store.upload("f/empty", str(tmp_path / "empty"), nothing) == up["f/empty"]


def test_a_file_that_changed_since_is_left_to_who_can_say_so(store: Store, tmp_path: Path) -> None:
    files = rows(tmp_path, SIZES)
    (tmp_path / "ü and space").write_bytes(b"more" * 1000)
    (tmp_path / "empty").unlink()
    assert {key.removeprefix("f/") for key in store.upload_small(files, nothing)} == set(SIZES) - {
        "ü and space",
        "empty",
    }


def test_what_is_damaged_missing_or_of_another_size_does_not_count_as_come(store: Store, tmp_path: Path) -> None:
    up = store.upload_small(rows(tmp_path, SIZES), nothing)
    store.put("f/one byte", b"\0\0")
    store.put("f/ü and space", bytes(1000))
    store.delete("f/empty")
    brought = tmp_path / "brought"
    assert {key.removeprefix("f/") for key in store.download_small(wanted(up, brought), nothing)} == set(SIZES) - {
        "one byte",
        "ü and space",
        "empty",
    }
    assert not (brought / "f/ü and space").exists(), "only what is right is written"
    entries = [FileEntry(key, *found, 0) for key, found in up.items()]
    found = stored.damages(store, "", entries, nothing)
    assert [line.partition(" is damaged: ")[2].partition(" over ")[0] for line in found] == [
        "expected 0 bytes, found no such file",
        "expected 1 bytes, found 2 bytes",
        f"expected {store.algorithm} {up['f/ü and space'].checksum}",
    ]


def test_an_overloaded_store_is_not_pressed(store: Store, faults: Faults, tmp_path: Path) -> None:
    """It is left to the patient way, which waits between its tries."""
    files = rows(tmp_path, {f"part-{n}": 10 for n in range(300)})
    store.size("x")
    faults.always("503")
    assert store.upload_small(files, nothing) == {}
    assert TOLERATED < len(faults.requests) < 150


def test_no_room_here_is_told_at_once(store: Store, tmp_path: Path) -> None:
    up = store.upload_small(rows(tmp_path, SIZES), nothing)
    (tmp_path / "file").write_text("in the way of a folder")
    with pytest.raises(StoreError, match=r"cannot write .*/file/f/"):
        store.download_small(wanted(up, tmp_path / "file"), nothing)


def test_no_credentials_are_told_in_a_sentence(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = rows(tmp_path, SIZES)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setattr(s3_requests, "_clients", {})
    with pytest.raises(StoreError, match="there are no credentials"):
        open_store(store.uri(), retry_s=0.1).upload_small(files, nothing)


def test_expired_credentials_are_renewed_by_the_patient_way(store: Store, faults: Faults, tmp_path: Path) -> None:
    files = rows(tmp_path, SIZES)
    faults.follow(lambda at, _request: "expired" if at <= 3 else None)
    up = store.upload_small(files, nothing)
    assert len(up) == len(SIZES) - 3
    for key, path, _ in files:
        up.setdefault(key, store.upload(key, path, nothing))
    assert len(up) == len(SIZES)
