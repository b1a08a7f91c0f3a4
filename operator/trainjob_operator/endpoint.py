"""The thin HTTP layer under the coordinator: bytes in, bytes out. The one operator module that imports aiohttp.

`POST /v1/sync` and `GET /healthz`. Bodies are bounded in size and time here; what they mean is the coordinator's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from trainjob_api import contract

BODY_TIMEOUT_S = 10.0
"""How long a client may take to send a body."""
SHUTDOWN_S = 2.0
SYNC_PATH = "/v1/sync"
HEALTH_PATH = "/healthz"


@dataclass(frozen=True)
class Answer:
    """Status and JSON body of a reply."""

    status: int
    body: Mapping[str, Any]


def refusal(status: int, sentence: str) -> Answer:
    """An error reply: one sentence."""
    return Answer(status, {"error": sentence})


Serve = Callable[[str, bytes], Awaitable[Answer]]
"""(bearer token or "", body) -> the answer to a sync; may take as long as a long poll."""
Health = Callable[[], Mapping[str, Any]]


class Endpoint:
    """A listening socket and the two routes."""

    def __init__(self, serve: Serve, health: Health, refused: Callable[[str], None]) -> None:
        self._serve = serve
        self._health = health
        self._refused = refused
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> str:
        """Listen; the base URL (port 0: any free one). Raises OSError when the address is taken."""
        app = web.Application(client_max_size=contract.SYNC_BODY_LIMIT)
        app.router.add_post(SYNC_PATH, self._sync)
        app.router.add_get(HEALTH_PATH, self._healthy)
        # handler_cancellation: a client that hung up must not keep its poll open.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        try:
            await site.start()
        except OSError:
            await self.stop()
            raise
        bound = self._runner.addresses[0]
        address = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        return f"http://{address}:{bound[1]}"

    async def stop(self) -> None:
        """Close the socket and the connections; open requests get SHUTDOWN_S to end."""
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
        return _response(await self._serve(_bearer(request), body))

    async def _healthy(self, request: web.Request) -> web.Response:
        return web.json_response(dict(self._health()))


def _bearer(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _response(answer: Answer) -> web.Response:
    return web.json_response(dict(answer.body), status=answer.status)
