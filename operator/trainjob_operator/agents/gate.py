"""Lets connections to the coordinator in: few that have not shown a good token, and those not for long.

Used by `endpoint.py`. Anybody in the cluster can open a connection, and each costs memory and, with TLS, work before it
has said who it is. So that none can use all of either, connections that are not known yet are bounded in number, in all
and by address, and in time. At the bound the next ones wait in the kernel's queue: after a change of leadership all
agents come at once, and all of them get their turn. Room that is not used is given to them: the oldest of the address
that has most goes. Known connections are few for each pod. What a token is worth is the coordinator's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace

from trainjob_operator.agents.tls import SharedBuffer, accepted

LOOK_EVERY_S = 0.25
TIDY_EVERY_S = 20.0
"""Connections of pods that are gone are forgotten this often."""
BACKLOG = 1024
"""After a change of leadership all agents come at once."""
PAUSE_S = 1.0
"""After a failed accept (no file descriptors left)."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """For connections, above all those that nobody has shown a good token on."""

    connections: int = 512
    per_address: int = 256
    """On one node many workers may share an address."""
    handshake_s: float = 5.0
    """For the TLS handshake."""
    known_within_s: float = 20.0
    """From the connection to its first good token: handshake, the request's head, and the check by the API server."""
    spared_s: float = 2.0
    """So long a connection may take even when others wait for room."""
    per_pod: int = 4
    """Known ones; an agent has one, and for a moment two."""


def bounds_of(files: int) -> Bounds:
    """For a process that may open so many files (-1: as many as it likes): those that nobody knows never take more than
    a quarter, as the rest is for agents and the API server; and those of one address never more than half of that.
    """
    usual = Bounds()
    if files < 0:
        return usual
    connections = max(1, min(usual.connections, files // 4))
    return replace(usual, connections=connections, per_address=max(1, min(usual.per_address, connections // 2)))


Handlers = Callable[[], asyncio.Protocol]
"""Makes the protocol of a new connection."""
Refused = Callable[[str], None]


@dataclass(eq=False)
class _Unknown:
    """A connection that has not shown a token yet."""

    address: str
    since: float
    transport: asyncio.BaseTransport | None = None
    """None: in its TLS handshake."""
    handshake: asyncio.Task[None] | None = None

    def end(self) -> None:
        if isinstance(self.transport, asyncio.Transport):
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()


class Gate:
    """Listens on one socket. `know` is called for a handler's connection as soon as a token was good on it."""

    def __init__(self, handlers: Handlers, refused: Refused, bounds: Bounds | None = None) -> None:
        self._handlers = handlers
        self._refused = refused
        self._bounds = bounds or bounds_of(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._unknown: dict[object, _Unknown] = {}
        self._by_address: dict[str, dict[object, _Unknown]] = {}
        """The oldest first."""
        self._by_pod: dict[str, list[asyncio.BaseTransport]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._buffer = SharedBuffer()
        self._socket: socket.socket | None = None
        self.address: tuple[str, int] = ("", 0)
        """Where it listens."""

    def __len__(self) -> int:
        """Connections that are not known."""
        return len(self._unknown)

    def listen(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        """Open the socket (port 0: any free one) and let connections in until `close`. Raises OSError when the
        address is taken.
        """
        self._socket = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=BACKLOG
        )
        self._socket.setblocking(False)
        bound = self._socket.getsockname()
        self.address = (bound[0], bound[1])
        self._spawn(self._accept(self._socket, context))
        self._spawn(self._look())

    def know(self, handler: object, pod: str | None = None) -> None:
        """Its connection has shown a good token (of that pod): it no longer counts as unknown."""
        entry = self._unknown.get(handler)
        self._forget(handler)
        if entry is None or entry.transport is None or pod is None:
            return
        mine = [transport for transport in self._by_pod.get(pod, ()) if not transport.is_closing()]
        self._by_pod[pod] = [*mine, entry.transport]
        for transport in mine[: max(0, len(mine) + 1 - self._bounds.per_pod)]:
            self._refused("too many connections of a pod")
            if isinstance(transport, asyncio.Transport):
                transport.abort()

    async def close(self) -> None:
        """Listen no more; connections that are known stay as they are."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
        for entry in self._unknown.values():
            if isinstance(entry.transport, asyncio.Transport):
                entry.transport.abort()

    # --- Inside -------------------------------------------------------------------------------------------------------

    async def _accept(self, listening: socket.socket, context: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(PAUSE_S)
                continue
            address = str(peer[0])
            if len(self._by_address.get(address, ())) >= self._bounds.per_address:
                self._refused("too many connections")
                connection.close()
                continue
            # It waits here, and those behind it in the kernel's queue: while nobody comes, nobody has to go.
            try:
                while len(self._unknown) >= self._bounds.connections:
                    await self._make_room()
            except asyncio.CancelledError:
                connection.close()
                raise
            handler = self._handlers()
            entry = _Unknown(address, loop.time())
            self._unknown[handler] = self._by_address.setdefault(address, {})[handler] = entry
            entry.handshake = self._spawn(self._let_in(connection, handler, context))

    async def _make_room(self) -> None:
        """Wait until there is room, at most until the oldest of the address that has most has had its time."""
        handler, entry = next(iter(max(self._by_address.values(), key=len).items()))
        spare_s = entry.since + self._bounds.spared_s - asyncio.get_running_loop().time()
        if spare_s <= 0.0:
            self._refused("dropped for another")
            entry.end()
            self._forget(handler)
            return
        self._room.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(spare_s):
                await self._room.wait()

    async def _let_in(
        self, connection: socket.socket, handler: asyncio.Protocol, context: ssl.SSLContext | None
    ) -> None:
        loop = asyncio.get_running_loop()
        transport: asyncio.BaseTransport
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if context is None:
                transport, _ = await loop.connect_accepted_socket(lambda: handler, connection)
            else:
                transport = await accepted(connection, handler, context, self._bounds.handshake_s, self._buffer)
        except (OSError, TimeoutError, asyncio.CancelledError) as error:
            # ssl.SSLError is an OSError, and so is a peer that hung up.
            self._forget(handler)
            connection.close()
            if isinstance(error, asyncio.CancelledError):
                raise
            self._refused("handshake failed")
            return
        entry = self._unknown.get(handler)
        if entry is None:  # dropped, or known already
            return
        entry.transport = transport

    async def _look(self) -> None:
        """End those whose time is over, and forget those that are gone."""
        loop = asyncio.get_running_loop()
        tidy_at = loop.time()
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for handler, entry in list(self._unknown.items()):
                if entry.transport is None:
                    continue  # the handshake has a limit of its own
                if entry.transport.is_closing():
                    self._forget(handler)
                elif loop.time() >= entry.since + self._bounds.known_within_s:
                    self._refused("not known in time")
                    entry.end()
                    self._forget(handler)
            if loop.time() >= tidy_at:
                tidy_at = loop.time() + TIDY_EVERY_S
                every = {pod: [one for one in all_ if not one.is_closing()] for pod, all_ in self._by_pod.items()}
                self._by_pod = {pod: open_ for pod, open_ in every.items() if open_}

    def _forget(self, handler: object) -> None:
        entry = self._unknown.pop(handler, None)
        if entry is not None:
            del self._by_address[entry.address][handler]
            if not self._by_address[entry.address]:
                del self._by_address[entry.address]
            self._room.set()

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
