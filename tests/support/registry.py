"""A container registry in memory, as far as pushing needs it (OCI distribution: blobs by upload, manifests by tag)."""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class Registry(ThreadingHTTPServer):
    """Listens on loopback, where docker speaks plain HTTP."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.uploads: dict[str, bytearray] = {}
        self.blobs: dict[str, int] = {}
        """Digest -> size."""
        self.manifests: dict[str, bytes] = {}
        """"name:tag" -> the manifest."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


@contextmanager
def registry() -> Iterator[Registry]:
    """A registry that is served while the block runs."""
    with Registry() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Registry
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(200 if self.path == "/v2/" else 404)

    def do_HEAD(self) -> None:
        size = self.server.blobs.get(self.path.rsplit("/", 1)[-1])
        if "/blobs/" in self.path and size is not None:
            self._answer(200, {"Content-Length": str(size)})
        else:
            self._answer(404)

    def do_POST(self) -> None:
        self._body()
        upload = uuid.uuid4().hex
        self.server.uploads[upload] = bytearray()
        self._answer(202, {"Location": f"{urlsplit(self.path).path}{upload}", "Docker-Upload-UUID": upload})

    def do_PATCH(self) -> None:
        path = urlsplit(self.path).path
        content = self.server.uploads[path.rsplit("/", 1)[-1]]
        content += self._body()
        self._answer(202, {"Location": path, "Range": f"0-{len(content) - 1}"})

    def do_PUT(self) -> None:
        parts = urlsplit(self.path)
        body = self._body()
        if "/manifests/" in parts.path:
            name, tag = parts.path.removeprefix("/v2/").split("/manifests/")
            self.server.manifests[f"{name}:{tag}"] = body
            digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        else:
            content = bytes(self.server.uploads.pop(parts.path.rsplit("/", 1)[-1]) + body)
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            if parse_qs(parts.query)["digest"] != [digest]:
                self._answer(400)
                return
            self.server.blobs[digest] = len(content)
        self._answer(201, {"Docker-Content-Digest": digest, "Location": parts.path})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _answer(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": "0", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""
