"""Credentials that come from elsewhere and change while a job runs: profile file, web identity, container and
instance; and what is said when they do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support import s3
from support.s3_identity import Identity
from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.s3 import requests as s3_requests
from trainjob.checkpoint.stores.store import Store
from trainjob.checkpoint.stores.transfer import nothing

GOOD = (s3.ACCESS, s3.SECRET)
LONG_S, SHORT_S = 3600.0, 300.0
"""botocore renews what ends within a quarter of an hour at each use."""


@pytest.fixture
def identity() -> Iterator[Identity]:
    made = Identity((*GOOD, LONG_S))
    yield made
    made.close()


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The server is known, and no credentials are."""
    s3.use(monkeypatch, s3.endpoint())
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(s3_requests, "_clients", {})
    return monkeypatch


def works(store: Store, tmp_path: Path, name: str) -> None:
    """Small writes and file contents, each by its own way."""
    file = tmp_path / "file"
    file.write_bytes(b"x" * 1000)
    assert store.create(f"{name}.json", b"{}") and store.read(f"{name}.json") == b"{}"
    assert store.upload(name, str(file), nothing).size == 1000


def web_identity(monkeypatch: pytest.MonkeyPatch, identity: Identity, token: Path) -> None:
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/worker")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", identity.endpoint)


def test_a_profile_file_that_is_rewritten_is_read_again(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    profile = tmp_path / "credentials"
    bare.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))
    store = open_store(s3.fresh_uri())
    with pytest.raises(StoreError, match=r"there are no credentials\. On this machine set AWS_ACCESS_KEY_ID"):
        store.put("a", b"")
    profile.write_text(f"[default]\naws_access_key_id = {s3.ACCESS}\naws_secret_access_key = of-yesterday\n")
    with pytest.raises(StoreError, match="the credentials are not valid"):
        store.put("a", b"")
    profile.write_text(f"[default]\naws_access_key_id = {s3.ACCESS}\naws_secret_access_key = {s3.SECRET}\n")
    works(store, tmp_path, "b")


def test_web_identity_is_renewed_and_its_token_file_read_anew(
    bare: pytest.MonkeyPatch, identity: Identity, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("token-1")
    web_identity(bare, identity, token)
    identity.gives, identity.takes = [(*GOOD, SHORT_S)], "token-1"
    store = open_store(s3.fresh_uri())
    works(store, tmp_path, "a")
    identity.takes = "token-2"
    token.write_text("token-2")  # as the kubelet does
    works(store, tmp_path, "b")
    assert {"token-1", "token-2"} == set(identity.asked)


def test_a_web_identity_that_is_refused_is_told_and_gone_on_from(
    bare: pytest.MonkeyPatch, identity: Identity, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("token-1")
    web_identity(bare, identity, token)
    identity.takes = "token-2"
    store = open_store(s3.fresh_uri())
    with pytest.raises(
        StoreError, match=r"ExpiredTokenException .*; likely the credentials have expired. Renew them"
    ) as caught:
        store.put("a", b"")
    assert caught.value.kind == errors.READ_ONLY
    token.write_text("token-2")
    works(store, tmp_path, "a")


def service(monkeypatch: pytest.MonkeyPatch, identity: Identity, kind: str) -> None:
    if kind == "container":
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{identity.endpoint}/role")
    else:
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", identity.endpoint)


def test_credentials_with_an_end_are_renewed_before_it(
    bare: pytest.MonkeyPatch, identity: Identity, tmp_path: Path
) -> None:
    service(bare, identity, "container")
    identity.gives = [(*GOOD, -60.0), (*GOOD, SHORT_S), (*GOOD, LONG_S)]
    store = open_store(s3.fresh_uri())
    works(store, tmp_path, "a")
    assert identity.gives == [(*GOOD, LONG_S)], "those that end are replaced before they do"
    asked = len(identity.asked)
    works(store, tmp_path, "b")
    assert len(identity.asked) == asked, "those that last are kept"


@pytest.mark.parametrize("kind", ["container", "instance"])
def test_credentials_that_the_store_no_longer_takes_are_looked_for_anew(
    bare: pytest.MonkeyPatch, identity: Identity, tmp_path: Path, kind: str
) -> None:
    """They claim to last for an hour and do not."""
    service(bare, identity, kind)
    identity.gives = [(s3.ACCESS, "revoked", LONG_S), (*GOOD, LONG_S)]
    store = open_store(s3.fresh_uri())
    works(store, tmp_path, "a")
    assert len(identity.asked) == 2


def test_file_contents_find_new_credentials_too(bare: pytest.MonkeyPatch, identity: Identity, tmp_path: Path) -> None:
    service(bare, identity, "container")
    identity.gives = [(s3.ACCESS, "revoked", LONG_S), (*GOOD, LONG_S)]
    file = tmp_path / "file"
    file.write_bytes(b"x" * 1000)
    assert open_store(s3.fresh_uri()).upload("f", str(file), nothing).size == 1000
