"""Replies that are not the store's: heads that broke off, and a proxy that has no way to it. Of what they do not say nothing
is taken for granted: a list of names without its body would be an empty one, an object that a proxy does not know one that
is not there, and a job would begin anew beside its checkpoints.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import s3
from support.s3_faults import CUT_BEHIND, NO_STORE, Faults
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.s3 import parts, replies
from trainjob.checkpoint.stores.s3 import requests as s3_requests
from trainjob.checkpoint.stores.store import Store
from trainjob.checkpoint.stores.transfer import nothing

PLACES = ("http/1.1", "\r\n", "date: ", "\r\ncontent-length: ", "\r\ncontent-length: 0")
"""Ends of what came of a head, all of which the standard library takes for whole ones; the last of replies without a body."""


class Bucket:
    """With two objects in folder a, and an upload that was begun there."""

    def __init__(self, store: Store, faults: Faults, folder: Path) -> None:
        self.store, self.faults, self._folder = store, faults, folder
        self._unused = map(str, itertools.count())
        store.put("a/x", b"x" * 300)
        store.put("a/y", b"")
        self.source = folder / "source"
        self.source.write_bytes(b"s" * (6 << 20))

    def unused(self) -> str:
        return f"b/{next(self._unused)}"

    def uploaded(self) -> bytes | None:
        """By parts."""
        key = self.unused()
        self.store.upload(key, str(self.source), nothing)
        return self.store.read(key)

    def put(self) -> bytes | None:
        key = self.unused()
        self.store.put(key, b"p")
        return self.store.read(key)

    def deleted(self) -> bytes | None:
        self.store.put(key := self.unused(), b"d")
        self.store.delete(key)
        return self.store.read(key)


WORK: dict[str, Callable[[Bucket], object]] = {
    "names": lambda b: b.store.names("a"),
    "sizes": lambda b: b.store.sizes("a"),
    "size": lambda b: b.store.size("a/x"),
    "size of none": lambda b: b.store.size("a/none"),
    "contents": lambda b: b.store.read("a/x"),
    "contents of none": lambda b: b.store.read("a/none"),
    "checksum": lambda b: b.store.checksum("a/x", nothing),
    "create": lambda b: b.store.create(b.unused(), b"c"),
    "name that is taken": lambda b: b.store.create("a/x", b"other"),
    "put": Bucket.put,
    "delete": Bucket.deleted,
    "upload by parts": Bucket.uploaded,
}


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bucket]:
    monkeypatch.setattr(s3_requests, "PAUSE_S", 0.0005)
    monkeypatch.setattr(parts, "SINGLE", 5 << 20)
    faults = Faults(s3.endpoint())
    s3.use(monkeypatch, faults.endpoint)
    yield Bucket(open_store(s3.fresh_uri()), faults, tmp_path)
    faults.close()


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_a_head_that_broke_off_changes_no_answer(bucket: Bucket, work: Callable[[Bucket], object]) -> None:
    bucket.faults.always(None)
    wanted, count = work(bucket), len(bucket.faults.requests)
    for number, place in itertools.product(range(1, count + 1), PLACES):
        bucket.faults.spoil(number, CUT_BEHIND + place)
        assert work(bucket) == wanted, f"request {number} of {count}, cut behind {place!r}"
        assert bucket.faults.struck


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_a_proxy_that_has_no_way_to_the_store_is_asked_again(bucket: Bucket, work: Callable[[Bucket], object]) -> None:
    bucket.faults.always(None)
    wanted, count = work(bucket), len(bucket.faults.requests)
    for number in range(1, count + 1):
        bucket.faults.spoil(number, NO_STORE)
        assert work(bucket) == wanted, f"request {number} of {count}"
        assert bucket.faults.struck


def test_a_proxy_that_finds_no_way_is_named_in_the_end(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.use(monkeypatch, bucket.faults.endpoint, retry_s=0.01)
    store = open_store(bucket.store.uri())
    bucket.faults.always(NO_STORE)
    for work in (lambda: store.read("a/x"), lambda: store.names("a"), lambda: store.put("a/z", b"z")):
        with pytest.raises(StoreError, match="something that is no object store answers"):
            work()


def test_a_list_without_a_word_is_no_empty_one_even_where_boto3_takes_such_heads(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a botocore whose connections are made in another way."""
    s3.use(monkeypatch, bucket.faults.endpoint, timeout_s=9)  # a client of its own
    monkeypatch.setattr(replies, "only_whole", lambda client: None)
    store = open_store(bucket.store.uri())
    for work in (lambda: store.names("a"), lambda: store.sizes("a")):
        bucket.faults.always(None)
        wanted = work()
        bucket.faults.spoil(1, CUT_BEHIND + "\r\n")
        assert work() == wanted != []
        assert bucket.faults.struck
