"""Connections that have not shown a token: few, not for long, and never in the way of the others."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

import aiohttp

from support.patience import HANG_S
from support.trust import MemoryApi, client_context
from trainjob_operator.agents.callers import bearer
from trainjob_operator.agents.coordinator import Coordinator
from trainjob_operator.agents.gate import Bounds, Gate
from trainjob_operator.clock import SystemClock
from trainjob_operator.cluster import JobKey
from trainjob_operator.trust.certificates import ensure


class Door(asyncio.Protocol):
    """Says `in` to whom it lets in; one that says `token` is known."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"in")

    def data_received(self, data: bytes) -> None:
        self.bed.gate.know(self, self.bed.pod)


class Bed:
    """A gate, and clients of it."""

    def __init__(self, bounds: Bounds, context: ssl.SSLContext | None = None) -> None:
        self.refused: Counter[str] = Counter()
        self.pod: str | None = None
        self.gate = Gate(lambda: Door(self), lambda why: self.refused.update([why]), bounds)
        self.context = context
        self.clients: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def connect(self, context: ssl.SSLContext | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        client = await asyncio.open_connection(
            *self.gate.address, ssl=context, server_hostname="localhost" if context else None
        )
        self.clients.append(client)
        return client

    def bound(self, **bounds: float) -> None:
        """From now on."""
        self.gate._bounds = replace(self.gate._bounds, **bounds)  # type: ignore[arg-type]

    async def is_in(self, client: tuple[asyncio.StreamReader, asyncio.StreamWriter], within_s: float = HANG_S) -> bool:
        """Whether it was let in; False: it was closed, or nobody has answered yet."""
        try:
            async with asyncio.timeout(within_s):
                return await client[0].read(2) == b"in"
        except (TimeoutError, ConnectionError):
            return False

    async def is_closed(self, client: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bool:
        """Wait for its end."""
        try:
            return await client[0].read() == b""
        except ConnectionError:
            return True


def on_bed(test: Callable[[Bed], Awaitable[None]], context: ssl.SSLContext | None = None, **bounds: float) -> None:
    async def main() -> None:
        bed = Bed(Bounds(**bounds), context)  # type: ignore[arg-type]
        bed.gate.listen("127.0.0.1", 0, context)
        try:
            await asyncio.wait_for(test(bed), HANG_S)
        finally:
            for _, writer in bed.clients:
                writer.close()
            await bed.gate.close()

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_S):
        while not condition():  # noqa: ASYNC110 (real sockets)
            await asyncio.sleep(0.01)


def test_at_the_bound_the_next_one_waits_until_another_is_known() -> None:
    async def test(bed: Bed) -> None:
        first, second = await bed.connect(), await bed.connect()
        assert await bed.is_in(first) and await bed.is_in(second)
        third = await bed.connect()
        assert not await bed.is_in(third, within_s=0.3) and len(bed.gate) == 2
        first[1].write(b"token")
        assert await bed.is_in(third)
        assert len(bed.gate) == 2 and not bed.refused, "nobody was turned away"

    on_bed(test, connections=2, spared_s=HANG_S, known_within_s=HANG_S)


def test_who_uses_no_room_gives_it_to_others_and_the_oldest_of_the_greediest_goes() -> None:
    async def test(bed: Bed) -> None:
        idle = [await bed.connect() for _ in range(3)]
        assert [await bed.is_in(client) for client in idle] == [True] * 3
        late = await bed.connect()
        assert await bed.is_in(late), "long before the others' time is over"
        assert bed.refused == {"dropped for another": 1}
        assert await bed.is_closed(idle[0]) and not idle[1][0].at_eof()

    on_bed(test, connections=3, known_within_s=HANG_S, spared_s=0.2)


def test_a_handshake_that_does_not_come_is_dropped_for_another_too() -> None:
    trust = asyncio.run(ensure(MemoryApi(), "system", "coordinator", ("localhost",)))

    async def test(bed: Bed) -> None:
        await bed.connect()  # plain TCP, and not a word
        await until(lambda: len(bed.gate) == 1)
        assert await bed.is_in(await bed.connect(client_context(trust.ca_pem)))
        assert bed.refused == {"dropped for another": 1}

    on_bed(test, trust.ssl_context, connections=1, handshake_s=HANG_S, spared_s=0.2)


def test_a_pod_keeps_few_connections_and_the_newest() -> None:
    async def test(bed: Bed) -> None:
        bed.pod = "uid-1"
        clients = [await bed.connect() for _ in range(4)]
        for client in clients:
            assert await bed.is_in(client)
            client[1].write(b"token")
            known = 4 - clients.index(client) - 1
            await until(lambda: len(bed.gate) == known)  # noqa: B023 (awaited here)
        assert [await bed.is_closed(clients[n]) for n in (0, 1)] == [True, True]
        assert bed.refused == {"too many connections of a pod": 2}
        assert not clients[2][0].at_eof() and not clients[3][0].at_eof()

    on_bed(test, per_pod=2)


def test_one_that_hangs_up_makes_room() -> None:
    async def test(bed: Bed) -> None:
        first = await bed.connect()
        assert await bed.is_in(first)
        second = await bed.connect()
        first[1].close()
        assert await bed.is_in(second)

    on_bed(test, connections=1)


def test_who_shows_no_token_in_time_is_closed_and_who_did_stays() -> None:
    async def test(bed: Bed) -> None:
        known = await bed.connect()
        assert await bed.is_in(known)
        known[1].write(b"token")
        await until(lambda: len(bed.gate) == 0)
        bed.bound(known_within_s=0.1)
        unknown = await bed.connect()
        assert await bed.is_in(unknown)
        assert await bed.is_in(unknown) is False
        assert bed.refused == {"not known in time": 1} and len(bed.gate) == 0
        assert not known[0].at_eof()

    on_bed(test, known_within_s=HANG_S)


def test_one_address_cannot_take_all_the_room() -> None:
    async def test(bed: Bed) -> None:
        clients = [await bed.connect() for _ in range(4)]
        assert [await bed.is_in(client) for client in clients] == [True, True, True, False]
        assert bed.refused == {"too many connections": 1}
        clients[0][1].write(b"token")
        await until(lambda: len(bed.gate) == 2)
        assert await bed.is_in(await bed.connect())

    on_bed(test, per_address=3)


def test_a_tls_handshake_that_does_not_come_is_not_waited_for() -> None:
    trust = asyncio.run(ensure(MemoryApi(), "system", "coordinator", ("localhost",)))

    async def test(bed: Bed) -> None:
        silent = await bed.connect()  # plain TCP, and not a word
        await until(lambda: len(bed.gate) == 1)
        await asyncio.sleep(0)  # its handshake is under way
        bed.bound(handshake_s=HANG_S)
        polite = asyncio.ensure_future(bed.connect(client_context(trust.ca_pem)))
        await until(lambda: bed.refused["handshake failed"] == 1)
        assert await bed.is_in(silent) is False
        assert await bed.is_in(await polite), "it had waited for room"

    on_bed(test, trust.ssl_context, connections=1, handshake_s=0.2, spared_s=HANG_S)


def test_the_coordinator_tells_good_tokens_from_others() -> None:
    async def nobody(key: JobKey) -> str | None:
        return None

    async def main() -> None:
        coordinator = Coordinator(
            clock=SystemClock(), authenticate=bearer("good"), find_owner=nobody, master_key=b"key"
        )
        url = await coordinator.start("127.0.0.1", 0)
        try:
            async with aiohttp.ClientSession() as session:
                for token, status, unknown in (("bad", 401, 1), ("good", 400, 0)):
                    async with session.post(
                        f"{url}/v1/sync", data=b"no report", headers={"Authorization": f"Bearer {token}"}
                    ) as response:
                        assert response.status == status
                    assert coordinator.unknown() == unknown
        finally:
            await coordinator.stop()

    asyncio.run(asyncio.wait_for(main(), HANG_S))
