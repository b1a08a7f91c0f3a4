"""Keys that share one allowance of so many a second, and take turns by group: no namespace waits for a larger one, nor
for one whose writes hang.

Used by the progress writer. It is told the time by a clock, and does not know what a key is admitted to.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from trainjob_operator.agents.rate_limit import RateLimit
from trainjob_operator.clock import Clock
from trainjob_operator.loop.workqueue import Share

HANGS_S = 3.0
"""A group that has had a key under way for so long has no second one: its writes may hang, and would take the place of
the other groups' too.
"""

K = TypeVar("K", bound=Hashable)


class Allowance(Generic[K]):
    """`put` a key, `await next()` for the one whose turn it is, and say `done`; a key waits once, however often it is
    put. Of a group that has a key under way no other is begun while other groups wait, never more than `most`, and none
    when the one has been under way for long.
    """

    def __init__(self, clock: Clock, share: Share[K], rate: float, burst: float) -> None:
        self._clock = clock
        self._group, self._most = share.group, share.most
        self._bucket: RateLimit[None] = RateLimit(rate, burst)
        self._lines: dict[Hashable, deque[K]] = {}
        """Of each group that has keys waiting, in the order in which the groups have their turns."""
        self._waiting: set[K] = set()
        self._under_way: dict[Hashable, list[tuple[K, float]]] = {}
        """Of each group: its keys, and since when, the longest first."""
        self._changed = asyncio.Event()

    def put(self, key: K) -> None:
        """It waits, behind those of its own group."""
        if key not in self._waiting:
            self._waiting.add(key)
            self._lines.setdefault(self._group(key), deque()).append(key)
            self._changed.set()

    def __contains__(self, key: K) -> bool:
        return key in self._waiting

    async def next(self) -> K:
        """The key whose turn it is, once the allowance has room."""
        while True:
            group = self._next_group()
            if group is None:
                self._changed.clear()
                await self._changed.wait()
                continue
            pause_s = self._bucket.admit(None, self._clock.monotonic())
            if pause_s == 0.0:
                return self._take(group)
            await self._clock.sleep_until(self._clock.monotonic() + pause_s)

    def done(self, key: K) -> None:
        """What the key was admitted to is over."""
        begun = self._under_way[self._group(key)]
        del begun[next(place for place, (other, _) in enumerate(begun) if other == key)]
        if not begun:
            del self._under_way[self._group(key)]
        self._changed.set()

    def give_back(self) -> None:
        """What a key was admitted to was not needed."""
        self._bucket.give_back(None)

    def _next_group(self) -> Hashable | None:
        """The first of those that have least under way; None: all have their share."""
        now = self._clock.monotonic()
        free = (group for group in self._lines if self._has_room(group, now))
        return min(free, key=lambda group: len(self._under_way.get(group, ())), default=None)

    def _has_room(self, group: Hashable, now: float) -> bool:
        begun = self._under_way.get(group)
        return begun is None or (len(begun) < self._most and now - begun[0][1] < HANGS_S)

    def _take(self, group: Hashable) -> K:
        line = self._lines.pop(group)
        key = line.popleft()
        if line:
            self._lines[group] = line  # behind the others
        self._waiting.discard(key)
        self._under_way.setdefault(group, []).append((key, self._clock.monotonic()))
        return key
