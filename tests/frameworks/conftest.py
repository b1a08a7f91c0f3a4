"""One core a rank, and nothing of the user's. Jobs run where they are asked for: nothing runs twice in CI."""

from __future__ import annotations

import pytest

FOLDER = "frameworks"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip jobs of frameworks where a whole run passes by; `make test-frameworks` names this folder."""
    if any(FOLDER in word for word in config.args):
        return
    for item in items:
        if f"/{FOLDER}/" in str(item.path) and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="jobs of frameworks: make test-frameworks"))


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
