"""From the thread in which the watch runs to the main loop, and back: what was seen, what became of each request, and
the credentials, which live in the main loop.

Used by `host.py` alone, which runs the watch. Knows nothing of kopf: an API server's answers pass through here, and
those after which the watch cannot go on by itself are told.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from types import SimpleNamespace

import aiohttp

from trainjob_api import contract
from trainjob_operator.cluster import NodeSeen, Seen
from trainjob_operator.k8s.kubeapi import Connection

_LISTED = (f"/{contract.PLURAL}", "/pods", "/services")
"""How the paths of the lists end."""

REOPENED_S = 1.0
"""From one opening of a watch to its next at least: kopf opens one that has ended at once, and what stands between here
and the API server may end each of them at once.
"""

Connect = Callable[[], Awaitable[Connection]]
"""How to reach the API server, with credentials as they are now."""
OnCall = Callable[[str, str, int, float], None]
"""(method, path, HTTP status or 0, seconds)"""


@dataclass(frozen=True, kw_only=True)
class Ears:
    """Who is told what the watch sees."""

    tell: Callable[[Seen | NodeSeen], None]
    """A job, or a child of one, is so, or is gone; or what is to become of a node."""
    missed: Callable[[], None]
    """Objects were listed: what was deleted before this may never be told."""
    alive: Callable[[], None]
    """A watch was opened or brought something."""
    blind: Callable[[str | None], None]
    """Jobs cannot be seen now: why; None: they can."""
    on_call: OnCall


class Bridge:
    """What the thread tells the main loop, and asks of it. Public methods are called in the thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connect: Connect, ears: Ears) -> None:
        self.broke: asyncio.Future[str] = loop.create_future()
        """What ended kopf, told at once: its thread may go on for a while. Empty: it stopped as it was told."""
        self.ended: asyncio.Future[None] = loop.create_future()
        """The thread has nothing to say any more."""
        self.useless: asyncio.Future[int] = loop.create_future()
        """An answer that kopf does not go on after, as an HTTP status: the API server does not know TrainJobs any more
        (404), or not the rest of a list (410).
        """
        self._loop = loop
        self._connect = connect
        self._ears = ears
        self._lock = threading.Lock()
        self._seen: dict[str | tuple[str], Seen | NodeSeen] = {}
        """Jobs and their children by UID, nodes by a tuple of their name."""
        self._nodes: dict[str, NodeSeen] = {}
        """By name, as it was told last: of nodes that nothing happens to each is told once."""
        self._opened: dict[str, float] = {}
        """When the watch at a path was opened last."""
        self._closed = False

    def close(self) -> None:
        """Nothing that the thread says from now on is heard: a new watch lists all, and a pod that is gone since would
        be told after that. In the main loop.
        """
        self._closed = True

    def tell(self, seen: Seen) -> None:
        """Handed over in batches: a burst of events wakes the main loop once."""
        self._put(seen.manifest["metadata"]["uid"], seen)

    def tell_node(self, seen: NodeSeen) -> None:
        """The same of a node, if it is news: their heartbeats are many."""
        if self._nodes.get(seen.name) != seen:
            self._nodes[seen.name] = seen
            self._put((seen.name,), seen)

    def node_gone(self, name: str) -> None:
        """It is there no more."""
        self._nodes.pop(name, None)
        self._put((name,), NodeSeen(name, None))

    def _put(self, name: str | tuple[str], seen: Seen | NodeSeen) -> None:
        with self._lock:
            first = not self._seen
            self._seen[name] = seen
        if first:
            self._tell(self._hand_over)

    def gave_up(self, why: str) -> None:
        """Kopf goes on no more; the first word of it counts."""
        self._tell(functools.partial(self._gave_up, why))

    def over(self, why: str) -> None:
        """The last word of the thread."""
        self.gave_up(why)
        self._tell(self._over)

    async def session(self) -> tuple[str, aiohttp.ClientSession]:
        """A login: the API server and a session with it, on the operator's own credentials. Each request has the token
        as it is then, and is seen by the metrics.
        """
        connection = await self._connection()
        trace = aiohttp.TraceConfig(trace_config_ctx_factory=SimpleNamespace)
        trace.on_request_start.append(self._sent)
        trace.on_request_end.append(self._answered)
        trace.on_request_exception.append(self._failed)
        connector = aiohttp.TCPConnector(limit=0, ssl=connection.ssl_context)
        return connection.server, aiohttp.ClientSession(connector=connector, trace_configs=[trace])

    async def _sent(
        self, session: aiohttp.ClientSession, context: SimpleNamespace, request: aiohttp.TraceRequestStartParams
    ) -> None:
        if "watch" in request.url.query:
            await self._rest(request.url.path)
        context.begun = time.monotonic()
        authorization = (await self._connection()).authorization
        if authorization:
            request.headers["Authorization"] = authorization

    async def _rest(self, path: str) -> None:
        before = self._opened.get(path)
        if before is not None:
            await asyncio.sleep(max(0.0, before + REOPENED_S - time.monotonic()))
        self._opened[path] = time.monotonic()

    async def _answered(
        self, session: aiohttp.ClientSession, context: SimpleNamespace, request: aiohttp.TraceRequestEndParams
    ) -> None:
        self._called(context, request.method, request.url.raw_path_qs, request.response.status)
        if request.response.status == HTTPStatus.NOT_FOUND and request.url.path.endswith(f"/{contract.PLURAL}"):
            self._tell(functools.partial(self._lost, HTTPStatus.NOT_FOUND))
        query = request.url.query
        # Of the rest of a list, or of a watch; anything else that is gone is no list to be begun anew.
        if request.response.status == HTTPStatus.GONE and query.keys() & {"continue", "watch"}:
            self._tell(functools.partial(self._lost, HTTPStatus.GONE))
        if request.response.status == HTTPStatus.OK and request.method == "GET":
            if "watch" in query:
                self._tell(self._ears.alive)
            elif "continue" not in query and request.url.path.endswith(_LISTED):
                self._tell(self._ears.missed)

    async def _failed(
        self, session: aiohttp.ClientSession, context: SimpleNamespace, request: aiohttp.TraceRequestExceptionParams
    ) -> None:
        self._called(context, request.method, request.url.raw_path_qs, 0)

    def _called(self, context: SimpleNamespace, method: str, path: str, status: int) -> None:
        self._tell(functools.partial(self._ears.on_call, method, path, status, time.monotonic() - context.begun))

    async def _connection(self) -> Connection:
        """Asked of the main loop, where the credentials live."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_awaited(self._connect), self._loop))

    def _tell(self, call: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._hear, call)
        except RuntimeError:
            logging.getLogger(__name__).debug("the main loop is over")

    def _hear(self, call: Callable[[], object]) -> None:
        """In the main loop."""
        if not self._closed:
            call()

    def _gave_up(self, why: str) -> None:
        """In the main loop."""
        if not self.broke.done():
            self.broke.set_result(why)

    def _over(self) -> None:
        """In the main loop."""
        if not self.ended.done():
            self.ended.set_result(None)

    def _lost(self, status: int) -> None:
        """In the main loop."""
        if not self.useless.done():
            self.useless.set_result(status)

    def _hand_over(self) -> None:
        """In the main loop."""
        with self._lock:
            told, self._seen = self._seen, {}
        self._ears.alive()
        for seen in told.values():
            self._ears.tell(seen)


async def _awaited(connect: Connect) -> Connection:
    return await connect()
