"""Stores of each kind, for tests of what both promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import s3
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.store import Store


@pytest.fixture(params=["path", "s3"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty job's folder, on a path and on a real S3 server."""
    if request.param == "path":
        return open_store(str(tmp_path / "a store ü"))
    s3.use(monkeypatch, s3.endpoint())
    return open_store(s3.fresh_uri())


@pytest.fixture
def bucket_store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty job's folder on a real S3 server."""
    s3.use(monkeypatch, s3.endpoint())
    return open_store(s3.fresh_uri())
