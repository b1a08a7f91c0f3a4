"""A limit of time for what is waited for: who is cancelled meanwhile is cancelled, whatever comes in the same turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from trainjob.agent.background import within


@pytest.mark.parametrize("ends_with", ["a value", "an error"])
def test_a_cancellation_is_heard_in_the_turn_in_which_it_ends(ends_with: str) -> None:
    async def run() -> tuple[bool, list[dict[str, Any]]]:
        loop = asyncio.get_running_loop()
        faults: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _loop, context: faults.append(context))
        awaited: asyncio.Future[None] = loop.create_future()
        task = asyncio.ensure_future(within(awaited, 60))
        await asyncio.sleep(0)
        if ends_with == "a value":
            awaited.set_result(None)
        else:
            awaited.set_exception(ConnectionRefusedError())
        await asyncio.sleep(0)  # it is over, and the task has not gone on yet
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled(), faults

    assert asyncio.run(run()) == (True, [])


def test_what_ends_in_time_is_returned_or_raised() -> None:
    async def value() -> int:
        await asyncio.sleep(0)
        return 3

    async def error() -> int:
        raise ValueError("no")

    assert asyncio.run(within(value(), 60)) == 3
    assert asyncio.run(within(value(), None)) == 3
    with pytest.raises(ValueError, match="no"):
        asyncio.run(within(error(), 60))


def test_what_takes_longer_is_cancelled_and_has_ended_when_that_is_told() -> None:
    ended: list[str] = []

    async def long() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")

    async def run() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await within(long(), 0.01)
        assert ended == ["cleaned up"]

    asyncio.run(run())


def test_who_is_cancelled_takes_what_is_waited_for_along() -> None:
    ended: list[str] = []

    async def long() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def run() -> None:
        task = asyncio.ensure_future(within(long(), 60))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        assert ended == ["cancelled"]

    asyncio.run(run())
