"""Replies that are not the store's: heads that broke off, and what a proxy, a page to log in at or another server says in
its place. Of what they do not say nothing is taken for granted: a list of names without its body would be an empty one, an
object that a proxy does not know one that is not there, what it let pass away one that is stored, and a job would begin anew
beside its checkpoints, or have none where it was told of one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from support import s3
from support.s3_faults import BEYOND, CUT_BEHIND, INSTEAD, NO_STORE, Faults
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.stores import digest
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.s3 import bodies as s3_bodies
from trainjob.checkpoint.stores.s3 import parts, replies
from trainjob.checkpoint.stores.s3 import requests as s3_requests
from trainjob.checkpoint.stores.s3.boto import Boto
from trainjob.checkpoint.stores.store import Store, Stored
from trainjob.checkpoint.stores.transfer import nothing

PLACES = ("http/1.1", "\r\n", "date: ", "\r\ncontent-length: ", "\r\ncontent-length: 0")
"""Ends of what came of a head, all of which the standard library takes for whole ones; the last of replies without a body."""


def says(status: int, body: str = "", *headers: str, kind: str = "text/html") -> str:
    lines = (f"HTTP/1.1 {status} X", *headers, f"Content-Type: {kind}", f"Content-Length: {len(body)}", "", body)
    return "\r\n".join(lines)


def says_xml(status: int, body: str, encoding: str = "UTF-8") -> str:
    return says(status, f"<?xml version='1.0' encoding='{encoding}'?>{body}", kind="application/xml")


def lists(*said: str, prefix: str = "a folder ü/job/a/") -> str:
    # Its length counts bytes, its text may hold others than ASCII.
    return says_xml(
        200, f"<ListBucketResult><Prefix>{prefix}</Prefix>{''.join(said)}</ListBucketResult>".replace("ü", "&#252;")
    )


PAGE = "<html><head><title>Welcome</title></head><body><p>Please log in</p></body></html>"
KEY = "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00Z</LastModified><Size>1</Size></Contents>"
OTHERS = {
    "nothing": says(200),
    "a page": says(200, PAGE),
    "a page with a version": says(200, PAGE, 'ETag: W/"1"', "Content-Range: bytes 5-299/300"),
    "no XML": says(200, "<p>one<br>two"),
    "JSON": says(200, '{"ok": true}', kind="application/json"),
    "no length": f"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{PAGE}",
    "pieces": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n<html\r\n0\r\n\r\n",
    "another yes": says(201),
    "a later yes": says(202, "", 'ETag: "x"'),
    "another range": says(206, "y" * 300, 'ETag: "x"', "Content-Range: bytes 5-299/300", kind="text/plain"),
    "a hint": "HTTP/1.1 103 Early Hints\r\n\r\n",
    "buckets": says_xml(200, "<ListAllMyBucketsResult><Owner/><Buckets/><Prefix/></ListAllMyBucketsResult>"),
    "another list": lists(prefix="another folder/"),
    "names of others": lists(KEY.format("another folder/x")),
    "a list of nonsense": lists(KEY.format("a folder &#252;/job/a/x").replace("2026-01-01T00:00:00Z", "never")),
    "a list of no sizes": lists("<Contents><Key>a folder &#252;/job/a/x</Key></Contents>"),
    "a list that goes on nowhere": lists("<IsTruncated>true</IsTruncated>"),
    "elsewhere": says(302, PAGE, "Location: http://127.0.0.1:1/login"),
    "who are you": says(401, PAGE),
    "a firewall": says(403, "RBAC: access denied", kind="text/plain"),
    "no such method": says(405, PAGE),
    "too large": says(413, PAGE),
    "no such range": says(416, PAGE),
    "not mine": says(501),
    "a network's own page": says(511, PAGE),
    "words that nobody reads": says_xml(500, "<Error><Code>InternalError</Code></Error>", "shift_jis"),
    "no encoding": says_xml(500, "<Error><Code>InternalError</Code></Error>", "nonsense"),
}
"""What else than the store may say in its place."""


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

    def created(self) -> tuple[bool, bytes | None]:
        key = self.unused()
        return self.store.create(key, b"c"), self.store.read(key)

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
    "create": Bucket.created,
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


@pytest.mark.parametrize("way", ["of its own", "boto3's"])
@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_what_others_say_in_the_stores_place_changes_no_answer(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, work: Callable[[Bucket], object], way: str
) -> None:
    if way == "boto3's":
        monkeypatch.setattr(s3_bodies, "bodies", lambda client, session, settings, name: Boto(client, name))
    bucket.faults.always(None)
    wanted, count = work(bucket), len(bucket.faults.requests)
    for number, what in itertools.product(range(1, count + 1), OTHERS):
        bucket.faults.spoil(number, INSTEAD + OTHERS[what])
        assert work(bucket) == wanted, f"request {number} of {count}, answered by {what}"
        assert bucket.faults.struck


def test_a_yes_that_never_was_the_stores_is_none_in_the_end(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """No claim, no checkpoint counts as stored, and none as removed."""
    s3.use(monkeypatch, bucket.faults.endpoint, retry_s=0.01)
    store = open_store(bucket.store.uri())
    bucket.faults.always(INSTEAD + says(200))
    work: tuple[Callable[[], object], ...] = (
        lambda: store.create("a/z", b"z"),
        lambda: store.put("a/z", b"z"),
        lambda: store.upload("a/z", str(bucket.source), nothing),
        lambda: store.delete("a/x"),
        store.probe,
    )
    for each in work:
        with pytest.raises(StoreError, match="something that is no object store answers"):
            each()


MORE = "<IsTruncated>true</IsTruncated>"
NEXT = MORE + "<NextContinuationToken>{}</NextContinuationToken>"
ENDLESS = {
    "no token": lambda number: lists(MORE),
    "one token": lambda number: lists(NEXT.format("again")),
    "two in turn": lambda number: lists(NEXT.format(number % 2)),
    "a list of the first version": lambda number: lists(MORE + "<NextMarker>x</NextMarker>"),
}


@pytest.mark.parametrize("page", ENDLESS.values(), ids=ENDLESS)
def test_a_list_that_never_ends_is_given_up(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, page: Callable[[int], str]
) -> None:
    s3.use(monkeypatch, bucket.faults.endpoint, retry_s=0.01)
    store = open_store(bucket.store.uri())
    bucket.faults.follow(lambda number, _request: INSTEAD + page(number) if number < 500 else "403")
    with pytest.raises(StoreError, match="says that it goes on"):
        store.names("a")
    assert len(bucket.faults.requests) < 100


def test_uploads_of_other_jobs_are_theirs_where_a_store_knows_no_prefix(bucket: Bucket) -> None:
    """What is unfinished below a folder is aborted there once a checkpoint is committed."""
    rows = "".join(
        f"<Upload><Key>{key}</Key><UploadId>u</UploadId></Upload>"
        for key in ("another/job/a/x", "a folder &#252;/job/a/z")
    )
    page = says_xml(200, f"<ListMultipartUploadsResult><Bucket>b</Bucket>{rows}</ListMultipartUploadsResult>")
    bucket.faults.follow(lambda _number, request: INSTEAD + page if "?uploads" in request else None)
    assert bucket.store.unfinished("a") == ["a/z"]
    bucket.store.tidy("a")
    assert [
        request for request in bucket.faults.requests if request.startswith("DELETE") and "another" in request
    ] == []
    assert [request for request in bucket.faults.requests if request.startswith("DELETE")]


def test_a_range_behind_the_end_may_bring_nothing(bucket: Bucket) -> None:
    """What is shorter than it should be is so, and no outage."""
    bucket.faults.always(BEYOND)
    store, algorithm = bucket.store, bucket.store.algorithm
    assert store.size("a/y") == 0
    for key, data in (("a/x", b"x" * 300), ("a/y", b"")):
        found = Stored(len(data), digest.text(algorithm, digest.update(algorithm, data)), algorithm)
        for size in (None, parts.PART + 1, len(data)):
            assert store.checksum(key, nothing, algorithm, size) == found


def test_a_store_that_has_never_seen_an_upload_may_say_so(bucket: Bucket) -> None:
    """As `rclone serve s3` does: 404 to the list of them."""
    none = says_xml(404, "<Error><Code>NoSuchUpload</Code></Error>")
    bucket.faults.follow(lambda _number, request: INSTEAD + none if "?uploads" in request else None)
    assert bucket.store.unfinished("a") == []
    bucket.store.tidy("a")


def test_a_store_that_says_no_more_than_that_it_is_done_is_believed_once_what_it_removed_is_gone(
    bucket: Bucket,
) -> None:
    """As some do, where S3 says that there is no content."""
    client = s3.client(s3.endpoint())
    _, _, name, prefix = bucket.store.uri("a").split("/", 3)
    client.create_multipart_upload(Bucket=name, Key=f"{prefix}/z")

    def done(_number: int, request: str) -> str | None:
        if not request.startswith("DELETE"):
            return None
        path, _, upload = unquote(request.split(" ")[1]).partition("?uploadId=")
        if upload:
            client.abort_multipart_upload(Bucket=name, Key=f"{prefix}/z", UploadId=upload)
        else:
            s3.forget(path)
        return INSTEAD + says(200, kind="application/xml")

    bucket.faults.follow(done)
    bucket.store.delete("a/x")
    bucket.store.tidy("a")
    assert bucket.store.unfinished("a") == [] and bucket.store.names("a") == [("y", False)]
    assert len(bucket.faults.struck) == 2, "asked once each"


def test_a_range_that_comes_with_the_whole_objects_checksum_is_taken(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As some stores send it; boto3 would compare the two."""
    monkeypatch.setattr(s3_bodies, "bodies", lambda client, session, settings, name: Boto(client, name))
    whole = 'ETag: "x"', "Content-Range: bytes 0-0/300", "x-amz-checksum-crc32: AAAAAA=="
    bucket.faults.spoil(1, INSTEAD + says(206, "x", *whole, kind="binary/octet-stream"))
    assert bucket.store.size("a/x") == 300 and len(bucket.faults.requests) == 1


def test_no_request_has_a_header_that_gateways_refuse(bucket: Bucket) -> None:
    """Some refuse each that they do not know (s3proxy: `x-amz-mp-object-size`)."""
    for work in WORK.values():
        work(bucket)
    known = {"checksum-algorithm", "checksum-mode", "checksum-type", "content-sha256", "date", "sdk-checksum-algorithm"}
    used = {name for name in bucket.faults.headers if name.startswith("x-amz-")}
    assert used <= {f"x-amz-{name}" for name in (*known, f"checksum-{bucket.store.algorithm}")}


def test_a_head_that_has_no_end_is_none(bucket: Bucket) -> None:
    bucket.faults.always(None)
    wait, other = "HTTP/1.1 100 Continue\r\n\r\n", says(200, "other", 'ETag: "x"', kind="text/plain")
    bucket.faults.spoil(1, INSTEAD + wait * replies.LINES + other)
    assert bucket.store.read("a/x") == b"x" * 300 and bucket.faults.struck


@pytest.mark.parametrize("what", ["", "elsewhere", "who are you", "a firewall"])
def test_a_proxy_that_finds_no_way_is_named_in_the_end(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    s3.use(monkeypatch, bucket.faults.endpoint, retry_s=0.01)
    store = open_store(bucket.store.uri())
    bucket.faults.always(INSTEAD + OTHERS[what] if what else NO_STORE)
    for work in (lambda: store.read("a/x"), lambda: store.names("a"), lambda: store.put("a/z", b"z")):
        with pytest.raises(StoreError, match="something that is no object store answers"):
            work()


def test_a_proxy_that_takes_no_large_request_is_told_as_that(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """nginx takes 1 MiB unless it is told otherwise."""
    s3.use(monkeypatch, bucket.faults.endpoint, retry_s=0.01)
    store = open_store(bucket.store.uri())
    bucket.faults.follow(lambda _number, request: INSTEAD + OTHERS["too large"] if request.startswith("PUT") else None)
    with pytest.raises(StoreError, match=r"takes no request of that size.* client_max_body_size"):
        store.upload("a/z", str(bucket.source), nothing)


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
