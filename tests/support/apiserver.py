"""A real API server for tests: the fixtures `apiserver` (one a session) and `api_namespace` (a fresh namespace a test).

A test that uses them carries the mark `on_apiserver`, so that of several pytest workers only one starts a server. Where
the binaries are not there they are built, once, which takes about five minutes; TRAINJOB_BUILD=0 skips the tests
instead.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator

import pytest

from cluster.apiserver import ApiServer
from cluster.binaries import binary, have_go, is_built

on_apiserver = pytest.mark.xdist_group("apiserver")
"""The mark: `pytestmark = on_apiserver`."""

_NEEDED = ("kube-apiserver", "kube-controller-manager", "etcd")
_numbers = itertools.count(1)


def missing() -> list[str]:
    """Binaries that would have to be built."""
    return [name for name in _NEEDED if not is_built(name)] + (
        [] if shutil.which("kubectl") or is_built("kubectl") else ["kubectl"]
    )


def why_not() -> str | None:
    """Why there can be no API server here."""
    names = missing()
    if names and os.environ.get("TRAINJOB_BUILD") == "0":
        return f"{', '.join(names)} not built, and TRAINJOB_BUILD=0 forbids to build (5 min, once)"
    if names and not have_go():
        return f"{', '.join(names)} not built, and Go is not installed"
    return None


def build_before(item: pytest.Item) -> None:
    """Called before a test's fixtures: builds what is missing, outside the test's own time limit."""
    mark = item.get_closest_marker("xdist_group")
    if mark is None or mark.args != on_apiserver.args or why_not() or not missing():
        return
    item.config.pluginmanager.hook.pytest_timeout_cancel_timer(item=item)
    for name in missing():
        binary(name)


@pytest.fixture(scope="session")
def apiserver() -> Iterator[ApiServer]:
    """etcd, kube-apiserver and the garbage collector, with our CRD."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with ApiServer() as server:
        yield server


@pytest.fixture
def api_namespace(apiserver: ApiServer) -> str:
    """A new namespace; it goes with the server."""
    name = f"team-{next(_numbers)}"
    apiserver.create_namespace(name)
    return name
