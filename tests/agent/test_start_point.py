"""Storage that fails while an attempt begins: what is tried again, for how long, and who hears of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from support.virtual_time import run_virtual
from trainjob.agent.attempts import start_point
from trainjob.agent.storing.storage import StorageError
from trainjob.checkpoint import errors

SETTLED = {"run": 1, "completed": False, "checkpoint": None, "claim": None}


class Store:
    """Fails so long."""

    probed = True
    refused_at_first = False

    def __init__(self, kind: str, until_s: float) -> None:
        self.kind, self.until_s = kind, until_s
        self.warnings: list[str | None] = []
        self.settled = SETTLED

    async def call(self, op: str, fields: dict[str, Any], *_: Any) -> dict[str, Any]:
        if asyncio.get_running_loop().time() < self.until_s:
            raise StorageError(self.kind, "no answer")
        return self.settled

    def settle(self, attempt: int) -> start_point.StartPoint:
        config = SimpleNamespace(job_uid="uid", spec=SimpleNamespace(resume_from="auto"))
        console = SimpleNamespace(say=lambda text: None)
        site: Any = SimpleNamespace(storage=self, config=config, console=console, warn=self.warnings.append)
        return run_virtual(start_point.settle(site, attempt, []))


@pytest.mark.parametrize(
    "attempt, kind, outage_s",
    [
        (1, errors.UNREADABLE, start_point.FIRST_OUTAGE_S),
        *((2, kind, start_point.OUTAGE_S) for kind in (errors.UNREADABLE, errors.READ_ONLY, errors.FULL, errors.LOST)),
    ],
)
def test_an_outage_is_sat_out_and_told_and_has_an_end(attempt: int, kind: str, outage_s: float) -> None:
    store = Store(kind, outage_s - 10)
    assert store.settle(attempt).run == 1
    assert "cannot begin yet" in str(store.warnings[0]) and store.warnings[-1] is None
    with pytest.raises(StorageError, match="no answer"):
        Store(kind, outage_s + 100).settle(attempt)


@pytest.mark.parametrize(
    "attempt, kind",
    [(1, errors.READ_ONLY), (1, errors.FULL), (1, errors.LOST), (1, errors.INVALID), (2, errors.INVALID)],
)
def test_a_mistake_is_said_at_once(attempt: int, kind: str) -> None:
    store = Store(kind, 1.0)
    with pytest.raises(StorageError):
        store.settle(attempt)
    assert store.warnings == []


@pytest.mark.parametrize("kind", [errors.READ_ONLY, errors.FULL, errors.LOST])
def test_what_was_refused_at_the_first_start_is_refused_at_once_until_storage_has_worked(kind: str) -> None:
    store = Store(kind, 1.0)
    for attempt in (1, 2, 3):
        with pytest.raises(StorageError):
            store.settle(attempt)
    assert store.warnings == []
    store.until_s = 0.0
    assert store.settle(4).run == 1
    store.until_s, store.warnings = 1.0, []
    assert store.settle(5).run == 1, "it worked before: that is an outage"
    assert "cannot begin yet" in str(store.warnings[0])


def test_of_a_complete_run_it_is_not_said_from_where_it_would_start() -> None:
    store = Store("", 0.0)
    why = "no checkpoint yet: attempt 2 starts from the beginning"
    store.settled = {**SETTLED, "completed": True, "why": why, "warnings": ["old"], "shown": {"checkpoint_count": 3}}
    found = store.settle(2)
    assert found.words == ("run 1 is complete: no rank is started", "old") and found.shown == {"checkpoint_count": 3}
    store.settled = {**SETTLED, "why": why}
    assert (store.settle(2).words, store.settle(2).shown) == ((why,), None)
