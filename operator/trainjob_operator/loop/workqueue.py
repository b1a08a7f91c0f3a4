"""Which job is looked at next: keys with due times, each at most once, and never two turns of one key at a time.

`Schedule` is a plain structure that is told the time; `WorkQueue` adds a clock, waiting, back-off and fairness: no key
has turns without a pause, and no group of keys (a namespace) all workers. The reconciler's workers take keys from it;
the watch and the coordinator put keys in. It does not know what a turn does.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from trainjob_operator.agents.rate_limit import RateLimit
from trainjob_operator.clock import Clock, wait_until

TURNS_AT_ONCE = 20
"""Turns that a key may have one after the other: a start or a recovery takes about ten."""
TURNS_A_SECOND = 1.0
"""From then on: an agent that changes its mind all the time, or a thousand pods that come up, ask for no more."""
HURRIES_AT_ONCE = 20
"""Turns beyond those that have news of a break behind them: a failure waits for no progress, a recovery has about two.
They come back as the others do.
"""
SPARE_ENTRIES = 64
"""Outdated entries that a schedule may keep beside as many as it has keys."""

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """How long a key rests after failed turns in a row: `first_s` doubled each time up to `longest_s`, less up to
    half at random.
    """

    first_s: float = 0.1
    longest_s: float = 10.0

    def delay(self, failures: int, rng: random.Random) -> float:
        """Seconds of rest after that many failures in a row (from 1)."""
        full = min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, 32))
        return full * rng.uniform(0.5, 1.0)


class Schedule(Generic[K]):
    """Keys and when they are due. A key has one due time, the earliest asked for; a key that is taken waits until it
    is done.
    """

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._taken: set[K] = set()
        self._rests: dict[K, float] = {}
        self._order = 0

    def add(self, key: K, due: float) -> bool:
        """Ask for a turn at `due`, or after the key's rest if that ends later; False when an earlier one is asked
        for already.
        """
        due = max(due, self._rests.get(key, due))
        if key in self._due and self._due[key] <= due:
            return False
        self._due[key] = due
        if key not in self._taken:
            self._push(key, due)
        return True

    def rest(self, key: K, until: float) -> None:
        """No turn of this key before `until`, whoever asks."""
        self._rests[key] = until
        if key in self._due and self._due[key] < until:
            self._due[key] = until
            if key not in self._taken:
                self._push(key, until)

    def wake(self, key: K) -> None:
        """End the key's rest."""
        self._rests.pop(key, None)

    def take(self, now: float) -> K | None:
        """The key that has been due longest, or None; it is taken until `done`."""
        self._drop_outdated()
        if not self._heap or self._heap[0][0] > now:
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._due[key]
        self._taken.add(key)
        return key

    def done(self, key: K) -> None:
        """The turn is over; what was asked for meanwhile counts now."""
        self._taken.discard(key)
        if key in self._due:
            self._push(key, self._due[key])

    def next_due(self) -> float | None:
        """When the next key is due that nobody has taken; None: nothing waits."""
        self._drop_outdated()
        return self._heap[0][0] if self._heap else None

    def __len__(self) -> int:
        """Keys that wait for a turn."""
        return len(self._due)

    def _push(self, key: K, due: float) -> None:
        self._order += 1
        heapq.heappush(self._heap, (due, self._order, key))
        if len(self._heap) > 2 * len(self._due) + SPARE_ENTRIES:
            # Outdated ones are dropped at the top alone: those of far deadlines would pile up until they are due.
            entries = {entry[2]: entry for entry in sorted(self._heap, reverse=True) if not self._is_outdated(entry)}
            self._heap = list(entries.values())
            heapq.heapify(self._heap)

    def _drop_outdated(self) -> None:
        """Entries are left in the heap when a key's due time changes or it is taken; those are dropped at the top."""
        while self._heap and self._is_outdated(self._heap[0]):
            heapq.heappop(self._heap)

    def _is_outdated(self, entry: tuple[float, int, K]) -> bool:
        due, _, key = entry
        return key in self._taken or self._due.get(key) != due


@dataclass(frozen=True, kw_only=True)
class Share(Generic[K]):
    """How many keys of one group may be taken at once."""

    group: Callable[[K], Hashable]
    most: int


class WorkQueue(Generic[K]):
    """The schedule with a clock: any number of workers `get` a key, run its turn, and say `done`."""

    def __init__(
        self,
        clock: Clock,
        rng: random.Random | None = None,
        backoff: Backoff | None = None,
        share: Share[K] | None = None,
    ) -> None:
        self._clock = clock
        self._rng = rng or random.Random()
        self._backoff = backoff or Backoff()
        self._share = share
        self._schedule: Schedule[K] = Schedule()
        self._pace = RateLimit[K](TURNS_A_SECOND, TURNS_AT_ONCE)
        self._hurries = RateLimit[K](TURNS_A_SECOND, HURRIES_AT_ONCE)
        self._in_a_hurry: set[K] = set()
        """Keys whose next turn has passed that pace already."""
        self._failures: dict[K, int] = {}
        self._taken: Counter[Hashable] = Counter()
        self._parked: dict[Hashable, deque[K]] = {}
        """Keys that are due, of groups that have their share."""
        self._changed = asyncio.Event()

    def add(self, key: K) -> None:
        """Ask for a turn now."""
        self.add_after(key, 0.0)

    def add_after(self, key: K, delay_s: float) -> None:
        """Ask for a turn in `delay_s` seconds; an earlier wish stands."""
        if self._schedule.add(key, self._clock.monotonic() + delay_s):
            self._changed.set()

    def hurry(self, key: K) -> None:
        """Ask for a turn now that waits for no pace of other turns, only for one of its own, and for the rest after a
        turn that failed.
        """
        if key not in self._in_a_hurry and self._hurries.admit(key, self._clock.monotonic()) == 0.0:
            self._in_a_hurry.add(key)
            if key not in self._failures:
                self._schedule.wake(key)
        self.add(key)

    def retry(self, key: K, at_least_s: float = 0.0) -> float:
        """The turn failed: ask for another one after a rest that grows; the seconds of it. Events do not cut the
        rest short.
        """
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = max(self._backoff.delay(failures, self._rng), at_least_s)
        until = self._clock.monotonic() + delay
        self._schedule.rest(key, until)
        self._schedule.add(key, until)
        self._changed.set()
        return delay

    def succeeded(self, key: K) -> None:
        """The turn went well: the next failure starts with a short rest again."""
        self._failures.pop(key, None)
        self._schedule.wake(key)

    def done(self, key: K) -> None:
        """Give the key back after its turn."""
        self._schedule.done(key)
        if self._share is not None:
            group = self._share.group(key)
            self._taken[group] -= 1
            parked = self._parked.get(group)
            if parked:
                self._put_back(parked.popleft(), self._clock.monotonic())
        self._changed.set()

    async def get(self) -> K:
        """Wait for a key that is due and may have a turn, and take it."""
        while True:
            now = self._clock.monotonic()
            key = self._schedule.take(now)
            if key is not None:
                if self._has_its_share(key):
                    continue
                pause_s = 0.0 if key in self._in_a_hurry else self._pace.admit(key, now)
                if pause_s == 0.0:
                    self._in_a_hurry.discard(key)
                    if self._share is not None:
                        self._taken[self._share.group(key)] += 1
                    return key
                self._schedule.rest(key, now + pause_s)
                self._put_back(key, now + pause_s)
                continue
            self._changed.clear()
            await wait_until(self._clock, self._schedule.next_due(), self._changed.wait())

    def _has_its_share(self, key: K) -> bool:
        """Whether the key's group has; then the key waits until one of them is done."""
        if self._share is None or self._taken[self._share.group(key)] < self._share.most:
            return False
        self._parked.setdefault(self._share.group(key), deque()).append(key)
        return True

    def _put_back(self, key: K, due: float) -> None:
        self._schedule.add(key, due)
        self._schedule.done(key)

    def __len__(self) -> int:
        """Keys that wait for a turn."""
        return len(self._schedule) + sum(len(parked) for parked in self._parked.values())
