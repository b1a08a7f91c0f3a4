"""Connections between agents: the server of this one, and the link to rank 0's agent.

Called by `agent` (server) and `attempt` (link). A caller shows the job's secret first. One that is ahead of us (we have
not heard of its attempt yet) is kept waiting, one that is behind is sent away.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, Callable, Dict, List, Optional, Protocol, Tuple

from trainjob.agent.wire import peer_protocol
from trainjob.agent.wire.frames import FrameConnection
from trainjob_api import wire

WAITING_LIMIT = 1024
"""Connections that may wait for us to hear of their attempt."""
FIRST_FRAME_S = 10.0
CONNECT_S = 5.0
RETRY_S = 0.05
RETRY_CAP_S = 1.0
LOST_AFTER_S = 1.0
"""How long rank 0's agent may be unreachable before it counts as a lost peer."""


class Host(Protocol):
    """Who takes members' connections: the leader of the current attempt."""

    def attach(self, index: int, connection: FrameConnection) -> None:
        """A member is connected."""

    def take(self, index: int, message: wire.Message, blob: bytes) -> None:
        """A frame from it."""

    def detach(self, index: int, connection: FrameConnection) -> None:
        """Its connection is gone."""


OnFiles = Callable[[FrameConnection, wire.Message], None]


class PeerServer:
    """Accepts peers. `lead` names the attempt that this agent leads."""

    def __init__(self, on_files: OnFiles) -> None:
        self._on_files = on_files
        self._secret: Optional[str] = None
        self._attempt = 0
        self._host: Optional[Host] = None
        self._waiting: List[Tuple[FrameConnection, wire.Message]] = []
        self._server: Optional[asyncio.AbstractServer] = None
        self._open: Dict[FrameConnection, Optional[Tuple[Host, int]]] = {}
        self.port = 0

    async def start(self, host: str) -> None:
        """Listen on a port of the system's choice."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, host, 0, backlog=1024)
        sockets: Any = self._server.sockets
        self.port = sockets[0].getsockname()[1]

    def know(self, secret: str, attempt: int, host: Optional[Host]) -> None:
        """The coordinator's word: the secret, and the attempt we are in (as its leader or not)."""
        self._secret, self._attempt, self._host = secret, attempt, host
        waiting, self._waiting = self._waiting, []
        for connection, message in waiting:
            if connection.open:
                self._admit(connection, message)

    def close(self) -> None:
        """Stop listening and drop all connections."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._open):
            connection.close()

    def _connection(self) -> FrameConnection:
        connection = FrameConnection(self._first, self._lost, peer_protocol.FIRST_FRAME_LIMIT)
        self._open[connection] = None
        asyncio.get_running_loop().call_later(FIRST_FRAME_S, self._hurry, connection)
        return connection

    def _hurry(self, connection: FrameConnection) -> None:
        if connection.first_limit is not None:
            connection.abort()

    def _first(self, connection: FrameConnection, message: wire.Message, blob: bytes) -> None:
        if message["op"] != peer_protocol.HELLO:
            raise ValueError("the first frame is no hello")
        connection.on_frame = _too_early
        self._admit(connection, message)

    def _admit(self, connection: FrameConnection, message: wire.Message) -> None:
        if self._secret is None or int(message["attempt"]) > self._attempt:
            if len(self._waiting) >= WAITING_LIMIT:
                connection.abort()
            else:
                self._waiting.append((connection, message))
            return
        if not peer_protocol.secret_matches(message, self._secret):
            connection.abort()
        elif message["purpose"] == peer_protocol.FILES:
            connection.on_frame = lambda c, m, blob: self._on_files(c, m)
            connection.send({"op": peer_protocol.HELLO})
        elif self._host is None or int(message["attempt"]) < self._attempt:
            connection.close()
        else:
            self._attach(connection, self._host, int(message["index"]))

    def _attach(self, connection: FrameConnection, host: Host, index: int) -> None:
        self._open[connection] = (host, index)
        connection.on_frame = lambda c, m, blob: host.take(index, m, blob)
        host.attach(index, connection)
        connection.send({"op": peer_protocol.HELLO})

    def _lost(self, connection: FrameConnection) -> None:
        self._waiting = [entry for entry in self._waiting if entry[0] is not connection]
        attached = self._open.pop(connection, None)
        if attached is not None:
            attached[0].detach(attached[1], connection)


def _too_early(connection: FrameConnection, message: wire.Message, blob: bytes) -> None:
    raise ValueError("a frame before the answer to hello")


class LeaderLink:
    """A member's connection to rank 0's agent: connects, says hello, and comes back after a loss until closed."""

    def __init__(
        self,
        first: wire.Message,
        on_up: Callable[[], None],
        on_frame: Callable[[wire.Message, bytes], None],
        on_lost: Callable[[bool], None],
    ) -> None:
        self._first = first
        self._on_up = on_up
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._connection: Optional[FrameConnection] = None
        self._task: Optional[asyncio.Task[None]] = None
        self._closed = False

    def connect(self, address: str) -> None:
        """Connect to this address, leaving any other."""
        self._stop()
        self._task = asyncio.ensure_future(self._keep(address))

    def send(self, message: wire.Message, blob: bytes = b"") -> None:
        """Send; without a connection nothing (after the next hello everything is said again)."""
        if self._connection is not None:
            self._connection.send(message, blob)

    def close(self) -> None:
        """Leave in good order."""
        self._closed = True
        self.send({"op": peer_protocol.BYE})
        self._stop()

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def _keep(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        host, port = peer_protocol.split_address(address)
        lost_at, delay = loop.time(), RETRY_S
        while not self._closed:
            gone: asyncio.Future[None] = loop.create_future()
            up = await self._try(host, port, gone)
            if up:
                delay = RETRY_S
                self._on_lost(False)
                await gone
                lost_at = loop.time()
            elif loop.time() - lost_at >= LOST_AFTER_S:
                self._on_lost(True)
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(delay * 2, RETRY_CAP_S)

    async def _try(self, host: str, port: int, gone: asyncio.Future[None]) -> bool:
        """Connect and wait for the answer to hello."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[None] = loop.create_future()

        def frame(connection: FrameConnection, message: wire.Message, blob: bytes) -> None:
            if not answered.done():
                answered.set_result(None)
                self._connection = connection
                self._on_up()
            elif self._connection is connection:
                self._on_frame(message, blob)

        def lost(connection: FrameConnection) -> None:
            if self._connection is connection:
                self._connection = None
            for future in (answered, gone):
                if not future.done():
                    future.set_result(None)

        try:
            _, connection = await asyncio.wait_for(
                loop.create_connection(lambda: FrameConnection(frame, lost), host, port), CONNECT_S
            )
        except (OSError, asyncio.TimeoutError):
            return False
        connection.send(self._first)
        try:
            # It may be kept waiting until its agent has heard of the attempt: as long as it stays open, it is there.
            await answered
        except asyncio.CancelledError:
            connection.close()
            raise
        return self._connection is connection
