"""TLS of the coordinator's connections: thousands of agents wait, each on its own, so one must be small.

Used by `gate.py`. asyncio keeps a buffer of 256 KiB for each TLS connection, into which the kernel's bytes are read,
and OpenSSL what came of them. Here all connections of a gate read into one buffer: what comes is handed to OpenSSL in
the same step of the event loop, before another connection can read. Connections of other parts of the process stay as
asyncio makes them.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from asyncio import sslproto
from typing import Any

READ_BYTES = 4 * 1024
"""Read at once, encrypted or not: a report has no more."""


class SharedBuffer:
    """One for all connections of an event loop."""

    def __init__(self) -> None:
        self.bytes = bytearray(READ_BYTES)
        self.view = memoryview(self.bytes)


class _Connection(sslproto.SSLProtocol):
    """The server's end of one connection."""

    max_size = READ_BYTES

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handler: asyncio.Protocol,
        context: ssl.SSLContext,
        waiter: asyncio.Future[None],
        handshake_s: float,
        buffer: SharedBuffer,
    ) -> None:
        limit: Any = handshake_s
        super().__init__(loop, handler, context, waiter, server_side=True, ssl_handshake_timeout=limit)
        # In place of the one that it has just made.
        self._ssl_buffer, self._ssl_buffer_view = buffer.bytes, buffer.view

    @property
    def inside(self) -> asyncio.Transport:
        """What the handler reads and writes."""
        return self._app_transport


async def accepted(
    connection: socket.socket,
    handler: asyncio.Protocol,
    context: ssl.SSLContext,
    handshake_s: float,
    buffer: SharedBuffer,
) -> asyncio.Transport:
    """The connection, once its handshake is over. Raises OSError (ssl.SSLError among them), TimeoutError."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    ours = _Connection(loop, handler, context, waiter, handshake_s, buffer)
    outside, _ = await loop.connect_accepted_socket(lambda: ours, connection)
    try:
        await waiter
    except BaseException:
        outside.abort()
        raise
    # Of a connection whose reading is paused nothing piles up before OpenSSL: asyncio lets 256 KiB.
    inside: Any = ours.inside
    inside.set_read_buffer_limits(high=READ_BYTES)
    return ours.inside
