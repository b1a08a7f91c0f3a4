"""One POST at a time over one HTTP/1.1 connection that stays open. Called by `sync`; standard library's http.client
blocks and imports too much.

Understands what a coordinator answers: a status line, headers, a body with Content-Length or chunked.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Dict, NamedTuple, Optional, cast

from trainjob.agent.background import within
from trainjob.agent.config import Endpoint

if TYPE_CHECKING:
    import ssl

ANSWER_LIMIT = 1024 * 1024
SILENT_S = 15
"""A peer whose machine acknowledges nothing for so long is gone: a poll that nobody can answer any more ends then."""


class Answer(NamedTuple):
    """What came back."""

    status: int
    body: bytes
    retry_after_s: Optional[float] = None
    """Not before then is it worth another try."""


class PostError(Exception):
    """No answer, or none that can be read."""


def trust(endpoint: Endpoint, authority: Optional[str]) -> Optional[ssl.SSLContext]:
    """For `PostConnection`: believe a server only with a certificate for its host by this authority (PEM; None: the
    system's). None for plain HTTP.
    """
    if not endpoint.secure:
        return None
    import ssl  # a Python that was built without it can still speak plain HTTP

    context = ssl.create_default_context(cadata=authority)
    if authority is not None:
        # From Python 3.13 on that is strict, for authorities of the world: it refuses what a company's own tool leaves
        # out of its certificate (key usage, key identifiers).
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


class PostConnection(asyncio.Protocol):
    """`open`, then `post` as often as the server keeps it."""

    def __init__(self, endpoint: Endpoint, context: Optional[ssl.SSLContext] = None) -> None:
        self._endpoint = endpoint
        self._context = context
        self._transport: Optional[asyncio.Transport] = None
        self._opened = False
        self._buffer = b""
        self._answer: Optional[asyncio.Future[Answer]] = None

    async def open(self, limit_s: Optional[float] = None) -> None:
        """Connect. Raises asyncio.TimeoutError, OSError; of it, ssl.SSLError when the server is not to be trusted."""
        try:
            await within(self._connect(), limit_s)
        except asyncio.CancelledError:
            self.close()  # it may have come in this very turn
            raise

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, self._endpoint.host, self._endpoint.port, ssl=self._context)

    @property
    def usable(self) -> bool:
        """Open, and no answer outstanding."""
        return self._transport is not None and not self._transport.is_closing() and self._answer is None

    @property
    def closed(self) -> bool:
        """It was open and is no more."""
        return self._opened and self._transport is None

    async def post(self, path: str, headers: Dict[str, str], body: bytes) -> Answer:
        """The answer. Raises PostError. Cancelling it closes the connection: what the answer belongs to would be
        lost.
        """
        if self._transport is None:
            raise PostError("the connection is closed")
        self._answer = asyncio.get_running_loop().create_future()
        lines = [
            f"POST {path} HTTP/1.1",
            f"Host: {self._endpoint.host}:{self._endpoint.port}",
            f"Content-Length: {len(body)}",
        ]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        try:
            return await self._answer
        except BaseException:
            self.close()
            raise
        finally:
            self._answer = None

    def close(self) -> None:
        """Close now."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._opened = True
        _notice_silence(transport.get_extra_info("socket"))

    def connection_lost(self, exc: Optional[Exception]) -> None:
        self._transport = None
        self._fail(PostError(f"the connection ended before the answer{f' ({exc})' if exc else ''}"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            answer = self._parse()
        except ValueError as error:
            self._fail(PostError(f"the answer is no HTTP: {error}"))
            self.close()
            return
        if answer is not None and self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def _fail(self, error: PostError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def _parse(self) -> Optional[Answer]:
        """The answer, once it is complete. Raises ValueError."""
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if len(self._buffer) > ANSWER_LIMIT:
            raise ValueError(f"longer than {ANSWER_LIMIT} bytes")
        if not found:
            return None
        lines = head.decode("latin-1").split("\r\n")
        version, status = lines[0].split(" ")[:2]
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        if not version.startswith("HTTP/1."):
            raise ValueError(lines[0][:80])
        body = (
            _chunked(rest)
            if headers.get("transfer-encoding", "").lower() == "chunked"
            else _sized(rest, int(headers.get("content-length", "0")))
        )
        if body is None:
            return None
        self._buffer = b""
        if headers.get("connection", "").lower() == "close" and self._transport is not None:
            self._transport.close()
        return Answer(int(status), body, _seconds(headers.get("retry-after")))


def _notice_silence(connected: Optional[socket.socket]) -> None:
    """Else a machine that lost its power would be waited for until the poll's own end, and longer with bytes on
    their way to it.
    """
    if connected is None or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    every = SILENT_S // 3
    for name, value in (
        ("TCP_KEEPIDLE", every),
        ("TCP_KEEPINTVL", every),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", 1000 * SILENT_S),
    ):
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _seconds(text: Optional[str]) -> Optional[float]:
    """Retry-After as a number of seconds; a date is not what a coordinator sends."""
    return float(text) if text is not None and text.isdigit() else None


def _sized(rest: bytes, length: int) -> Optional[bytes]:
    return rest[:length] if len(rest) >= length else None


def _chunked(rest: bytes) -> Optional[bytes]:
    body = b""
    while True:
        size_line, found, rest = rest.partition(b"\r\n")
        if not found:
            return None
        size = int(size_line.split(b";")[0], 16)
        if len(rest) < size + 2:
            return None
        if size == 0:
            return body
        body, rest = body + rest[:size], rest[size + 2 :]
