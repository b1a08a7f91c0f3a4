"""Many small requests at once: one thread, connections that nobody waits for, one try each.

Run by `bodies.Direct`. A thread a request costs five times the processor time, most of it for the interpreter's lock.
Whatever goes wrong with an errand, it is left undone and nothing is said of it, and after many failures all others are
too: the caller has the patient way for them (`Requests.move`), which knows tries, deadlines and sentences.
"""

from __future__ import annotations

import asyncio
import collections
import ssl
import threading
import time
from typing import Callable, Deque, Generic, List, NamedTuple, Optional, Protocol, Sequence, Set, Tuple, TypeVar

from trainjob.checkpoint.stores.s3.settings import stands_still

AT_ONCE = 64
"""Connections, as far as there is work for them."""
LIMIT = 256 << 10
"""Bytes that a reply may carry: what each connection has memory for."""
HEAD_LIMIT = 16 << 10
TOLERATED = 16
"""Failures after which the rest is left undone, unless many more requests went well."""


class Errand(Protocol):
    """A small request. What its methods raise ends all errands and is raised by `run`."""

    def request(self) -> bytes:
        """Head and contents, as they are sent. Called when its turn has come; empty: it cannot be done this way."""
        ...

    def take(self, contents: memoryview) -> bool:
        """What came with a reply that says yes, valid during the call; whether that is what was wanted."""
        ...


E = TypeVar("E", bound=Errand)
T = TypeVar("T")


class Origin(NamedTuple):
    """Where requests go."""

    host: str
    port: int
    tls: Optional[ssl.SSLContext]
    connect_s: float
    timeout_s: float
    """How long a request may stand still."""


def run(origin: Origin, errands: Sequence[E]) -> List[E]:
    """Those that were done, in the order in which they were."""
    done: List[E] = []
    failed: List[BaseException] = []

    def work() -> None:
        try:
            done.extend(asyncio.run(_all(origin, errands)))
        except BaseException as error:  # carried to the caller's thread, whatever it is
            failed.append(error)

    thread = threading.Thread(
        target=work, name="errands", daemon=True
    )  # the caller's own may have a loop that runs: a notebook's has
    thread.start()
    thread.join()
    if failed:
        raise failed.pop()
    return done


async def _all(origin: Origin, errands: Sequence[E]) -> List[E]:
    return await _Run(origin, errands).run()


class _Run(Generic[E]):
    def __init__(self, origin: Origin, errands: Sequence[E]) -> None:
        self.origin = origin
        self.done: List[E] = []
        self._waiting: Deque[E] = collections.deque(errands)
        self._failures = 0
        self._lines: Set[_Line[E]] = set()
        self._opening: Set[asyncio.Task[None]] = set()
        """Those that are not connected yet."""
        self._error: Optional[BaseException] = None
        self._over = asyncio.Event()

    async def run(self) -> List[E]:
        for _ in range(min(AT_ONCE, len(self._waiting))):
            self._open()
        self._perhaps_over()
        watch = asyncio.ensure_future(self._watch())
        await self._over.wait()
        for task in (watch, *self._opening):
            task.cancel()
        for line in list(self._lines):
            line.close()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback names this frame: together they would keep all that the callers hold
        return self.done

    def next(self, line: _Line[E]) -> Optional[Tuple[E, bytes]]:
        """Work for a connection that has none, and its request."""
        while self._waiting and not self._over.is_set():
            errand = self._waiting.popleft()
            request = self.guarded(errand.request)
            if request:
                return errand, request
        self.lost(line, None)
        return None

    def guarded(self, work: Callable[[], T]) -> Optional[T]:
        """What `work` returns; None once it has raised, which ends everything."""
        try:
            return work()
        except BaseException as error:  # carried to the caller, whatever it is: asyncio would only log it
            self._error = self._error or error
            self._over.set()
            return None

    def failed(self) -> None:
        """An errand is left undone."""
        self._failures += 1
        if self._failures > TOLERATED + len(self.done) // 8:
            self._waiting.clear()

    def lost(self, line: _Line[E], errand: Optional[E]) -> None:
        """A connection is at its end, with that errand under way."""
        if line not in self._lines:
            return
        self._lines.discard(line)
        line.close()
        if errand is not None:
            self.failed()
        if len(self._waiting) > len(self._opening) and not self._over.is_set():
            self._open()
        self._perhaps_over()

    def _open(self) -> None:
        task = asyncio.ensure_future(self._connect())
        self._opening.add(task)
        task.add_done_callback(self._opened)

    async def _connect(self) -> None:
        loop, to = asyncio.get_running_loop(), self.origin
        name = to.host if to.tls is not None else None
        task = asyncio.current_task()
        assert task is not None
        opening = loop.create_connection(lambda: _Line(self, task), to.host, to.port, ssl=to.tls, server_hostname=name)
        # A cancellation that it forgets is harmless here: this task ends in either case.
        await asyncio.wait_for(opening, to.connect_s)  # noqa: TID251

    def _opened(self, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.failed()
            if self._waiting and not self._lines:
                self._open()
        self._perhaps_over()

    def begun(self, line: _Line[E], opened_by: asyncio.Task[None]) -> None:
        """It is connected. The task that opened it is told so later: the line may be lost by then."""
        self._opening.discard(opened_by)
        self._lines.add(line)

    def _perhaps_over(self) -> None:
        if not self._lines and not self._opening:
            self._over.set()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self.origin.timeout_s / 4))
            now = time.monotonic()
            for line in list(self._lines):
                line.look(now)


class _Line(asyncio.BufferedProtocol, Generic[E]):
    """A connection, with one request under way at a time."""

    def __init__(self, run: _Run[E], opened_by: asyncio.Task[None]) -> None:
        self._run, self._opened_by = run, opened_by
        self._buffer = bytearray(HEAD_LIMIT + LIMIT)
        self._view = memoryview(self._buffer)
        self._transport: Optional[asyncio.Transport] = None
        self._errand: Optional[E] = None
        self._sent, self._since = 0, 0.0
        self._filled = 0
        self._head: Optional[_Head] = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio calls it."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._run.begun(self, self._opened_by)
        self._next()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where asyncio puts what arrives: never nothing, as a reply that would fill it all is at its end, or given
        up.
        """
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio calls it."""
        self._filled += nbytes
        if self._head is None:
            self._head = _parse(self._buffer, self._filled)
        head = self._head
        if head is None:
            if self._filled > HEAD_LIMIT:
                self._give_up()
        elif not head.usable or self._filled > head.size + head.length:
            self._give_up()
        elif self._filled == head.size + head.length:
            self._finish(head)

    def eof_received(self) -> None:
        """asyncio closes it then."""

    def connection_lost(self, exc: Optional[Exception]) -> None:
        """asyncio calls it."""
        self._give_up()

    def look(self, now: float) -> None:
        """Cut what stands still, or trickles."""
        if stands_still(now - self._since, self._sent + self._filled, self._run.origin.timeout_s):
            self._give_up()

    def close(self) -> None:
        """At once."""
        self._errand = None
        if self._transport is not None:
            self._transport.abort()

    def _finish(self, head: _Head) -> None:
        errand, self._errand = self._errand, None
        if errand is None:
            self._give_up()  # it speaks without being asked
            return
        contents = self._view[head.size : head.size + head.length]
        if self._run.guarded(lambda: errand.take(contents)):
            self._run.done.append(errand)
        else:
            self._run.failed()
        if head.closes:
            self._run.lost(self, None)
        else:
            self._next()

    def _next(self) -> None:
        self._filled, self._head = 0, None
        given = self._run.next(self)
        if given is not None and self._transport is not None:
            self._errand, request = given
            self._sent, self._since = len(request), time.monotonic()
            self._transport.write(request)

    def _give_up(self) -> None:
        self._run.lost(self, self._errand)


class _Head(NamedTuple):
    """Of a reply."""

    size: int
    length: int
    """Of what follows."""
    usable: bool
    """A plain yes, with contents of a length that is known and not too much."""
    closes: bool


def _parse(buffer: bytearray, filled: int) -> Optional[_Head]:
    """None: it has not come whole."""
    end = buffer.find(b"\r\n\r\n", 0, min(filled, HEAD_LIMIT))
    if end < 0:
        return None
    first, *lines = bytes(memoryview(buffer)[:end]).lower().split(b"\r\n")
    fields = {name: value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    said = fields.get(b"content-length", b"")
    length = int(said) if said.isdigit() else -1
    # A store names the version of what it stored or has: a yes without that is somebody else's.
    plain = first.startswith(b"http/1.1 200") and b"transfer-encoding" not in fields and bool(fields.get(b"etag"))
    return _Head(end + 4, length, plain and 0 <= length <= LIMIT, fields.get(b"connection") == b"close")
