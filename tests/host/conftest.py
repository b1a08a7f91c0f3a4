"""An installation of the operator on the session's API server, one a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.apiserver import ApiServer
from support.operators import Installation, installed


@pytest.fixture
def installation(apiserver: ApiServer, api_namespace: str, tmp_path: Path) -> Iterator[Installation]:
    """Its own namespace is `<api_namespace>-operator`."""
    with installed(apiserver, f"{api_namespace}-operator", tmp_path) as made:
        yield made
