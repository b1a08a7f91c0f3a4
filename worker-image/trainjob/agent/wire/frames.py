"""One connection that speaks frames (`trainjob_api.wire`), as an asyncio protocol with plain callbacks.

Used for ranks (Unix sockets), peers (TCP) and the hot path of every report(): no streams, no tasks, no logging per
frame.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from typing import BinaryIO, Callable, Deque, Optional, cast

from trainjob_api import wire

OnFrame = Callable[["FrameConnection", wire.Message, bytes], None]
OnClosed = Callable[["FrameConnection"], None]

KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 15000))
"""A peer whose machine vanished is noticed after about 15 s; a closed socket at once."""


_UCRED = struct.Struct("iII")
"""Of SO_PEERCRED: pid, uid, gid."""
PIECE = 128 * 1024
"""Of a large frame this much is given to the transport at a time: it copies what the socket does not take."""

_ROOM = bytearray(256 * 1024)
"""Where all connections read into: the loop fills it and calls `buffer_updated` in one go. Plain data_received costs
a fresh 256 KiB block per frame.
"""
_READ = memoryview(_ROOM)


class FrameConnection(asyncio.BufferedProtocol):
    """`on_frame` for each frame; a frame that it cannot read (KeyError, TypeError, ValueError) closes the
    connection.
    """

    def __init__(self, on_frame: OnFrame, on_closed: OnClosed, stranger_limit: Optional[int] = None) -> None:
        """`stranger_limit`: bytes of a frame until `trust`, so that a stranger cannot make us buffer; its nonsense is
        nobody's fault of ours and is not told.
        """
        self.on_frame = on_frame
        self.on_closed = on_closed
        self._trusted = stranger_limit is None
        self._decoder = wire.Decoder(stranger_limit)
        self._transport: Optional[asyncio.Transport] = None
        self._queue: Deque[memoryview] = deque()
        """What the transport would have to copy: of a frame for many receivers there is one in this process."""
        self._full = False
        self._ending = False
        self._mute = False
        self._writable: Optional[asyncio.Future[None]] = None
        self._now = asyncio.get_running_loop().time
        self.heard_at = self._sent_at = self._now()
        """When its last bytes came, by the loop's time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.heard_at = self._sent_at = self._now()
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE:
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def get_buffer(self, sizehint: int) -> bytearray:
        return _ROOM

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_at = self._now()
        try:
            for message, blob in self._decoder.feed(bytes(_READ[:nbytes])):
                self.on_frame(self, message, blob)
        except (wire.WireError, KeyError, TypeError, ValueError) as error:
            if self._trusted:
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "a frame that cannot be read; its connection is closed", "exception": error}
                )
            self.abort()

    def trust(self) -> None:
        """The other side has proven who it is: its frames may be as large as frames are."""
        self._trusted, self._decoder.limit = True, None

    def connection_lost(self, exc: Optional[Exception]) -> None:
        self._transport, self._ending = None, False
        self._queue.clear()
        self.resume_writing()
        self.on_closed(self)

    def pause_writing(self) -> None:
        self._full = True
        if self._writable is None:
            self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        self._full = False
        while self._queue and not self._full and self._transport is not None:
            self._write(self._queue.popleft())
        if self._full or self._queue:
            return
        waiting, self._writable = self._writable, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
        if self._ending:
            self.close()

    @property
    def peer_pid(self) -> Optional[int]:
        """The process at the other end of a Unix socket, in our own numbers; None: not known, or not visible here."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        if sock is None or sock.family != socket.AF_UNIX:
            return None
        pid: int = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[0]
        return pid or None

    async def drained(self) -> None:
        """Wait until the other side has taken most of what was sent, or is gone."""
        if self._writable is not None:
            await self._writable

    @property
    def open(self) -> bool:
        """Whether frames can still be sent."""
        return self._transport is not None and not self._ending and not self._transport.is_closing()

    def send(self, message: wire.Message, blob: bytes = b"") -> None:
        """Send one frame; silently nothing on a closed connection (its end is told by `on_closed`)."""
        if self._transport is not None:
            self.send_frame(wire.encode(message, blob))

    def send_frame(self, frame: bytes) -> None:
        """The same of one that is encoded already: many receivers share it."""
        if self._transport is None or self._ending or self._mute:
            return
        self._sent_at = self._now()
        if self._full or self._queue:
            self._queue.append(memoryview(frame))
        elif len(frame) <= PIECE:
            self._transport.write(frame)
        else:
            self._write(memoryview(frame))

    def send_if_quiet(self, frame: bytes, quiet_s: float) -> None:
        """Send it unless something else was sent within that time, or is still on its way."""
        if not self._full and not self._queue and self._now() - self._sent_at >= quiet_s:
            self.send_frame(frame)

    def _write(self, data: memoryview) -> None:
        """As much as the transport takes without piling it up."""
        while data and not self._full and self._transport is not None:
            self._transport.write(data[:PIECE])
            data = data[PIECE:]
        if data:
            self._queue.appendleft(data)

    async def send_file(self, file: BinaryIO, offset: int, count: int) -> None:
        """Send bytes of a file as they are, without reading them. Where that fails the connection is closed: the
        other side waits for just so many.
        """
        if self._transport is None or not count:
            return
        try:
            sent = await asyncio.get_running_loop().sendfile(self._transport, file, offset, count)
        except (OSError, RuntimeError):  # the other side went away, or we are closing
            sent = -1
        if sent != count:
            self.abort()

    def close(self) -> None:
        """Close after what was sent has left."""
        self._ending = bool(self._queue)
        if self._transport is not None and not self._ending:
            self._transport.close()

    def say_no_more(self) -> None:
        """The other side reads an end, and what it still says is heard."""
        self._queue.clear()
        self._mute = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()

    def abort(self) -> None:
        """Close now."""
        if self._transport is not None:
            self._transport.abort()
