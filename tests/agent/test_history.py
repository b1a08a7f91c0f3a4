"""Rows reach storage in segments: what a flush costs and what is kept does not grow with the attempt."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from trainjob.agent.barriers import history
from trainjob.agent.barriers.history import History
from trainjob.agent.storing.storage import StorageError


class Storage:
    """Takes rows, unless it is `broken`."""

    def __init__(self) -> None:
        self.files: dict[int, str] = {}
        self.puts: list[tuple[int, int]] = []
        self.attempts: list[int] = []
        self.broken = False
        self.taken = asyncio.Event()

    async def call(self, op: str, request: Any, *_: Any) -> dict[str, Any]:
        if self.broken:
            raise StorageError("unreachable", "gone")
        self.attempts.append(request["attempt"])
        self.files[request["segment"]] = request["text"]
        self.puts.append((request["segment"], len(request["text"])))
        self.taken.set()
        return {}

    @property
    def positions(self) -> list[int]:
        text = "".join(self.files[segment] for segment in sorted(self.files))
        return [row["position"] for row in map(json.loads, text.splitlines()) if row["kind"] == "report"]


def made(storage: Storage, said: list[str], attempt: int = 1) -> History:
    faults: list[BaseException] = []
    return History(storage, 1, attempt, 0, faults.append, said.append)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "SEGMENT_BYTES", 2000)
    monkeypatch.setattr(history, "WAITING_LIMIT", 20000)


def test_a_long_attempt_is_written_in_segments_and_forgotten() -> None:
    async def scene() -> None:
        storage = Storage()
        rows = made(storage, [])
        for position in range(1, 1001):
            rows.report({"position": position, "metrics": {"loss": float("nan")}})
            if position % 3 == 0:
                await rows.flush()
        await rows.flush()
        assert storage.positions == list(range(1, 1001))
        assert max(size for _, size in storage.puts) < 3000, "no flush grows with the attempt"
        assert [segment for segment, _ in storage.puts] == sorted(segment for segment, _ in storage.puts)
        assert len(rows._segments) == 1, "what is stored is not kept"
        count = len(storage.puts)
        await rows.flush()
        assert len(storage.puts) == count, "nothing new, nothing written"
        rows.close()

    asyncio.run(scene())


def test_an_attempt_that_reports_nothing_leaves_no_file() -> None:
    async def scene() -> None:
        storage = Storage()
        await made(storage, []).flush()
        assert storage.files == {}

    asyncio.run(scene())


def test_what_a_broken_storage_does_not_take_waits_within_bounds_and_the_gap_is_said_once() -> None:
    async def scene() -> None:
        storage, said = Storage(), list[str]()
        rows = made(storage, said)
        storage.broken = True
        for position in range(1, 2001):
            rows.report({"position": position, "metrics": {}})
            if position % 100 == 0:
                with pytest.raises(StorageError):
                    await rows.flush()
        assert sum(segment.bytes for segment in rows._segments) < 24000
        storage.broken = False
        await rows.flush()
        rows.report({"position": 2001, "metrics": {}})
        await rows.flush()
        got = storage.positions
        assert got == [*range(1, len(got)), 2001], "the oldest are there, and it goes on"
        assert len(said) == 1 and "gap" in said[0]
        rows.close()

    asyncio.run(scene())


def test_what_an_attempt_has_left_is_stored_before_the_rows_of_the_next_once_storage_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who follows the rows looks at no attempt again once a later one has some."""
    monkeypatch.setattr(history, "FLUSH_S", 0.001)

    async def scene() -> None:
        storage = Storage()
        storage.broken = True
        for attempt in (1, 2):
            over = made(storage, [], attempt)
            over.report({"position": attempt, "metrics": {}})
            over.close()
        rows = made(storage, [], 3)
        rows.report({"position": 3, "metrics": {}})
        with pytest.raises(StorageError):
            await rows.flush()
        storage.broken = False
        await rows.flush()
        assert list(dict.fromkeys(storage.attempts)) == [1, 2, 3]
        rows.close()

    asyncio.run(asyncio.wait_for(scene(), 60.0))


def test_what_an_attempt_has_left_is_tried_again_where_no_other_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "FLUSH_S", 0.001)

    async def scene() -> None:
        storage = Storage()
        storage.broken = True
        rows = made(storage, [])
        rows.report({"position": 1, "metrics": {}})
        rows.close()
        for _ in range(5):
            await asyncio.sleep(0.001)
        storage.broken = False
        await storage.taken.wait()
        assert storage.positions == [1]

    asyncio.run(asyncio.wait_for(scene(), 60.0))
