"""The thin HTTP layer under the coordinator: bytes in, bytes out. health.py serves the probes; no other operator module
serves HTTP.

`POST /v1/sync` and `GET /healthz`. Bodies are bounded here in size, in time and all together, connections in `gate.py`.
What they mean is the coordinator's business, which also says when a body is worth reading: not before its token is.
"""

from __future__ import annotations

import asyncio
import json
import math
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import HttpVersion11, StreamReader, web
from aiohttp.http_parser import RawRequestMessage

from trainjob_api import contract
from trainjob_operator.agents.gate import Gate

BODY_TIMEOUT_S = 10.0
"""How long a client may take to send a body."""
IDLE_S = 60.0
"""How long a connection may stay without a request; agents need a moment between two."""
BODIES_LIMIT = 16 * 1024 * 1024
"""Bytes of all bodies that are being read at one moment; the next ones wait."""
READ_BUFFER = 4 * 1024
"""Bytes that a connection may bring before anybody asks for them."""
LINGER_S = 2.0
"""So long a body that nobody wants is thrown away, so that its sender gets to read why."""
SHUTDOWN_S = 2.0
SYNC_PATH = "/v1/sync"
HEALTH_PATH = "/healthz"
_SYNC_METHODS = ("POST",)
_METHODS = {SYNC_PATH: _SYNC_METHODS, HEALTH_PATH: ("GET", "HEAD")}


@dataclass(frozen=True)
class Answer:
    """Status and JSON body of a reply."""

    status: int
    body: Mapping[str, Any]
    retry_after_s: float | None = None
    """Not before then is it worth another try; sent as Retry-After in whole seconds."""


def refusal(status: int, sentence: str, retry_after_s: float | None = None) -> Answer:
    """An error reply: one sentence."""
    return Answer(status, {"error": sentence}, retry_after_s)


Known = Callable[[str | None], None]
"""Says that the caller has shown a good token: which pod's (UID), None where it is no pod's."""
Read = Callable[[], Awaitable[bytes]]
"""Reads the body."""
Serve = Callable[[str, Read, Known], Awaitable[Answer]]
"""(bearer token or "", read, known) -> the answer to a sync; may take as long as a long poll."""
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
        self._runner: web.ServerRunner | None = None
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
        # Two routes need no router, signals and middlewares, which cost as much as a report's own work.
        # handler_cancellation: a client that hung up must not keep its poll open.
        server = web.Server(
            self._routed,
            request_factory=_request,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=IDLE_S,
            lingering_time=LINGER_S,
            read_bufsize=READ_BUFFER,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_S)
        await self._runner.setup()
        self._gate = Gate(server, self._refused)
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
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _routed(self, request: web.BaseRequest) -> web.Response:
        methods = _METHODS.get(request.path)
        if methods is None:
            return _response(refusal(404, f"there is nothing but {SYNC_PATH} and {HEALTH_PATH}"))
        if request.method not in methods:
            return _response(refusal(405, f"{request.path} takes {methods[0]} alone"))
        return await self._sync(request) if methods is _SYNC_METHODS else _response(Answer(200, self._health()))

    async def _sync(self, request: web.BaseRequest) -> web.Response:
        try:
            answer = await self._serve(
                _bearer(request), lambda: self._read(request), lambda who: self._know(request, who)
            )
        except _Unreadable as error:
            answer = error.answer
        return _response(answer)

    async def _read(self, request: web.BaseRequest) -> bytes:
        """The body, as soon as there is room for it. Raises _Unreadable."""
        limit = contract.SYNC_BODY_LIMIT
        try:
            if request.content.is_eof():  # it came with its head, as nearly all do, and takes neither room nor time
                body = request.content.read_nowait()
                if len(body) > limit:
                    raise web.HTTPRequestEntityTooLarge(limit)
                return body
            size = min(request.content_length or limit, limit)
            async with asyncio.timeout(BODY_TIMEOUT_S):
                await self._room.take(size)
                try:
                    await _invite(request)
                    return await request.read()
                finally:
                    self._room.give(size)
        except web.HTTPRequestEntityTooLarge:
            self._refused("too large")
            text = f"the body is larger than {limit} bytes"
            raise _Unreadable(refusal(413, text)) from None
        except TimeoutError:
            self._refused("too slow")
            text = f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s"
            raise _Unreadable(refusal(408, text)) from None

    def _know(self, request: web.BaseRequest, who: str | None) -> None:
        if self._gate is not None:
            self._gate.know(request.protocol, who)


def _request(
    message: RawRequestMessage, payload: StreamReader, protocol: Any, writer: Any, task: Any
) -> web.BaseRequest:
    """A request whose body is bounded."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=contract.SYNC_BODY_LIMIT)


async def _invite(request: web.BaseRequest) -> None:
    """Its sender may wait to be told that the body is wanted."""
    if request.version >= HttpVersion11 and request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer has not begun


def _bearer(request: web.BaseRequest) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _response(answer: Answer) -> web.Response:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    if answer.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(answer.retry_after_s)))
    return web.Response(body=json.dumps(answer.body).encode(), status=answer.status, headers=headers)
