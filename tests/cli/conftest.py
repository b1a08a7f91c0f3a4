"""The user of the tests that speak to an API server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.apiserver import ApiServer
from support.cluster_cli import User
from support.log_kubelet import LogKubelet


@pytest.fixture
def user(
    apiserver: ApiServer, api_namespace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> User:
    monkeypatch.setenv("KUBECONFIG", str(apiserver.kubeconfig))
    return User(apiserver, api_namespace, capsys)


@pytest.fixture
def kubelet(user: User) -> Iterator[LogKubelet]:
    with LogKubelet(user.server, user.namespace) as found:
        yield found
