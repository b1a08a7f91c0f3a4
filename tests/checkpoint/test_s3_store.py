"""The S3 store by itself: parts, unfinished uploads, settings, what a start finds wrong; against a real server."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import s3
from support.checkpoint import Job
from support.s3_faults import Faults
from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StagingError, StoreError
from trainjob.checkpoint.publishing.retention import Policy
from trainjob.checkpoint.publishing.retire import Retainer
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.stores import digest
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.s3 import parts, sending
from trainjob.checkpoint.stores.s3 import requests as s3_requests
from trainjob.checkpoint.stores.s3 import settings as s3_settings
from trainjob.checkpoint.stores.s3.store import S3Store
from trainjob.checkpoint.stores.store import Store, Stored
from trainjob.checkpoint.stores.transfer import nothing

BIG = parts.SINGLE + parts.PART // 2 + 1


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of several parts."""
    path = tmp_path_factory.mktemp("big") / "file"
    path.write_bytes(os.urandom(BIG))
    return path


@pytest.mark.parametrize("algorithm", digest.ALGORITHMS)
def test_a_large_file_goes_in_parts_and_comes_back_in_ranges(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, big: Path, algorithm: str
) -> None:
    s3.use(monkeypatch, s3.endpoint())
    monkeypatch.setenv("TRAINJOB_S3_CHECKSUM", algorithm)
    store = open_store(s3.fresh_uri())
    moved: list[int] = []
    expected = Stored(BIG, digest.text(algorithm, digest.update(algorithm, big.read_bytes())), algorithm)
    assert store.upload("f", str(big), moved.append) == expected
    assert sum(moved) == BIG and store.unfinished("") == []
    _, _, bucket, key = store.uri("f").split("/", 3)
    names = {"Bucket": bucket, "Key": key}
    said = s3.client(s3.endpoint()).head_object(**names, ChecksumMode="ENABLED")
    assert said[f"Checksum{algorithm.upper()}"] == digest.wire(algorithm, int(expected.checksum, 16)), (
        "the store checked and keeps it"
    )
    assert said["ETag"].strip('"').endswith("-3")
    moved.clear()
    assert store.download("f", str(tmp_path / "f"), moved.append, algorithm) == expected
    assert (tmp_path / "f").read_bytes() == big.read_bytes() and sum(moved) == BIG
    assert store.upload("f", str(big), nothing) == expected
    content = big.read_bytes()
    (tmp_path / "f").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(StoreError, match="is stored already with"):
        store.upload("f", str(tmp_path / "f"), nothing)


def test_parts_cover_a_file_of_any_size() -> None:
    for size in (parts.SINGLE + 1, 10**9, 10**11, 5 * 10**12):
        ranges = parts.ranges(size)
        assert len(ranges) <= parts.MAX_PARTS and sum(length for _, length in ranges) == size
        assert all(a + length == b for (a, length), (b, _) in itertools.pairwise(ranges))


@pytest.mark.parametrize("size", [BIG, BIG - 1, BIG + 1, parts.PART + 1, 3 * BIG])
def test_a_size_that_is_expected_brings_all_parts_at_once_and_a_wrong_one_costs_only_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, big: Path, size: int
) -> None:
    faults = Faults(s3.endpoint())
    s3.use(monkeypatch, faults.endpoint)
    store = open_store(s3.fresh_uri())
    expected = store.upload("f", str(big), nothing)
    faults.follow(None)
    assert store.checksum("f", nothing, store.algorithm, size) == expected
    assert (len(faults.requests) == len(parts.ranges(BIG))) == (size == BIG)
    assert store.download("f", str(tmp_path / "copy"), nothing, store.algorithm, size) == expected
    assert (tmp_path / "copy").read_bytes() == big.read_bytes()
    assert store.download("nothing", str(tmp_path / "copy"), nothing, store.algorithm, size) is None
    faults.close()


def test_unfinished_uploads_of_dead_attempts_are_aborted(bucket_store: Store, tmp_path: Path) -> None:
    job = Job(tmp_path, bucket_store)
    client = s3.client(s3.endpoint())

    def begin(id_: str) -> None:
        _, _, bucket, key = bucket_store.uri(f"checkpoints/{id_}/model.pt").split("/", 3)
        client.create_multipart_upload(Bucket=bucket, Key=key)

    begin("1-2-7")
    job.save("1-2-7")
    assert bucket_store.unfinished("checkpoints") == [], "the commit tidies its own folder"
    begin("1-1-3")
    begin("1-1-5")
    begin("1-2-6")
    Retainer(bucket_store, 1).retain(Policy(keep=2), {CheckpointId(1, 1, 5)})
    assert bucket_store.unfinished("checkpoints") == ["checkpoints/1-1-5/model.pt", "checkpoints/1-2-6/model.pt"], (
        "protected, and of the living attempt"
    )


def test_an_upload_that_is_aborted_under_way_is_begun_anew(
    bucket_store: Store, big: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete, calls = sending._Upload._complete, []

    def aborted_first(upload: sending._Upload) -> int:
        calls.append(upload)
        if len(calls) == 1:
            bucket_store.tidy("")
        return complete(upload)

    monkeypatch.setattr(sending._Upload, "_complete", aborted_first)
    assert bucket_store.upload("f", str(big), nothing).size == BIG and len(calls) == 2


def test_a_file_that_changes_while_it_is_stored_is_not_stored(
    bucket_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"x" * 1000)
    checksum = sending._checksum

    def then_cut(*arguments: object) -> int:
        value = checksum(*arguments)  # type: ignore[arg-type]
        file.write_bytes(b"x" * 999)
        return value

    monkeypatch.setattr(sending, "_checksum", then_cut)
    with pytest.raises(StagingError, match="changed while it was stored"):
        bucket_store.upload("f", str(file), nothing)
    assert bucket_store.size("f") is None


def test_a_trickling_stream_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(s3_requests.time, "monotonic", lambda: now[0])
    pace = s3_requests.Pace(20.0)
    for _ in range(30):
        now[0] += 1
        pace.moved(s3_settings.SLOWEST)
    with pytest.raises(s3_requests.Stalled, match="stands still"):
        for _ in range(30):
            now[0] += 1
            pace.moved(1)


def probe(monkeypatch: pytest.MonkeyPatch, uri: str = f"s3://{s3.BUCKET}/x", **variables: str) -> StoreError:
    s3.use(monkeypatch, s3.endpoint(), retry_s=0.3)
    for name, value in variables.items():
        if value:
            monkeypatch.setenv(name, value)
        else:
            monkeypatch.delenv(name)
    monkeypatch.setattr(s3_requests, "_clients", {})
    with pytest.raises(StoreError) as caught:
        open_store(uri).probe()
    return caught.value


def test_a_start_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    found = probe(monkeypatch, "s3://no-such-bucket/x")
    assert (
        found.kind == errors.UNREADABLE
        and "there is no bucket no-such-bucket at http://127.0.0.1" in str(found)
        and "aws s3 mb" in str(found)
    )
    found = probe(monkeypatch, AWS_SECRET_ACCESS_KEY="wrong")
    assert (
        found.kind == errors.READ_ONLY
        and "the credentials are not valid" in str(found)
        and "credentialsSecret" in str(found)
    )
    found = probe(monkeypatch, AWS_ACCESS_KEY_ID="nobody")
    assert "the credentials are not valid" in str(found)
    found = probe(monkeypatch, AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")
    assert "there are no credentials" in str(found)
    found = probe(monkeypatch, AWS_PROFILE="nowhere")
    assert found.kind == errors.INVALID and "nowhere" in str(found)
    found = probe(monkeypatch, AWS_ENDPOINT_URL_S3="http://127.0.0.1:9")
    assert (
        found.kind == errors.UNREADABLE
        and "the store does not answer" in str(found)
        and "curl -sI http://127.0.0.1:9" in str(found)
    )
    found = probe(monkeypatch, AWS_ENDPOINT_URL_S3=f"{s3.endpoint()}/{s3.BUCKET}")
    assert found.kind == errors.UNREADABLE and "names the bucket already. Give it without" in str(found)
    found = probe(monkeypatch, AWS_ENDPOINT_URL_S3="minio:9000")
    assert found.kind == errors.INVALID and "minio:9000" in str(found)


class Careless(S3Store):
    """A store whose server ignores what a probe relies on."""

    ignores = ""

    def create(self, key: str, data: bytes) -> bool:
        if self.ignores == "condition":
            self.put(key, data)
            return True
        return super().create(key, data)

    def _refuses(self, key: str, data: bytes, checksum: int) -> bool:
        if self.ignores == "checksum":
            self.put(key, data)
            return False
        return super()._refuses(key, data, checksum)


@pytest.mark.parametrize(
    ("ignores", "says"),
    [("condition", "overwrites objects in spite of If-None-Match"), ("checksum", "checksum is wrong")],
)
def test_a_store_that_cannot_be_relied_upon_is_refused(bucket_store: Store, ignores: str, says: str) -> None:
    store = Careless(bucket_store.uri())
    store.ignores = ignores
    with pytest.raises(StoreError, match=says):
        store.probe()
    assert bucket_store.sizes("") == {}


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"TRAINJOB_S3_CHECKSUM": "md5"}, "is not one of crc32, crc64nvme"),
        ({"TRAINJOB_S3_PATH_STYLE": "yes"}, "is neither 1"),
        ({"TRAINJOB_S3_RETRY_SECONDS": "-1"}, "no number of seconds above 0"),
        ({"TRAINJOB_S3_TIMEOUT_SECONDS": "nan"}, "no number of seconds above 0"),
    ],
)
def test_settings_that_make_no_sense_are_named(variables: dict[str, str], says: str) -> None:
    with pytest.raises(StoreError, match=says):
        s3_settings.read(variables)


def test_settings_come_from_the_environment() -> None:
    absent = s3_settings.read({})
    assert (absent.endpoint, absent.region, absent.path_style, absent.retry_s, absent.timeout_s) == (
        None,
        None,
        False,
        60.0,
        20.0,
    )
    given = s3_settings.read(
        {"AWS_ENDPOINT_URL": "http://minio", "AWS_DEFAULT_REGION": "eu-west-1", "TRAINJOB_S3_CHECKSUM": "crc32"}
    )
    assert (given.endpoint, given.region, given.path_style, given.algorithm) == (
        "http://minio",
        "eu-west-1",
        True,
        "crc32",
    )
    assert not s3_settings.read({"AWS_ENDPOINT_URL_S3": "http://minio", "TRAINJOB_S3_PATH_STYLE": "0"}).path_style


def test_without_boto3_the_extra_is_named() -> None:
    program = (
        "import sys\nsys.modules['boto3'] = None\nfrom trainjob.checkpoint.stores.opening import open_store\n"
        "try:\n    open_store('s3://bucket/x').probe()\nexcept Exception as error:\n    print(type(error).__name__, "
        "error.kind, error)\n"
    )
    roots = os.pathsep.join(entry for entry in sys.path if entry.endswith(("/operator", "/worker-image")))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": roots},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (
        done.stdout.startswith("StoreError invalid storage at s3:// needs boto3") and "pip install boto3" in done.stdout
    )


def test_nothing_of_boto3_is_imported_before_the_first_request() -> None:
    program = (
        "import sys\nfrom trainjob.checkpoint.stores.opening import "
        "open_store\nopen_store('s3://bucket/x').uri()\nprint('boto3' in sys.modules, 'botocore' in "
        "sys.modules)\n"
    )
    roots = os.pathsep.join(entry for entry in sys.path if entry.endswith(("/operator", "/worker-image")))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": roots},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("algorithm", digest.ALGORITHMS)
def test_checksums_of_parts_are_put_together_with_and_without_awscrt(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = os.urandom(1000), os.urandom(777)
    known = {"crc32": "cbf43926", "crc64nvme": "ae8b14860a799888"}[algorithm]
    for native in (digest.native(), None):
        monkeypatch.setattr(digest, "native", lambda native=native: native)
        digest._updates.cache_clear()
        try:
            assert digest.text(algorithm, digest.update(algorithm, b"123456789")) == known
            whole = digest.update(algorithm, one + other)
            assert (
                digest.combine(algorithm, digest.update(algorithm, one), digest.update(algorithm, other), len(other))
                == whole
            )
            assert digest.update(algorithm, other, digest.update(algorithm, one)) == whole
            assert digest.unwire(digest.wire(algorithm, whole)) == whole
            assert digest.combine(algorithm, whole, 0, 0) == whole
        finally:
            digest._updates.cache_clear()
