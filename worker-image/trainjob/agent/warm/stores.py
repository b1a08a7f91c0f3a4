"""The store by which an attempt's ranks find each other (torch's TCPStore), in a process beside them: a fork of the
warm parent at rank 0's agent.

It listens before any rank looks for it (one that comes too early tries again after a quarter of a second or more), on a
port that nobody can take meanwhile, and stays when rank 0 ends before the others. That of the next attempt is made
ahead, with the forks for its ranks. Where there is none to be had, rank 0 serves it as ever. Called by `leader`.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Awaitable, Callable, Coroutine, Optional, Protocol

from trainjob.agent.warm.gate import Gate

MODULE = "torch"
STORE_S = 5.0
"""How long ranks wait for it, and for the end of one that was made for others."""


class Port(Protocol):
    """Of an attempt: `attempts.master_port`."""

    port: int

    def release(self) -> None:
        """The attempt is over."""
        ...


PortOf = Callable[[int], Port]
"""Of the attempt with that number. Raises OSError: none is free."""


class Store:
    """A port, and the process that serves the store on it; without one rank 0 does."""

    def __init__(self, attempt: int, port: Port, gate: Optional[Gate]) -> None:
        self.attempt = attempt
        self.port = port.port
        self._master_port = port
        self.gate = gate

    @property
    def hosted(self) -> bool:
        """It is served beside the ranks."""
        return self.gate is not None

    @property
    def stands(self) -> bool:
        """The process is there, if there is one."""
        return self.gate is None or self.gate.stands

    def on_end(self, call: Callable[[], None]) -> None:
        """The process ended before it was released."""
        if self.gate is not None:
            self.gate.on_end = call

    def release(self) -> None:
        """The attempt is over."""
        if self.gate is not None:
            self.gate.drop()
        self._master_port.release()

    async def gone(self) -> None:
        """Once it is released: until nobody listens on the port."""
        if self.gate is not None and self.gate.pid:
            await asyncio.wait([self.gate.gone], timeout=STORE_S)


class Stores:
    """One per agent."""

    def __init__(self, single: Callable[[str], Awaitable[Optional[Gate]]], say: Callable[[str], None]) -> None:
        """`single`: a fork of a warm parent that has imported this. `say`: why there is no store."""
        self._single = single
        self._say = say
        self._ahead: Optional[asyncio.Task[Store]] = None
        self._next: Optional[Callable[[], Coroutine[Any, Any, Store]]] = None
        """Makes that of the attempt after the one that has taken its own."""

    async def take(self, attempt: int, port_of: PortOf, alone: bool) -> Store:
        """For this attempt. `alone`: one rank has nobody to be found by. May wait for the warm parent, as the ranks
        do. Raises OSError: no port is free.
        """
        self._next = None if alone else lambda: self._made(attempt + 1, port_of)
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            with contextlib.suppress(OSError):  # tried again below
                store = await _got(ahead)
                if not alone and store.attempt == attempt and store.hosted and store.stands:
                    return store
                store.release()
                # The rank that is alone, or the store of this attempt, may want the very port.
                await store.gone()
        return Store(attempt, port_of(attempt), None) if alone else await self._made(attempt, port_of)

    def make_next(self) -> None:
        """The ranks have begun: now is the time for the next attempt's."""
        if self._ahead is None and self._next is not None:
            self._ahead = asyncio.ensure_future(self._next())
            self._next = None

    def close(self) -> None:
        """What was made ahead is not needed."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()
            _release(ahead)

    async def _made(self, attempt: int, port_of: PortOf) -> Store:
        store = Store(attempt, port_of(attempt), None)
        try:
            gate = store.gate = await self._single(MODULE)
            if gate is not None:
                gate.host(store.port, self._say)
                await asyncio.wait([gate.hosts], timeout=STORE_S)
                if not gate.hosts.done() or not gate.hosts.result():
                    gate.drop()
                    store.gate = None
        except BaseException:
            store.release()
            raise
        return store


async def _got(ahead: asyncio.Task[Store]) -> Store:
    try:
        return await ahead
    except asyncio.CancelledError:
        _release(ahead)  # it may have come in that very moment
        raise


def _release(ahead: asyncio.Task[Store]) -> None:
    """What has come."""
    if ahead.done() and not ahead.cancelled() and ahead.exception() is None:
        ahead.result().release()
