"""How a store is reached, and what is said when it is not: TLS with an authority of one's own, names, regions,
endpoints, proxies.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support import s3
from support.s3_authority import Authority
from support.strict_tls import as_from_python_3_13
from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.s3 import bodies as s3_bodies
from trainjob.checkpoint.stores.s3 import boto as s3_boto
from trainjob.checkpoint.stores.s3 import parts
from trainjob.checkpoint.stores.s3 import requests as s3_requests
from trainjob.checkpoint.stores.s3.errands import LIMIT
from trainjob.checkpoint.stores.s3.small_files import FEW
from trainjob.checkpoint.stores.store import Store, Wanted
from trainjob.checkpoint.stores.transfer import nothing


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secure(authority: Authority) -> str:
    """A server that speaks TLS with that authority's certificate."""
    return s3.serve_tls(authority.certificate, authority.key)


@pytest.fixture(autouse=True)
def own_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_requests, "_clients", {})


def reach(monkeypatch: pytest.MonkeyPatch, endpoint: str, uri: str | None = None, **variables: str) -> Store:
    place = uri or s3.fresh_uri()
    s3.use(monkeypatch, endpoint, retry_s=0.3, timeout_s=5.0)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return open_store(place)


def refused(monkeypatch: pytest.MonkeyPatch, endpoint: str, uri: str | None = None, **variables: str) -> StoreError:
    with pytest.raises(StoreError) as caught:
        reach(monkeypatch, endpoint, uri, **variables).probe()
    return caught.value


def test_an_authority_of_ones_own(
    monkeypatch: pytest.MonkeyPatch, secure: str, authority: Authority, tmp_path: Path
) -> None:
    """Which a company's own tool has made, without what newer Pythons ask for by themselves."""
    as_from_python_3_13(monkeypatch)
    store = reach(monkeypatch, secure, AWS_CA_BUNDLE=str(authority.bundle))
    store.probe()
    file = tmp_path / "file"
    file.write_bytes(os.urandom(parts.SINGLE + 5))
    expected = store.upload("f", str(file), nothing)
    assert store.download("f", str(tmp_path / "copy"), nothing, store.algorithm) == expected
    assert (tmp_path / "copy").read_bytes() == file.read_bytes()
    file.write_bytes(os.urandom(LIMIT))
    many = store.upload_small([(f"many-{n}", str(file), LIMIT) for n in range(FEW)], nothing)
    assert (
        len(many)
        == FEW
        == len(store.download_small([Wanted(key, str(tmp_path / key), found) for key, found in many.items()], nothing))
    )


def test_an_authority_that_does_not_vouch(monkeypatch: pytest.MonkeyPatch, secure: str, tmp_path: Path) -> None:
    for variables in ({}, {"AWS_CA_BUNDLE": str(Authority(tmp_path).bundle)}):
        found = refused(monkeypatch, secure, **variables)
        assert found.kind == errors.READ_ONLY and f"the certificate of {secure} is not trusted here" in str(found), str(
            found
        )
        assert "spec.checkpoint.s3.caConfigMap" in str(found) and "AWS_CA_BUNDLE" in str(found)
    with pytest.raises(StoreError, match=r"certificate of .* is not trusted"):
        reach(monkeypatch, secure).read("file contents are refused alike")


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_an_authority_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, secure: str, tmp_path: Path, text: str | None
) -> None:
    bundle = tmp_path / "ca.crt"
    if text:
        bundle.write_text(text)
    found = refused(monkeypatch, secure, AWS_CA_BUNDLE=str(bundle))
    assert found.kind == errors.INVALID and f"AWS_CA_BUNDLE={bundle}" in str(found) and "PEM" in str(found)


def test_schemes_that_are_mixed_up(monkeypatch: pytest.MonkeyPatch, secure: str) -> None:
    found = refused(monkeypatch, s3.endpoint().replace("http:", "https:"))
    assert "speaks no TLS" in str(found) and "http://" in str(found)
    found = refused(monkeypatch, secure.replace("https:", "http:"))
    assert "https://" in str(found)


def test_a_name_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    found = refused(monkeypatch, "http://no-such-host.invalid:9000")
    assert (
        found.kind == errors.UNREADABLE and "no-such-host.invalid" in str(found) and "has no address here" in str(found)
    )


def test_another_region(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the store says which one it is, requests follow; test_s3_faults has one that does not."""
    file = tmp_path / "file"
    file.write_bytes(b"x" * 1000)
    store = reach(monkeypatch, s3.endpoint(), AWS_REGION="eu-west-1")
    store.probe()
    assert store.upload("f", str(file), nothing).size == 1000 and store.read("f") == b"x" * 1000


@pytest.mark.parametrize("bucket", ["My_Bucket", "a", "", "-x-", "192.168.5.4", "a..b"])
def test_a_bucket_that_cannot_be(bucket: str) -> None:
    with pytest.raises(StoreError, match=r"names no bucket.*Give s3://bucket/folder") as caught:
        open_store(f"s3://{bucket}/x")
    assert caught.value.kind == errors.INVALID


def test_what_only_boto3_can_reach_goes_through_boto3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A proxy in the environment, here the server itself: it takes requests with whole URLs."""
    seen: list[str] = []

    class Watched(s3_boto.Boto):
        def put(self, *arguments: object) -> str:
            seen.append("put")
            return super().put(*arguments)  # type: ignore[arg-type]

        def get(self, *arguments: object) -> object:  # type: ignore[override]
            seen.append("get")
            return super().get(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(s3_bodies, "Boto", Watched)
    store = reach(monkeypatch, s3.endpoint(), NO_PROXY="", HTTP_PROXY=s3.endpoint())
    monkeypatch.setenv("http_proxy", s3.endpoint())
    monkeypatch.setenv("no_proxy", "")
    file = tmp_path / "file"
    for size in (0, 1000, parts.SINGLE + 5):
        file.write_bytes(os.urandom(size))
        expected = store.upload(f"f-{size}", str(file), nothing)
        assert store.download(f"f-{size}", str(tmp_path / "copy"), nothing, store.algorithm) == expected
        assert store.read(f"f-{size}") == file.read_bytes() and store.size(f"f-{size}") == size
    assert {"put", "get"} == set(seen)
