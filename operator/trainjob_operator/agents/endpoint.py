"""The thin HTTP layer under the coordinator: two routes, bounds, start and stop. health.py serves the probes; no other
operator module serves HTTP.

`POST /v1/sync` and `GET /healthz`. Bodies are bounded here in size, in time and all together, connections in `gate.py`;
what goes over one is `connection.py`. What a body means is the coordinator's business, which also says when it is worth
reading: not before its token is. It is not aiohttp that serves: of each open poll that keeps a task, a parser and the
head of the request, more than twice as much as the connection itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from trainjob_api import contract
from trainjob_operator.agents.answers import Answer, Held, Serve, refusal
from trainjob_operator.agents.connection import Connection
from trainjob_operator.agents.gate import Gate
from trainjob_operator.agents.request_head import Head

BODY_TIMEOUT_S = 10.0
"""How long a client may take to send a body."""
BODIES_LIMIT = 16 * 1024 * 1024
"""Bytes of all bodies that are being read at one moment; the next ones wait."""
SHUTDOWN_S = 2.0
SYNC_PATH = "/v1/sync"
HEALTH_PATH = "/healthz"
_SYNC_METHODS = ("POST",)
_METHODS = {SYNC_PATH: _SYNC_METHODS, HEALTH_PATH: ("GET", "HEAD")}

Health = Callable[[], Mapping[str, Any]]


class _Unreadable(Exception):
    """The body is not to be had; the answer says why."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class _Room:
    """So many bytes; who wants more than are left waits, in turn."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, count: int) -> None:
        if count <= self._left and not self._waiting:
            self._left -= count
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((count, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(count)
            else:
                self.give(0)
            raise

    def give(self, count: int) -> None:
        self._left += count
        while self._waiting and (self._waiting[0][1].cancelled() or self._waiting[0][0] <= self._left):
            wanted, turn = self._waiting.popleft()
            if not turn.cancelled():  # it has hung up, or waited for too long
                self._left -= wanted
                turn.set_result(None)


class Endpoint:
    """A listening socket and the two routes."""

    def __init__(self, serve: Serve, health: Health, refused: Callable[[str], None]) -> None:
        self._serve = serve
        self._health = health
        self._refused = refused
        self._connections: set[Connection] = set()
        self._none_left = asyncio.Event()
        self._gate: Gate | None = None
        self._room = _Room(BODIES_LIMIT)

    @property
    def unknown(self) -> int:
        """Connections on which nobody has shown a good token yet."""
        return len(self._gate) if self._gate is not None else 0

    async def start(self, host: str, port: int, ssl_context: ssl.SSLContext | None = None) -> str:
        """Listen, with TLS if there is a context; the base URL (port 0: any free one). Raises OSError when the
        address is taken.
        """
        self._gate = Gate(self._connection, self._refused)
        try:
            self._gate.listen(host, port, ssl_context)
        except OSError:
            await self.stop()
            raise
        where, number = self._gate.address
        return f"{'http' if ssl_context is None else 'https'}://{f'[{where}]' if ':' in where else where}:{number}"

    async def stop(self) -> None:
        """Close the socket and the connections; open requests get SHUTDOWN_S to end."""
        if self._gate is not None:
            await self._gate.close()
            self._gate = None
        for connection in tuple(self._connections):
            connection.close()
        await self._until_none_is_left()
        tasks = [connection.task for connection in self._connections if connection.task is not None]
        for connection in tuple(self._connections):
            connection.abort()
        await self._until_none_is_left()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_none_is_left(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_S):
                while self._connections:
                    self._none_left.clear()
                    await self._none_left.wait()

    def _connection(self) -> Connection:
        """For one that the gate lets in."""
        return Connection(self._routed, self._connections.add, self._ended)

    def _ended(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._none_left.set()

    async def _routed(self, connection: Connection, head: Head) -> Answer | Held:
        methods = _METHODS.get(head.path)
        if methods is None:
            return refusal(404, f"there is nothing but {SYNC_PATH} and {HEALTH_PATH}")
        if head.method not in methods:
            return refusal(405, f"{head.path} takes {methods[0]} alone")
        if methods is not _SYNC_METHODS:
            return Answer(200, self._health())
        try:
            return await self._serve(
                head.token,
                lambda: self._read(connection, head.length),
                lambda pod: self._know(connection, pod),
            )
        except _Unreadable as error:
            return error.answer

    async def _read(self, connection: Connection, length: int) -> bytes:
        """The body, as soon as there is room for it. Raises _Unreadable, HungUp."""
        if length > contract.SYNC_BODY_LIMIT:
            self._refused("too large")
            raise _Unreadable(refusal(413, f"the body is larger than {contract.SYNC_BODY_LIMIT} bytes"))
        if connection.body_is_here:  # it takes neither room nor time
            return await connection.read()
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                await self._room.take(length)
                try:
                    return await connection.read()
                finally:
                    self._room.give(length)
        except TimeoutError:
            self._refused("too slow")
            text = f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s"
            raise _Unreadable(refusal(408, text)) from None

    def _know(self, connection: Connection, pod: str | None) -> None:
        if self._gate is not None:
            self._gate.know(connection, pod)
