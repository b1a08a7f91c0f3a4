"""A small endpoint that hands out credentials as AWS does: STS for web identity, the container's and the instance's
services; on loopback.

A test says what it gives (`gives`: access key, secret, seconds of life) and which web identity token it takes
(`takes`).
"""

from __future__ import annotations

import datetime
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

_ROLE = "/latest/meta-data/iam/security-credentials/"


class Identity:
    """Until `close`."""

    def __init__(self, *gives: tuple[str, str, float]) -> None:
        self.gives = list(gives)
        """One after the other, the last one from then on."""
        self.takes = ""
        """The web identity token that counts; empty: any."""
        self.asked: list[str] = []
        """Requests that were for credentials: the token, or the path."""
        identity = self

        class Handler(_Handler):
            owner = identity

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def endpoint(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def next(self, request: str) -> dict[str, str]:
        """The credentials for a request."""
        self.asked.append(request)
        access, secret, life_s = self.gives.pop(0) if len(self.gives) > 1 else self.gives[0]
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=life_s)
        return {
            "AccessKeyId": access,
            "SecretAccessKey": secret,
            "Token": "",
            "Expiration": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    def close(self) -> None:
        """No more requests."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    owner: Identity

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def do_PUT(self) -> None:
        self._say(200, b"session-token")

    def do_GET(self) -> None:
        if self.path == _ROLE:
            self._say(200, b"worker")
        else:
            self._say(200, json.dumps({"Code": "Success", "Type": "AWS-HMAC", **self.owner.next(self.path)}).encode())

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode())
        token = form["WebIdentityToken"][0]
        if self.owner.takes and token != self.owner.takes:
            self.owner.asked.append(f"refused {token}")
            self._say(
                400,
                _xml(
                    "Error",
                    "<Type>Sender</Type><Code>ExpiredTokenException</Code><Message>the token has expired</Message>",
                    "ErrorResponse",
                ),
            )
            return
        fields = self.owner.next(token)
        fields["SessionToken"] = fields.pop("Token")
        inner = "".join(f"<{name}>{value}</{name}>" for name, value in fields.items())
        self._say(
            200,
            _xml(
                "AssumeRoleWithWebIdentityResult",
                f"<Credentials>{inner}</Credentials>",
                "AssumeRoleWithWebIdentityResponse",
            ),
        )

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _xml(name: str, inner: str, outer: str) -> bytes:
    return f'<{outer} xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{name}>{inner}</{name}></{outer}>'.encode()
