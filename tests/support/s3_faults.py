"""A proxy in front of an S3 server that spoils chosen requests: `Faults(endpoint)`, `spoil(3, "drop")`, then what is under test.

Requests are counted from 1 in the order in which they arrive. A fault strikes once. What the proxy passes on is untouched, so that signatures hold.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

KINDS = ("drop", "500", "503", "cut", "reset", "delay")
"""The reply lost after success; two refusals without effect; half a reply; a connection reset before anything happened; a reply that comes too late."""
_REFUSALS = {
    "500": (500, "InternalError"),
    "503": (503, "SlowDown"),
    "403": (403, "AccessDenied"),
    "expired": (400, "ExpiredToken"),
    "skew": (403, "RequestTimeTooSkewed"),
}


class Faults:
    """Forwards to `endpoint` until `close`."""

    def __init__(self, endpoint: str, delay_s: float = 1.0) -> None:
        self.target = urlsplit(endpoint).netloc
        self.delay_s = delay_s
        self.requests: list[str] = []
        self._planned: dict[int, str] = {}
        self._always: str | None = None
        self.struck = 0
        self._lock = threading.Lock()
        faults = self

        class Handler(_Handler):
            proxy = faults

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def endpoint(self) -> str:
        """Where the spoilt server is."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def spoil(self, number: int, kind: str) -> None:
        """The request of that number from now on, counted from 1."""
        with self._lock:
            self.requests.clear()
            self.struck = 0
            self._planned = {number: kind}

    def always(self, kind: str | None) -> None:
        """Every request from now on; None: no longer."""
        with self._lock:
            self._planned, self._always = {}, kind

    def take(self, request: str) -> str | None:
        """Count a request; what is to happen to it."""
        with self._lock:
            self.requests.append(request)
            fault = self._planned.pop(len(self.requests), self._always)
            self.struck += fault is not None
            return fault

    def close(self) -> None:
        """No more requests."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Faults

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # clients that give up are what this is for
            super().handle()

    def do_ANY(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.proxy.take(f"{self.command} {self.path}")
        if fault in _REFUSALS:
            self._refuse(*_REFUSALS[fault])
        elif fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._hang_up()
        else:
            self._forward(body, fault)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_ANY

    def _forward(self, body: bytes, fault: str | None) -> None:
        far = http.client.HTTPConnection(self.proxy.target, timeout=30)
        try:
            far.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("expect", "connection"):
                    far.putheader(name, value)
            far.endheaders(body or None)
            reply = far.getresponse()
            content = reply.read()
        finally:
            far.close()
        if fault == "drop":
            self._hang_up()
            return
        if fault == "delay":
            time.sleep(self.proxy.delay_s)
        if fault == "flip" and content:
            content = content[:-1] + bytes([content[-1] ^ 1])
        self._answer(reply, content, cut=fault == "cut")

    def _answer(self, reply: http.client.HTTPResponse, content: bytes, cut: bool) -> None:
        self.send_response_only(reply.status, reply.reason)
        for name, value in reply.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        length = reply.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        if reply.status != 204:
            self.send_header("Content-Length", length or "0")
        if cut and not content:
            self._hang_up()
            return
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if cut else content)
        self.wfile.flush()
        if cut:
            self._hang_up()

    def _refuse(self, status: int, code: str) -> None:
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>a fault of the test</Message></Error>".encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else text)

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()
