"""Files of staged checkpoints travel from one agent to another: the serving side on the loop, the fetching side in a thread.

Called by `agent` (serve) and `restore` (fetch). What arrives is checked: the size against the release note, and a checksum taken on the way.
"""

from __future__ import annotations

import asyncio
import os
import socket
import zlib
from typing import BinaryIO, Tuple

from trainjob.agent import peer_protocol
from trainjob.agent.frames import FrameConnection
from trainjob_api import wire

CHUNK = 1024 * 1024
SOCKET_TIMEOUT_S = 30.0


class FetchError(Exception):
    """The file did not come, or not whole. It may come at another try."""


class NotThere(Exception):
    """The peer no longer has the file as the release note knows it."""


async def serve(connection: FrameConnection, path: str) -> None:
    """Send one file; if it cannot be read, say so."""
    loop = asyncio.get_running_loop()
    try:
        with open(path, "rb") as file:  # noqa: ASYNC230 - opened once, read in a thread
            connection.send({"op": peer_protocol.FILE, "size": os.fstat(file.fileno()).st_size})
            checksum = 0
            while connection.open:
                chunk, checksum = await loop.run_in_executor(None, _read, file, checksum)
                if not chunk:
                    break
                connection.send({"op": peer_protocol.DATA}, chunk)
                await connection.drained()
        connection.send({"op": peer_protocol.END, "crc": checksum})
    except OSError as error:
        connection.send({"op": peer_protocol.REFUSED, "message": f"{path}: {error.strerror or error}"})


def _read(file: BinaryIO, checksum: int) -> Tuple[bytes, int]:
    chunk = file.read(CHUNK)
    return chunk, zlib.crc32(chunk, checksum)


class Fetcher:
    """Blocking; one connection to one peer. Use as a context manager, in a worker thread."""

    def __init__(self, address: str, secret: str, attempt: int) -> None:
        host, port = peer_protocol.split_address(address)
        self._address = address
        try:
            self._sock = socket.create_connection((host, port), SOCKET_TIMEOUT_S)
            wire.send(self._sock, peer_protocol.hello(secret, peer_protocol.FILES, attempt, 0))
            wire.receive(self._sock)
        except OSError as error:
            raise FetchError(f"the agent at {address} does not answer: {error}") from error

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def fetch(self, checkpoint: str, path: str, size: int, target: str) -> None:
        """Write the peer's file to `target`. Raises FetchError, NotThere."""
        try:
            wire.send(self._sock, {"op": peer_protocol.GET, "id": checkpoint, "path": path})
            first, _ = wire.receive(self._sock)
            if first.get("op") != peer_protocol.FILE or first.get("size") != size:
                found = first.get("message") or f"{first.get('size')} bytes"
                raise NotThere(f"{path} of checkpoint {checkpoint} at the agent {self._address}: {found}, expected {size} bytes")
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as file:
                self._receive(file, path, size)
        except OSError as error:
            raise FetchError(f"{path} of checkpoint {checkpoint} from {self._address}: {error}") from error

    def _receive(self, file: BinaryIO, path: str, size: int) -> None:
        checksum, got = 0, 0
        while True:
            message, chunk = wire.receive(self._sock)
            if message.get("op") == peer_protocol.END:
                if message.get("crc") != checksum or got != size:
                    raise FetchError(f"{path} from {self._address} came damaged: {got} of {size} bytes, checksum {checksum:08x}")
                return
            if message.get("op") != peer_protocol.DATA:
                raise FetchError(f"{path} from {self._address}: {message.get('message')}")
            file.write(chunk)
            checksum = zlib.crc32(chunk, checksum)
            got += len(chunk)
