"""Forks of a warm parent that come in the very moment in which nobody waits for them any more."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from trainjob.agent.warm import gates
from trainjob.agent.warm.gate import Gate
from trainjob.agent.warm.parent import WarmParent
from trainjob.agent.warm.stores import Stores


class Coming:
    """A gate as far as is asked of it, and the parent that it is a fork of."""

    def __init__(self) -> None:
        self.stands = self.dropped = False
        self.pid = 0
        loop = asyncio.get_running_loop()
        self.waits, self.hosts = loop.create_future(), loop.create_future()

    def fork(self, refused: Any) -> Coming:
        return self

    def come(self) -> None:
        self.stands = True
        self.waits.set_result(True)

    def host(self, port: int, say: Any) -> None:
        self.hosts.set_result(True)

    def drop(self) -> None:
        self.stands, self.dropped = False, True


class Port:
    """Of a store."""

    port, released = 20001, False

    def release(self) -> None:
        self.released = True


async def steps(number: int = 5) -> None:
    """Let others run."""
    for _ in range(number):
        await asyncio.sleep(0)


def test_a_fork_that_comes_as_its_start_is_given_up_goes() -> None:
    async def play() -> None:
        coming = Coming()
        single = asyncio.ensure_future(gates.single(cast(WarmParent, coming), print))
        await steps()
        coming.come()
        single.cancel()
        with pytest.raises(asyncio.CancelledError):
            await single
        assert coming.dropped

    asyncio.run(play())


def test_a_store_that_comes_as_its_start_is_given_up_goes() -> None:
    async def play() -> None:
        port, coming, waits = Port(), Coming(), asyncio.Event()

        async def single(module: str) -> Gate | None:
            await waits.wait()
            return cast(Gate, coming)

        def port_of(attempt: int) -> Port:
            return port

        stores = Stores(single, print)
        first = asyncio.ensure_future(stores.take(1, port_of, alone=False))
        await steps()
        waits.set()
        (await first).release()
        port, coming = Port(), Coming()
        waits.clear()
        stores.make_next()
        await steps()
        ahead = stores._ahead
        assert ahead is not None
        take = asyncio.ensure_future(stores.take(2, port_of, alone=False))
        await steps()
        waits.set()
        while not ahead.done():
            await steps(1)
        take.cancel()
        await asyncio.wait([take])
        assert take.cancelled() and port.released and coming.dropped

    asyncio.run(play())
