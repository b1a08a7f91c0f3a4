"""Files of staged checkpoints travel from one agent to another: the serving side on the loop, the fetching side in threads.

Called by `agent` (serve) and `gathering` (fetch). What arrives is checked: the size against the release note, and a checksum taken on the way. A
transfer that breaks off goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import weakref
import zlib
from typing import BinaryIO, FrozenSet, Iterator, MutableMapping, NamedTuple, Optional, Set, Tuple

from trainjob.agent import peer_protocol
from trainjob.agent.frames import FrameConnection
from trainjob.agent.saving import Saving
from trainjob_api import wire

CHUNK = 1024 * 1024
SOCKET_TIMEOUT_S = 30.0
TRIES = 3
"""In a row, without a byte between them."""
PAUSE_S = 0.5


class FetchError(Exception):
    """The file did not come, or not whole. It may come at another try."""


class NotThere(Exception):
    """The peer no longer has the file as the release note knows it."""


class _Broken(Exception):
    """The transfer stopped; the next try goes on from there."""


class _Corrupt(Exception):
    """What came is not what was sent."""


class FileServer:
    """What this agent serves. What lies here of a checkpoint is looked up once for all of its files that are asked for together."""

    def __init__(self, saving: Saving) -> None:
        self._saving = saving
        self._held: MutableMapping[FrameConnection, Tuple[str, str, FrozenSet[str]]] = weakref.WeakKeyDictionary()

    async def give(self, connection: FrameConnection, message: wire.Message) -> None:
        """Answer a GET."""
        id_, path, offset = str(message["id"]), str(message["path"]), int(message.get("offset") or 0)
        held = self._held.get(connection)
        if held is None or held[0] != id_:
            _, folder, paths = await self._saving.path_of(id_)
            held = self._held[connection] = (id_, folder, frozenset(paths))
        if path in held[2]:
            await serve(connection, os.path.join(held[1], path), offset)
        else:
            connection.send({"op": peer_protocol.REFUSED, "message": "it does not lie here"})


async def serve(connection: FrameConnection, path: str, offset: int = 0) -> None:
    """Send one file from there to its end; if it cannot be read, say so."""
    loop = asyncio.get_running_loop()
    try:
        with open(path, "rb") as file:  # noqa: ASYNC230 - opened once, read in a thread
            connection.send({"op": peer_protocol.FILE, "size": os.fstat(file.fileno()).st_size})
            file.seek(offset)
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


class Peer(NamedTuple):
    """Whom to ask, and what to show."""

    address: str
    secret: str
    attempt: int


class Stop:
    """Ends what fetches: a switch, and the sockets on which threads wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set = threading.Event()
        self._socks: Set[socket.socket] = set()

    def set(self) -> None:
        """Nobody wants the files any more."""
        with self._lock:
            self._set.set()
            for sock in self._socks:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # the peer closed it first

    def wait(self, timeout_s: float) -> bool:
        """Sleep, but no longer than until it is set; whether it is."""
        return self._set.wait(timeout_s)

    def opened(self, sock: socket.socket) -> None:
        """A thread will wait on this one."""
        with self._lock:
            self._socks.add(sock)
        if self._set.is_set():
            self.set()

    def closed(self, sock: socket.socket) -> None:
        """It does no more."""
        with self._lock:
            self._socks.discard(sock)


class Fetcher:
    """Blocking; one connection to one peer, made anew when it breaks. Use as a context manager, in a worker thread."""

    def __init__(self, peer: Peer, stop: Stop) -> None:
        self._peer = peer
        self._stop = stop
        self._sock: Optional[socket.socket] = None

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    def fetch(self, checkpoint: str, path: str, size: int, target: str) -> int:
        """Write the peer's file to `target`; its crc32. Raises FetchError, NotThere."""
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if os.path.lexists(target):
                os.unlink(target)  # of a link not what it leads to
            with open(target, "xb") as file:
                return self._fetch(checkpoint, path, size, file)
        except OSError as error:
            raise FetchError(f"{target}: {error.strerror or error}") from error

    def _fetch(self, checkpoint: str, path: str, size: int, file: BinaryIO) -> int:
        got, checksum, idle = 0, 0, 0
        while True:
            before = got
            try:
                for chunk in self._ask(checkpoint, path, size, got):
                    file.write(chunk)
                    got, checksum = got + len(chunk), zlib.crc32(chunk, checksum)
                if got == size:
                    return checksum
                raise _Broken(f"{got} of {size} bytes came")
            except _Corrupt as error:
                # Somewhere in what came: all of it again.
                got, checksum = 0, 0
                file.seek(0)
                file.truncate()
                trouble: Exception = error
            except _Broken as error:
                trouble = error
            self._drop()
            idle = 0 if got > before else idle + 1
            if idle >= TRIES or self._stop.wait(PAUSE_S if idle else 0):
                raise FetchError(f"{path} of checkpoint {checkpoint} from {self._peer.address}: {trouble}") from trouble

    def _ask(self, checkpoint: str, path: str, size: int, offset: int) -> Iterator[bytes]:
        """The file's bytes from there on. Raises _Broken, _Corrupt, NotThere."""
        first = self._exchange({"op": peer_protocol.GET, "id": checkpoint, "path": path, "offset": offset})
        if first.get("op") != peer_protocol.FILE or first.get("size") != size:
            found = first.get("message") or f"{first.get('size')} bytes"
            raise NotThere(f"{path} of checkpoint {checkpoint} at the agent {self._peer.address}: {found}, expected {size} bytes")
        checksum = 0
        while True:
            message, chunk = self._receive()
            if message.get("op") == peer_protocol.END:
                if message.get("crc") != checksum:
                    raise _Corrupt(f"it came damaged: checksum {checksum:08x}, expected {message.get('crc'):08x}")
                return
            if message.get("op") != peer_protocol.DATA:
                raise NotThere(f"{path} from {self._peer.address}: {message.get('message')}")
            checksum = zlib.crc32(chunk, checksum)
            yield chunk

    def _exchange(self, request: wire.Message) -> wire.Message:
        try:
            if self._sock is None:
                self._sock = socket.create_connection(peer_protocol.split_address(self._peer.address), SOCKET_TIMEOUT_S)
                self._stop.opened(self._sock)
                wire.send(self._sock, peer_protocol.hello(self._peer.secret, peer_protocol.FILES, self._peer.attempt, 0))
                wire.receive(self._sock)
            wire.send(self._sock, request)
        except OSError as error:
            raise _Broken(f"its agent does not answer: {error}") from error
        return self._receive()[0]

    def _receive(self) -> wire.Frame:
        assert self._sock is not None
        try:
            return wire.receive(self._sock)
        except OSError as error:
            raise _Broken(str(error)) from error

    def _drop(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            self._stop.closed(sock)
            sock.close()
