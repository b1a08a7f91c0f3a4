"""Keys that share one allowance of so many a second, and take turns by group: no namespace waits for a larger one.

Used by the progress writer. It is told the time by a clock, and does not know what a key is admitted to.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from trainjob_operator.agents.rate_limit import RateLimit
from trainjob_operator.clock import Clock

K = TypeVar("K", bound=Hashable)


class Allowance(Generic[K]):
    """`put` a key, `await next()` for the one whose turn it is; a key waits once, however often it is put."""

    def __init__(self, clock: Clock, group: Callable[[K], Hashable], rate: float, burst: float) -> None:
        self._clock = clock
        self._group = group
        self._bucket: RateLimit[None] = RateLimit(rate, burst)
        self._lines: OrderedDict[Hashable, deque[K]] = OrderedDict()
        """Of each group that has keys waiting, in the order in which the groups have their turns."""
        self._waiting: set[K] = set()
        self._arrived = asyncio.Event()

    def put(self, key: K) -> None:
        """It waits, behind those of its own group."""
        if key not in self._waiting:
            self._waiting.add(key)
            self._lines.setdefault(self._group(key), deque()).append(key)
            self._arrived.set()

    def __contains__(self, key: K) -> bool:
        return key in self._waiting

    async def next(self) -> K:
        """The key whose turn it is, once the allowance has room."""
        while True:
            pause_s = self._bucket.admit(None, self._clock.monotonic()) if self._waiting else None
            if pause_s == 0.0:
                return self._take()
            if pause_s is None:
                self._arrived.clear()
                await self._arrived.wait()
            else:
                await self._clock.sleep_until(self._clock.monotonic() + pause_s)

    def give_back(self) -> None:
        """What a key was admitted to was not needed."""
        self._bucket.give_back(None)

    def _take(self) -> K:
        group, line = self._lines.popitem(last=False)
        key = line.popleft()
        if line:
            self._lines[group] = line  # behind the others
        self._waiting.discard(key)
        return key
