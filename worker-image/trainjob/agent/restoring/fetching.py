"""Files of staged checkpoints that come from other agents, by blocking calls in threads.

Called by `gathering`. What arrives is checked: the size against the release note, and a checksum taken on the way. A
transfer that breaks off goes on where it stopped. The other end is `serving`.
"""

from __future__ import annotations

import os
import socket
import threading
from typing import Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from trainjob.agent.wire import handshake
from trainjob.agent.wire.addresses import split_address
from trainjob.agent.wire.for_files import FROM_FETCHER, FROM_SERVER, End, File, FromServer, Get, Refused
from trainjob.checkpoint.stores import digest
from trainjob_api import wire
from trainjob_api.typed import BadMessage

CHUNK = 1024 * 1024
STREAMS = 4
"""Connections to one peer at a time."""
PIECE = 16 << 20
"""Files are divided among connections in pieces not smaller than this."""
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


class Peer(NamedTuple):
    """Whom to ask, and what to show."""

    address: str
    secret: str
    attempt: int


class Piece(NamedTuple):
    """Bytes of a file of a checkpoint, and how large the whole file is."""

    path: str
    size: int
    start: int
    length: int


def pieces_of(path: str, size: int) -> List[Piece]:
    """A large file goes over several connections at once."""
    step = max(PIECE, -(-size // STREAMS))
    return [Piece(path, size, start, min(step, size - start)) for start in range(0, size, step)] or [
        Piece(path, 0, 0, 0)
    ]


def joined(sums: Sequence[Tuple[Piece, int]], algorithm: str) -> int:
    """The file's checksum from those of its pieces."""
    total = 0
    for piece, checksum in sorted(sums):
        total = digest.combine(algorithm, total, checksum, piece.length) if piece.start else checksum
    return total


def make_room(target: str) -> None:
    """An empty file, its folders made; of a link that was there not what it leads to. Raises FetchError."""
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.lexists(target):
            os.unlink(target)
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except OSError as error:
        raise FetchError(f"{target}: {error.strerror or error}") from error


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
        self._room = bytearray(CHUNK)

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    def fetch(self, checkpoint: str, piece: Piece, target: str, algorithm: Optional[str] = None) -> int:
        """Write a piece of the peer's file into `target` (see make_room); its checksum by `algorithm`. For who knows
        no checksum to compare it with (None) the peer takes one too, and they agree. Raises FetchError, NotThere."""
        try:
            file = os.open(target, os.O_WRONLY)
            try:
                return self._fetch(checkpoint, piece, file, algorithm)
            finally:
                os.close(file)
        except OSError as error:
            raise FetchError(f"{target}: {error.strerror or error}") from error

    def _fetch(self, checkpoint: str, piece: Piece, file: int, algorithm: Optional[str]) -> int:
        by, compared = algorithm or digest.best(), algorithm is None
        got, checksum, idle = 0, 0, 0
        while True:
            before = got
            wanted = Get(checkpoint, piece.path, piece.start, piece.length, piece.start + got, by if compared else None)
            try:
                theirs_by = self._ask(wanted, piece, piece.length - got)
                if compared and theirs_by != by:
                    by = digest.CRC32  # which everybody can
                    if got or theirs_by != by:
                        got, checksum = 0, 0
                        raise _Broken(f"it takes checksums by {theirs_by}")
                for chunk in self._blocks(piece.length - got):
                    _write(file, chunk, piece.start + got)
                    got, checksum = got + len(chunk), digest.update(by, chunk, checksum)
                theirs = self._end()
                if not compared or theirs == checksum:
                    return checksum
                got, checksum = 0, 0  # somewhere in what came: all of it again
                trouble = f"it came damaged: its checksum is not {theirs or 0:08x}"
            except _Broken as error:
                trouble = str(error)
            self._drop()
            idle = 0 if got > before else idle + 1
            if idle >= TRIES or self._stop.wait(PAUSE_S if idle else 0):
                raise FetchError(f"{piece.path} of checkpoint {checkpoint} from {self._peer.address}: {trouble}")

    def _ask(self, wanted: Get, piece: Piece, left: int) -> str:
        """The algorithm of the peer's checksum, before the bytes come. Raises _Broken, NotThere."""
        first = self._exchange(wanted)
        if not isinstance(first, File) or first.size != piece.size:
            found = f"{first.size} bytes" if isinstance(first, File) else _why(first)
            raise NotThere(
                f"{piece.path} of checkpoint {wanted.id} at the agent {self._peer.address}: {found}, expected "
                f"{piece.size} bytes"
            )
        if first.count != left:
            raise _Broken(f"{first.count} bytes are offered where {left} are asked for")
        return first.algorithm

    def _blocks(self, left: int) -> Iterator[memoryview]:
        """The bytes that are left, each block valid until the next. Raises _Broken."""
        room = memoryview(self._room)
        while left:
            count = self._read_into(room[: min(left, CHUNK)])
            left -= count
            yield room[:count]

    def _end(self) -> Optional[int]:
        word = self._heard()
        if not isinstance(word, End):
            raise _Broken(_why(word))
        return word.sum

    def _read_into(self, room: memoryview) -> int:
        assert self._sock is not None
        try:
            count = self._sock.recv_into(room)
        except OSError as error:
            raise _Broken(str(error)) from error
        if not count:
            raise _Broken("the other side closed the connection")
        return count

    def _exchange(self, wanted: Get) -> FromServer:
        try:
            if self._sock is None:
                self._sock = socket.create_connection(split_address(self._peer.address), SOCKET_TIMEOUT_S)
                self._stop.opened(self._sock)
                self._greet(self._sock)
            self._sock.sendall(FROM_FETCHER.encode(wanted))
        except OSError as error:
            raise _Broken(f"its agent does not answer: {error}") from error
        return self._heard()

    def _heard(self) -> FromServer:
        try:
            return FROM_SERVER.parse(*self._receive())
        except BadMessage as error:
            raise _Broken(str(error)) from error

    def _greet(self, sock: socket.socket) -> None:
        """Prove ourselves to the peer, once it has done so to us. Raises _Broken, OSError."""
        hello = handshake.hello(handshake.FILES, self._peer.attempt, 0)
        wire.send(sock, hello.to_message())
        try:
            wire.send(sock, handshake.answer(self._peer.secret, hello, self._receive(handshake.REFUSAL_LIMIT)[0]))
        except ValueError as error:
            raise _Broken(str(error)) from error
        welcome, _ = self._receive(handshake.REFUSAL_LIMIT)
        if welcome.get("op") != handshake.HELLO:
            raise _Broken(str(welcome.get("message") or "it does not let us in"))

    def _receive(self, limit: Optional[int] = None) -> wire.Frame:
        assert self._sock is not None
        try:
            return wire.receive(self._sock, limit)
        except OSError as error:
            raise _Broken(str(error)) from error

    def _drop(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            self._stop.closed(sock)
            sock.close()


def _why(word: FromServer) -> str:
    return word.message if isinstance(word, Refused) else f"it says {type(word).__name__.lower()}"


def _write(file: int, data: memoryview, at: int) -> None:
    while data:
        done = os.pwrite(file, data, at)
        data, at = data[done:], at + done
