"""One Lease as an API server keeps it, for replicas in virtual time; each replica has its own way to it, which can
be cut or slow.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from trainjob_operator.cluster import Conflict, Manifest, NotFound, Unavailable


class HandClock:
    """A clock for several threads that stands still until the test moves it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at = 0.0
        self._sleeping: list[tuple[float, Callable[[], object]]] = []

    def now(self) -> datetime:
        return datetime(2030, 1, 1, tzinfo=UTC)

    def steady(self) -> datetime:
        return self.now()

    def monotonic(self) -> float:
        return self._at

    async def sleep_until(self, deadline: float) -> None:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            if self._at >= deadline:
                return
            self._sleeping.append((deadline, lambda: loop.call_soon_threadsafe(woken.set)))
        await woken.wait()

    def advance(self, seconds: float) -> None:
        """Who was asleep until then wakes up."""
        with self._lock:
            self._at += seconds
            due = [wake for deadline, wake in self._sleeping if deadline <= self._at]
            self._sleeping = [entry for entry in self._sleeping if entry[0] > self._at]
        for wake in due:
            wake()


class LeaseStore:
    """Holds at most one Lease; each write gets a new resourceVersion, and one that names an older version is
    refused.
    """

    def __init__(self) -> None:
        self.lease: Manifest | None = None
        self.written = threading.Event()
        """Set by each write."""
        self._version = 0

    def read(self) -> Manifest:
        if self.lease is None:
            raise NotFound("no such lease")
        return copy.deepcopy(self.lease)

    def write(self, body: Manifest, *, new: bool) -> Manifest:
        if new == (self.lease is not None):
            raise Conflict("it is there already") if new else NotFound("no such lease")
        if not new and body["metadata"].get("resourceVersion") != str(self._version):
            raise Conflict("the object has been modified")
        self._version += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(self._version)
        self.written.set()
        return self.read()

    @property
    def holder(self) -> str:
        return "" if self.lease is None else str(self.lease["spec"]["holderIdentity"])


class LeaseLink:
    """A replica's way to the store: the `LeaseApi` that `Leadership` is given."""

    def __init__(self, store: LeaseStore) -> None:
        self.down = False
        """Calls fail at once."""
        self.replies_lost = False
        """Calls take effect, and no answer comes."""
        self.delay_s = 0.0
        """Before a call takes effect, and again before its answer arrives."""
        self.before: Callable[[], Awaitable[object]] | None = None
        """Waited for before each call, and again before its answer arrives."""
        self._store = store

    async def get(self, path: str) -> Manifest:
        return await self._carry(self._store.read)

    async def create(self, path: str, body: Manifest) -> Manifest:
        return await self._carry(lambda: self._store.write(body, new=True))

    async def replace(self, path: str, body: Manifest) -> Manifest:
        return await self._carry(lambda: self._store.write(body, new=False))

    async def close(self) -> None:
        """Nothing is open."""

    async def _carry(self, effect: Any) -> Manifest:
        await self._way()
        if self.down:
            raise Unavailable("no connection")
        answer: Manifest = effect()
        await self._way()
        if self.replies_lost:
            await asyncio.Event().wait()
        return answer

    async def _way(self) -> None:
        await asyncio.sleep(self.delay_s)
        if self.before is not None:
            await self.before()
