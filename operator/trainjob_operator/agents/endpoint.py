"""The thin HTTP layer under the coordinator: bytes in, bytes out. health.py serves the probes; no other operator module
serves HTTP.

`POST /v1/sync` and `GET /healthz`. Bodies are bounded in size and time here, connections in `gate.py`; what they mean
is the coordinator's business.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from asyncio import sslproto
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from trainjob_api import contract
from trainjob_operator.agents.gate import Gate

BODY_TIMEOUT_S = 10.0
"""How long a client may take to send a body."""
IDLE_S = 60.0
"""How long a connection may stay without a request; agents need a moment between two."""
TLS_BUFFER = 16 * 1024
"""Bytes kept for each TLS connection: a record has no more. asyncio keeps 256 KiB, which thousands of waiting agents
would fill the memory with.
"""
SHUTDOWN_S = 2.0
SYNC_PATH = "/v1/sync"
HEALTH_PATH = "/healthz"


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


Known = Callable[[], None]
"""Says that the caller has shown a good token."""
Serve = Callable[[str, bytes, Known], Awaitable[Answer]]
"""(bearer token or "", body, known) -> the answer to a sync; may take as long as a long poll."""
Health = Callable[[], Mapping[str, Any]]


class Endpoint:
    """A listening socket and the two routes."""

    def __init__(self, serve: Serve, health: Health, refused: Callable[[str], None]) -> None:
        self._serve = serve
        self._health = health
        self._refused = refused
        self._runner: web.AppRunner | None = None
        self._gate: Gate | None = None

    @property
    def unknown(self) -> int:
        """Connections on which nobody has shown a good token yet."""
        return len(self._gate) if self._gate is not None else 0

    async def start(self, host: str, port: int, ssl_context: ssl.SSLContext | None = None) -> str:
        """Listen, with TLS if there is a context; the base URL (port 0: any free one). Raises OSError when the
        address is taken.
        """
        app = web.Application(client_max_size=contract.SYNC_BODY_LIMIT)
        app.router.add_post(SYNC_PATH, self._sync)
        app.router.add_get(HEALTH_PATH, self._healthy)
        # handler_cancellation: a client that hung up must not keep its poll open.
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S, keepalive_timeout=IDLE_S
        )
        await self._runner.setup()
        if ssl_context is not None:
            sslproto.SSLProtocol.max_size = min(sslproto.SSLProtocol.max_size, TLS_BUFFER)
        server = self._runner.server
        assert server is not None, "it was set up above"
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

    async def _sync(self, request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            self._refused("too large")
            return _response(refusal(413, f"the body is larger than {contract.SYNC_BODY_LIMIT} bytes"))
        except TimeoutError:
            self._refused("too slow")
            return _response(refusal(408, f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s"))
        return _response(await self._serve(_bearer(request), body, lambda: self._know(request)))

    def _know(self, request: web.Request) -> None:
        if self._gate is not None:
            self._gate.know(request.protocol)

    async def _healthy(self, request: web.Request) -> web.Response:
        return web.json_response(dict(self._health()))


def _bearer(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _response(answer: Answer) -> web.Response:
    headers = None if answer.retry_after_s is None else {"Retry-After": str(max(1, math.ceil(answer.retry_after_s)))}
    return web.json_response(dict(answer.body), status=answer.status, headers=headers)
