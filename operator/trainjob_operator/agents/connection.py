"""One client's connection: requests in, answers out, one after the other. Made by `endpoint.py` for each one that
`gate.py` lets in.

Thousands are open, and nearly all of them wait: for the answer to a request that the coordinator holds, or for the next
request. So a connection that waits is this object and nothing else: no task, no head of a request, no bytes. How long a
connection may be without a good token is the gate's business, what is answered the coordinator's.

Who sends no more may still read: its requests are answered, one that is held at once, since whoever is gone looks the
same from here. TLS has no such state: there the connection is over.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import cast

from trainjob_operator.agents.answers import Answer, Held, as_http, fault, refusal
from trainjob_operator.agents.request_head import END, HEAD_LIMIT, BadHead, Head, parse_head

_log = logging.getLogger(__name__)

IDLE_S = 60.0
"""How long a connection may stay without a whole head of a request; agents need a moment between two."""
LINGER_S = 2.0
"""So long a body that nobody wants is thrown away, so that its sender gets to read why."""
READ_BUFFER = 4 * 1024
"""Bytes beyond the request's head that a connection may bring before anybody asks for them. Behind a request that is
held no more may come: to read on is the only way to see that a client is gone.
"""


class HungUp(Exception):
    """The client is gone, and with it the rest of its body."""


class Connection(asyncio.Protocol):
    """Of one client. `serve` is asked once for each request."""

    __slots__ = (
        "_answering",
        "_body",
        "_choked",
        "_closing",
        "_ended",
        "_gone",
        "_head",
        "_held",
        "_made",
        "_paused",
        "_received",
        "_serve",
        "_skip",
        "_timer",
        "_transport",
        "task",
    )

    def __init__(
        self,
        serve: Callable[[Connection, Head], Awaitable[Answer | Held]],
        made: Callable[[Connection], None],
        gone: Callable[[Connection], None],
    ) -> None:
        self._serve = serve
        self._made = made
        self._gone = gone
        self._transport: asyncio.Transport | None = None
        self._received: bytes | bytearray = b""
        """What has come and was not looked at yet."""
        self._head: Head | None = None
        """Of the request that is under way, until its body was read or it is held."""
        self._answering = False
        """A request is under way."""
        self.task: asyncio.Task[None] | None = None
        """Answers the request that is under way, unless that is held."""
        self._held: Held | None = None
        self._body: asyncio.Future[None] | None = None
        """Somebody waits for it."""
        self._skip = 0.0
        """Bytes that nobody wants, still to come: the rest of a body, or all that comes."""
        self._timer: asyncio.TimerHandle | None = None
        """Ends the connection."""
        self._paused = False
        self._choked = False
        """The client does not read its answers."""
        self._closing = False
        """After the answer to the request that is under way."""
        self._ended = False
        """The client sends no more."""

    # --- For who serves -----------------------------------------------------------------------------------------------

    @property
    def body_is_here(self) -> bool:
        """The body came with its head, as nearly all do."""
        return self._head is not None and len(self._received) >= self._head.length

    async def read(self) -> bytes:
        """The request's body, once. Raises HungUp."""
        head = self._head
        if head is None or self._transport is None:
            raise HungUp
        if not self.body_is_here:
            if head.asks_first:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._body = asyncio.get_running_loop().create_future()
            self._read_no_more_than_asked()
            try:
                await self._body
            finally:
                self._body = None
        self._head = None
        body = bytes(self._received[: head.length])
        self._received = bytes(self._received[head.length :])
        self._read_no_more_than_asked()
        return body

    def close(self) -> None:
        """At once if no request is under way, else after its answer."""
        self._closing = True
        if not self._answering and not self._skip:
            self._end()

    def abort(self) -> None:
        """Now."""
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio calls these ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._made(self)
        self._be_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._stop_timer()
        if self._body is not None and not self._body.done():
            self._body.set_exception(HungUp())
        elif self.task is not None:
            self.task.cancel()
        if self._held is not None:
            self._held.hang_up()
            self._held = None
        self._gone(self)

    def data_received(self, data: bytes) -> None:
        if self._skip:
            if self._skip > len(data):
                self._skip -= len(data)
                return
            self._received, self._skip = data[int(self._skip) :], 0.0
            self._be_idle()
        else:
            self._take(data)
            if not self._answering:
                self._begin()
            elif self._body is not None and self.body_is_here and not self._body.done():
                self._body.set_result(None)
        self._bound_what_is_behind()
        self._read_no_more_than_asked()

    def eof_received(self) -> bool:
        """Whether the connection stays, to be written to."""
        if self._transport is None or self._transport.get_extra_info("ssl_object") is not None:
            return False
        in_its_body = self._head is not None and not self.body_is_here
        if in_its_body or not (self._answering or (self._choked and self._received)):
            return False
        self._ended = True
        if self._held is not None:
            self._held.answer()
        return True

    def pause_writing(self) -> None:
        self._choked = True

    def resume_writing(self) -> None:
        self._choked = False
        if not self._answering and not self._skip:
            self._begin_or_end()
            self._read_no_more_than_asked()

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        """Put behind what is there. A body that comes in a thousand pieces is not copied a thousand times."""
        if not self._received:
            self._received = data
        elif isinstance(self._received, bytearray):
            self._received.extend(data)
        else:
            self._received = bytearray(self._received + data)

    def _be_idle(self) -> None:
        """Between two requests."""
        if self._closing:
            self._end()
            return
        self._abort_in(IDLE_S)
        self._begin_or_end()
        self._read_no_more_than_asked()

    def _begin_or_end(self) -> None:
        self._begin()
        if self._ended and not self._answering and not self._choked:
            self._end()

    def _begin(self) -> None:
        """The next request, once its head is whole and the client reads its answers."""
        if not self._received or self._choked or self._closing or self._transport is None:
            return
        text, whole, rest = self._received.partition(END)
        if len(text) > HEAD_LIMIT + (0 if whole else len(END) - 1):  # the begin of the end may be there
            self._refuse(BadHead(431, f"the head of the request is longer than {HEAD_LIMIT} bytes"))
        elif whole:
            try:
                head = parse_head(bytes(text))
            except BadHead as error:
                self._refuse(error)
                return
            self._stop_timer()
            self._head, self._answering, self._received = head, True, bytes(rest)
            self.task = asyncio.get_running_loop().create_task(self._answer(head))

    def _refuse(self, error: BadHead) -> None:
        """What follows cannot be told from a body: the connection ends."""
        self._received = b""
        self._write(refusal(error.status, str(error)), keeps=False, rest=math.inf)

    async def _answer(self, head: Head) -> None:
        try:
            answer = await self._serve(self, head)
        except HungUp:
            return
        except Exception:
            _log.exception("a request to the coordinator could not be answered")
            answer = fault()
        finally:
            self.task = None
        if isinstance(answer, Answer):
            self._send(answer, head.keeps, head.method != "HEAD")
        elif self._transport is None:
            answer.hang_up()
        else:
            self._held = answer
            answer.then(self._send if head.keeps else self._send_last)
            if self._ended:
                answer.answer()
            self._bound_what_is_behind()

    def _send_last(self, answer: Answer) -> None:
        self._send(answer, keeps=False)

    def _send(self, answer: Answer, keeps: bool = True, with_body: bool = True) -> None:
        """The answer to the request that is under way."""
        unread, self._head, self._held, self._answering = self._head, None, None, False
        rest = 0.0
        if unread is not None:  # nobody wanted its body, and whether one comes that has to be asked for is not known
            rest = math.inf if unread.asks_first else max(0, unread.length - len(self._received))
            self._received = bytes(self._received[unread.length :])
        self._write(answer, keeps and rest < math.inf and not self._closing, rest, with_body)

    def _bound_what_is_behind(self) -> None:
        """Whose request is held sends no more than a little."""
        if self._held is not None and len(self._received) > READ_BUFFER:
            self._held.hang_up()
            self._held, self._answering, self._received = None, False, b""
            text = f"more than {READ_BUFFER} bytes were sent behind a request that waits for its answer"
            self._write(refusal(413, text), keeps=False, rest=math.inf)

    def _write(self, answer: Answer, keeps: bool, rest: float, with_body: bool = True) -> None:
        """With so many bytes still to come that nobody wants."""
        if self._transport is None or self._transport.is_closing():
            return
        rest = 0.0 if self._ended else rest
        self._transport.write(as_http(answer, keeps, with_body))
        self._closing = not keeps
        self._skip = rest
        if rest:
            self._read_no_more_than_asked()
            self._abort_in(LINGER_S)
        else:
            self._be_idle()

    def _end(self) -> None:
        """Close, once what was written has gone out; a client that does not read is not waited for."""
        if self._transport is not None:
            self._transport.close()
            self._abort_in(LINGER_S)

    def _read_no_more_than_asked(self) -> None:
        """Nothing is read that nobody asked for, but for a little."""
        if self._transport is None or self._ended:
            return
        full = len(self._received) > self._asked + READ_BUFFER
        if full and not self._paused:
            self._transport.pause_reading()
        elif self._paused and not full:
            self._transport.resume_reading()
        self._paused = full

    @property
    def _asked(self) -> float:
        """Bytes."""
        if self._skip:
            return math.inf
        if not self._answering:
            return HEAD_LIMIT
        return self._head.length if self._head is not None and self._body is not None else 0

    def _abort_in(self, seconds: float) -> None:
        self._stop_timer()
        if self._transport is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
