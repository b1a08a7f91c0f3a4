"""End-to-end tests run by `make e2e` alone: nobody's cluster is touched by `make test`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from support import e2e, release


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is here unless `make e2e` runs, where all of it takes long."""
    mark = pytest.mark.skip(reason="end-to-end tests need a cluster: make e2e")
    if os.environ.get("TRAINJOB_E2E"):
        mark = pytest.mark.slow
    for item in items:
        if "/e2e/" in str(item.path):
            item.add_marker(mark)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests have measured."""
    measured = [
        (report.nodeid.split("::")[-1], *pair)
        for report in terminalreporter.getreports("passed")
        for pair in report.user_properties
    ]
    if measured:
        terminalreporter.section("figures")
        for test, what, value in dict.fromkeys(measured):
            terminalreporter.write_line(f"{test}: {what}: {value}")


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Note what was measured; `make e2e` prints it at its end."""
    return lambda what, value: request.node.user_properties.append((what, value))


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh namespace with the digits script in it; when the test fails, what happened there is printed."""
    name = e2e.create_namespace(request.node.name)
    failed = request.session.testsfailed
    yield name
    if request.session.testsfailed > failed:
        print(e2e.what_happened(name), release.what_it_says(), sep="\n\n")
    e2e.delete_namespace(name)


@pytest.fixture
def all_nodes() -> Iterator[None]:
    """For tests that kill nodes: they are brought back afterwards."""
    yield
    e2e.restore_nodes()
