"""Calls to the cluster side by side, not too many at once. Used by `observe.py` and `apply.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

PARALLEL_CALLS = 16
"""Calls at once for one job."""

T = TypeVar("T")


async def side_by_side(calls: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """What each answers, in their order. The first error is raised, and the others then go on by themselves."""
    left = enumerate(calls)
    answers: dict[int, T] = {}

    async def go_on() -> None:
        for number, call in left:
            answers[number] = await call()

    await asyncio.gather(*(go_on() for _ in range(PARALLEL_CALLS)))
    return [answers[number] for number in sorted(answers)]
