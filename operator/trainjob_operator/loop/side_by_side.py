"""Calls to the cluster side by side, not too many at once. Used by `observe.py` and `apply.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

PARALLEL_CALLS = 16
"""Calls at once for one job."""

T = TypeVar("T")


async def side_by_side(calls: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """What each answers, in their order. The first error is raised, and what is under way then goes on by itself."""
    room = asyncio.Semaphore(PARALLEL_CALLS)

    async def made(call: Callable[[], Awaitable[T]]) -> T:
        async with room:
            return await call()

    return list(await asyncio.gather(*(made(call) for call in calls)))
