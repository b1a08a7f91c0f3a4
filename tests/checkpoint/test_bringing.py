"""The storage child's operations by which a worker restores: chosen files alone, every fault at every request,
damage remembered.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import s3
from support.reading import committed, overwrite
from support.s3_faults import Faults
from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import DamagedError, StoreError
from trainjob.checkpoint.reading import runs
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.storage_child import bringing
from trainjob.checkpoint.storage_child.operations import perform
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.store import Store
from trainjob.checkpoint.stores.transfer import nothing

FILES = {"a.bin": (b"a" * 1000, 0), "deep/b.bin": (b"b" * 1000, 1), "c.bin": (b"", 1)}
ID = "1-1-1"


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    """Each test is a storage child of its own."""
    bringing._manifests.clear()
    yield
    bringing._manifests.clear()


def ask(store: Store, op: str, **fields: Any) -> dict[str, Any]:
    return perform({"op": op, "storage": store.uri(), **fields}, nothing)


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_manifest_says_what_is_there(any_store: Store, tmp_path: Path) -> None:
    uri = committed(any_store, tmp_path / "staged", FILES)
    said = ask(any_store, "manifest", checkpoint=ID)
    assert said == ask(any_store, "manifest", uri=uri)
    assert {path for path, _, _ in said["sums"]} == set(FILES)
    assert said["note"]["id"] == ID
    assert said["path"] == (uri if uri.startswith("/") else None)
    with pytest.raises(StoreError, match="holds no checkpoint") as caught:
        ask(any_store, "manifest", checkpoint="1-1-2")
    assert caught.value.kind == errors.LOST


def test_chosen_files_are_brought_or_compared_where_they_lie(any_store: Store, tmp_path: Path) -> None:
    uri = committed(any_store, tmp_path / "staged", FILES)
    overwrite(uri, "a.bin", b"!" * 1000)
    said = ask(any_store, "verify", checkpoint=ID, paths=["deep/b.bin", "c.bin"], into=str(tmp_path / "into"))
    if uri.startswith("s3://"):
        assert said == {"path": str(tmp_path / "into"), "bytes": 1000}
        assert tree(tmp_path / "into") == {"deep/b.bin": b"b" * 1000, "c.bin": b""}
    else:
        assert said == {"path": uri, "bytes": 1000}
        assert not (tmp_path / "into").exists()
    with pytest.raises(DamagedError, match=r"a\.bin is damaged"):
        ask(any_store, "verify", checkpoint=ID, paths=["a.bin"], into=str(tmp_path / "into"))
    assert any_store.size(layout.damaged_key(CheckpointId.parse(ID))) is not None


def test_damage_elsewhere_is_remembered_in_this_jobs_folder(any_store: Store, tmp_path: Path) -> None:
    other = open_store(any_store.uri() + "-other")
    uri = committed(other, tmp_path / "staged", FILES)
    claim = runs.claim(any_store, "uid", uri, [])
    overwrite(uri, "a.bin", None)
    with pytest.raises(DamagedError, match="no such file"):
        ask(any_store, "verify", uri=uri, paths=["a.bin"], into=str(tmp_path / "into"))
    assert any_store.size(layout.origin_mark_key(uri)) is not None
    with pytest.raises(DamagedError, match=r"turned out damaged when it was restored"):
        runs.origin(any_store, claim, [])


def test_a_path_that_the_checkpoint_does_not_have_is_a_malformed_request(any_store: Store, tmp_path: Path) -> None:
    committed(any_store, tmp_path / "staged", FILES)
    with pytest.raises(StoreError, match=r"malformed request verify: KeyError: '\.\./outside'") as caught:
        ask(any_store, "verify", checkpoint=ID, paths=["a.bin", "../outside"], into=str(tmp_path / "into"))
    assert caught.value.kind == errors.INVALID


def test_files_from_elsewhere_are_compared(any_store: Store, tmp_path: Path) -> None:
    committed(any_store, tmp_path / "came", FILES)
    sums = [
        [path, len(FILES[path][0]), checksum, algorithm]
        for path, checksum, algorithm in ask(any_store, "manifest", checkpoint=ID)["sums"]
    ]
    assert ask(any_store, "compare", folder=str(tmp_path / "came"), files=sums) == {"different": []}
    (tmp_path / "came/a.bin").write_bytes(b"a" * 999 + b"!")
    (tmp_path / "came/deep/b.bin").unlink()
    assert ask(any_store, "compare", folder=str(tmp_path / "came"), files=sums) == {
        "different": ["a.bin", "deep/b.bin"]
    }


@pytest.mark.parametrize("kind", ["drop", "503", "cut", "reset", "flip", "403"])
def test_every_fault_at_every_request_of_a_partial_restore(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct_uri = s3.fresh_uri()
    s3.use(monkeypatch, s3.endpoint())
    committed(open_store(direct_uri), tmp_path / "staged", FILES)
    faults = Faults(s3.endpoint())
    s3.use(monkeypatch, faults.endpoint)
    store = open_store(direct_uri)
    try:
        at, struck = 0, 1
        while struck:
            at += 1
            bringing._manifests.clear()
            faults.spoil(at, kind)
            into = tmp_path / str(at)
            try:
                ask(store, "manifest", checkpoint=ID)
                ask(store, "verify", checkpoint=ID, paths=["a.bin", "deep/b.bin"], into=str(into))
            except StoreError as error:
                assert kind == "403", (at, error)
            else:
                assert tree(into) == {"a.bin": b"a" * 1000, "deep/b.bin": b"b" * 1000}, at
            struck = faults.struck
            faults.always(None)
            assert store.size(layout.damaged_key(CheckpointId.parse(ID))) is None, at
        assert at > 4
    finally:
        faults.close()
