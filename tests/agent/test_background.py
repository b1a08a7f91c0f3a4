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


async def _long(ended: list[str]) -> None:
    """Its end takes a while."""
    try:
        await asyncio.Event().wait()
    finally:
        for _ in range(5):
            await asyncio.sleep(0)
        ended.append("cleaned up")


def test_a_limit_within_a_limit_has_ended_too_when_the_outer_one_tells() -> None:
    async def run() -> None:
        ended: list[str] = []
        with pytest.raises(asyncio.TimeoutError):
            await within(within(_long(ended), 60), 0.01)
        assert ended == ["cleaned up"]

    asyncio.run(run())


def test_who_is_cancelled_takes_what_is_waited_for_along_and_ends_after_it() -> None:
    async def run() -> None:
        ended: list[str] = []
        task = asyncio.ensure_future(within(_long(ended), 60))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["cleaned up"]

    asyncio.run(run())


def test_cancelled_at_any_moment_it_is_over_and_so_is_what_it_waits_for() -> None:
    """Also at the moment of the limit, and once more while the end of what is waited for is waited for."""

    async def cancelled_after(turns: int, again: int, timeout_s: float | None) -> None:
        ended: list[str] = []
        began = False

        async def work() -> int:
            nonlocal began
            began = True
            await _long(ended)
            return 1

        async def caller() -> None:
            await within(work(), timeout_s)
            raise AssertionError("it was neither over nor cancelled")

        task = asyncio.ensure_future(caller())
        for number in (turns, again):
            for _ in range(number):
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or isinstance(task.exception(), asyncio.TimeoutError)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(ended) == began, (turns, again, timeout_s)

    async def run() -> None:
        for turns in range(1, 15):
            for again in range(8):
                for timeout_s in (None, 0.0, 60.0):
                    await cancelled_after(turns, again, timeout_s)

    asyncio.run(run())
