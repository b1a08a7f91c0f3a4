"""A proxy in front of an S3 server that spoils chosen requests: `Faults(endpoint)`, `spoil(3, "drop")`, then what is
under test.

Requests are counted from 1 in the order in which they arrive. What the proxy passes on is untouched, so that signatures
hold. Plain sockets: tests send thousands of requests through it.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

KINDS = (
    "drop",
    "cut",
    "reset",
    "delay",
    "throttle",
    "500",
    "503",
    "409",
    "flip up",
    "flip down",
    "expired",
    "403",
    "412",
    "skew",
    "forget",
)
"""The reply lost after success; half a reply; a connection reset before anything happened; a reply that comes too
late; one that trickles; refusals without effect; one bit of the contents changed on the way there, or back; three
refusals that are told; the object gone, before it is read or after it is written."""
PASSING = KINDS[:11]
"""What a single one of is got over without a word."""
BEFORE = ("500", "503", "409", "reset", "flip up", "expired")
"""Those that come before anything happened: one after the other, each at the try that follows, they count as one."""
CUT_BEHIND = "cut behind "
"""With a text: the reply up to the end of that, and no more; where its head has no such text, none of it."""
INSTEAD = "instead "
"""With a whole reply: somebody between here and the store says that, and the store hears of nothing."""
BEYOND = "beyond"
"""A range that begins behind the end is answered with nothing of it, where S3 refuses it: so does s3proxy in front of
Azure."""
NO_STORE = "no store"
"""Something in front of the store that has no way to it: 404, in words of its own."""
_REFUSALS = {
    "500": (500, "InternalError"),
    "503": (503, "SlowDown"),
    "403": (403, "AccessDenied"),
    "409": (409, "ConditionalRequestConflict"),
    "412": (412, "PreconditionFailed"),
    "expired": (400, "ExpiredToken"),
    "skew": (403, "RequestTimeTooSkewed"),
    "key": (403, "InvalidAccessKeyId"),
    "token": (403, "InvalidTokenId"),
    "moved": (301, "PermanentRedirect"),
}
_WORDS = b"404 page not found\n"
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n\r\n%s" % (
    len(_WORDS),
    _WORDS,
)
Plan = Callable[[int, str], str | None]
"""What happens to the request of that number, "GET /bucket/key?query"."""


class Request(NamedTuple):
    """As it came."""

    head: bytes
    body: bytes

    @property
    def words(self) -> str:
        """Method and path."""
        return self.head.split(b" HTTP/", 1)[0].decode()

    @property
    def headers(self) -> set[str]:
        """Their names, in lower case."""
        return {line.partition(b":")[0].decode().lower() for line in self.head.split(b"\r\n")[1:]}


class Faults:
    """Forwards to `endpoint` until `close`. `forget`: removes an object behind the server, by its path."""

    def __init__(self, endpoint: str, delay_s: float = 1.0, forget: Callable[[str], None] | None = None) -> None:
        self.target = urlsplit(endpoint).netloc
        self.delay_s = delay_s
        self.forget = forget
        self.requests: list[str] = []
        self.struck: list[str] = []
        """The faults, each with its request."""
        self.headers: set[str] = set()
        """Names of those that requests had, in lower case."""
        self._plan: Plan | None = None
        self._lock = threading.Lock()
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self) -> str:
        """Where the spoilt server is."""
        return f"http://127.0.0.1:{self._server.getsockname()[1]}"

    def spoil(self, number: int, *kinds: str) -> None:
        """The request of that number from now on, counted from 1; with several kinds the ones behind it too, which
        are its next tries.
        """
        self.follow(lambda at, _request: kinds[at - number] if number <= at < number + len(kinds) else None)

    def always(self, kind: str | None) -> None:
        """Every request from now on; None: no longer."""
        self.follow((lambda _at, _request: kind) if kind else None)

    def at_random(self, seed: int, share: float, kinds: tuple[str, ...]) -> None:
        """That share of all requests, until told otherwise."""
        chance = random.Random(seed)
        self.follow(lambda _at, _request: chance.choice(kinds) if chance.random() < share else None)

    def follow(self, plan: Plan | None) -> None:
        """Count anew."""
        with self._lock:
            self.requests, self.struck, self._plan = [], [], plan

    def take(self, request: str) -> str | None:
        """Count a request; what is to happen to it."""
        with self._lock:
            self.requests.append(request)
            fault = self._plan(len(self.requests), request) if self._plan else None
            if fault:
                self.struck.append(f"{fault}: {request}")
            return fault

    def forwarded(self, request: str) -> None:
        """The server has answered a request."""

    def close(self) -> None:
        """No more requests."""
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=_Connection(self, near).serve, daemon=True).start()


class _Connection:
    """One of a client, and the one to the server behind it."""

    def __init__(self, faults: Faults, near: socket.socket) -> None:
        self._faults, self._near, self._rest = faults, near, b""
        self._far: socket.socket | None = None

    def serve(self) -> None:
        """Until either side ends it."""
        with contextlib.suppress(OSError):
            while request := self._request():
                self._faults.headers |= request.headers
                if not self._answer(request, self._faults.take(request.words)):
                    break
        for one in (self._near, self._far):
            if one is not None:
                one.close()

    def _request(self) -> Request | None:
        head, self._rest = _head(self._near, self._rest)
        if not head:
            return None
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"expect:")]
        if len(lines) < head.count(b"\r\n") + 1:
            self._near.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        body, self._rest = _body(self._near, self._rest, _length(head))
        return Request(b"\r\n".join(lines), body)

    def _answer(self, request: Request, fault: str | None) -> bool:
        """False: the connection has ended."""
        if fault in _REFUSALS:
            self._near.sendall(_refusal(*_REFUSALS[fault], bodiless=request.words.startswith("HEAD")))
            return True
        if fault == NO_STORE:
            self._near.sendall(_NOT_FOUND[: None if not request.words.startswith("HEAD") else -len(_WORDS)])
            return True
        if fault is not None and fault.startswith(INSTEAD):
            head, blank, body = fault.removeprefix(INSTEAD).partition("\r\n\r\n")
            self._near.sendall((head + blank + ("" if request.words.startswith("HEAD") else body)).encode())
            return "connection: close" not in head.lower()
        if fault == "reset":
            self._near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        writing = request.words.startswith(("PUT", "POST"))
        if fault == "forget" and not writing:
            self._forget(request)
        head, body = self._forward(_flipped(request) if fault == "flip up" else request)
        self._faults.forwarded(request.words)
        if fault == "forget" and writing:
            self._forget(request)
        if fault == "drop":
            return False
        if fault == "delay":
            time.sleep(self._faults.delay_s)
        if fault == "throttle":
            return self._trickle(head, body)
        if fault == BEYOND and head.startswith(b"HTTP/1.1 416"):
            first = request.head.lower().partition(b"range: bytes=")[2].partition(b"-")[0]
            nothing = (
                b"HTTP/1.1 206 X",
                b'ETag: "x"',
                b"Content-Range: bytes %s--1/0" % first,
                b"Content-Length: 0",
                b"",
            )
            head, body = b"\r\n".join((*nothing, b"")), b""
        if fault == "flip down" and body:
            # XML carries no checksum: what is changed in it must at least not parse.
            at = len(body) - 1 if body.rstrip().endswith(b">") else len(body) // 2
            body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        if fault == "cut":
            self._near.sendall(head + body[: len(body) // 2] if body else head[: len(head) // 2])
            return False
        if fault is not None and fault.startswith(CUT_BEHIND):
            before, text, _ = head.lower().partition(fault.removeprefix(CUT_BEHIND).encode())
            self._near.sendall(head[: len(before + text)] if text else b"")
            return False
        self._near.sendall(head + body)
        return True

    def _forward(self, request: Request) -> tuple[bytes, bytes]:
        """(head with its blank line, body) of the server's reply."""
        if self._far is None:
            host, _, port = self._faults.target.partition(":")
            self._far = socket.create_connection((host, int(port)), timeout=30)
            self._far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._far.sendall(request.head + request.body)
        head, rest = _head(self._far, b"")
        bodiless = request.words.startswith("HEAD") or head.split(b" ", 2)[1] in (b"204", b"304")
        body, _ = _body(self._far, rest, 0 if bodiless else _length(head))
        return head, body

    def _trickle(self, head: bytes, body: bytes) -> bool:
        """Byte by byte for a while, then the rest."""
        self._near.sendall(head)
        until, at = time.monotonic() + self._faults.delay_s, 0
        while at < len(body) and time.monotonic() < until:
            self._near.sendall(body[at : at + 1])
            at += 1
            time.sleep(min(0.02, self._faults.delay_s / 20))
        self._near.sendall(body[at:])
        return True

    def _forget(self, request: Request) -> None:
        path = unquote(request.words.split(" ", 1)[1].partition("?")[0])
        if self._faults.forget is not None:
            self._faults.forget(path)


def _head(connection: socket.socket, rest: bytes) -> tuple[bytes, bytes]:
    """(head with its blank line, what came behind it); b"" at the end of the connection."""
    while b"\r\n\r\n" not in rest:
        more = connection.recv(65536)
        if not more:
            return b"", b""
        rest += more
    head, _, rest = rest.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n", rest


def _body(connection: socket.socket, rest: bytes, length: int) -> tuple[bytes, bytes]:
    """(body, what came behind it)."""
    body = bytearray(rest)
    while len(body) < length:
        more = connection.recv(1 << 20)
        if not more:
            raise ConnectionResetError
        body += more
    return bytes(body[:length]), bytes(body[length:])


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


def _flipped(request: Request) -> Request:
    at = len(request.body) // 2
    return (
        request._replace(body=request.body[:at] + bytes([request.body[at] ^ 1]) + request.body[at + 1 :])
        if request.body
        else request
    )


def _refusal(status: int, code: str, bodiless: bool) -> bytes:
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>a fault of the test</Message></Error>".encode()
    head = f"HTTP/1.1 {status} Refused\r\nContent-Type: application/xml\r\nContent-Length: {len(text)}\r\n\r\n".encode()
    return head if bodiless else head + text
