"""Frames on the Unix socket between rank and agent and on the TCP connections between agents.

A frame is an 8 byte header (two big-endian unsigned 32 bit lengths), a JSON object (of one
without fields no byte) and an optional binary blob.
Sans I/O: `encode` and `Decoder` work on bytes; `send` and `receive` are the thin blocking pair that ranks use.
Standard library only, Python 3.9.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, Dict, Iterator, List, Optional, Protocol, Tuple, Union

from trainjob_api import nonfinite

_HEADER = struct.Struct(">II")
JSON_LIMIT = 256 * 1024 * 1024
"""A join lists all files of several staged checkpoints; a stranger's first frame is bounded apart."""
BLOB_LIMIT = 256 * 1024 * 1024

Message = Dict[str, Any]
Frame = Tuple[Message, bytes]


class Readable(Protocol):
    """A socket, or what stands before one."""

    def recv(self, count: int, /) -> bytes:
        """At most so many bytes; none: the other side has closed."""


class WireError(ConnectionError):
    """The peer sent something that is no frame, or closed the connection inside one."""


def encode(message: Message, blob: bytes = b"") -> bytes:
    """Bytes of one frame; NaN and infinities by the rule of `nonfinite`. Raises ValueError when the message is not JSON
    or a part exceeds its limit.
    """
    body = nonfinite.dumps(message).encode() if message else b""
    if len(body) > JSON_LIMIT or len(blob) > BLOB_LIMIT:
        raise ValueError(
            f"frame too large: {len(body)} bytes of JSON (limit {JSON_LIMIT}), {len(blob)} of blob (limit {BLOB_LIMIT})"
        )
    return _HEADER.pack(len(body), len(blob)) + body + blob


class Decoder:
    """Turns a byte stream into frames: `feed` what arrived, get the frames that are complete."""

    def __init__(self, limit: Optional[int] = None) -> None:
        self.limit = limit
        """Bytes of a whole frame, on top of the limits for all; may be changed between two frames."""
        self._buffer = bytearray()

    def feed(self, data: Union[bytes, bytearray]) -> Iterator[Frame]:
        """Frames completed by `data`, in order; the next is looked at when it is asked for. Raises WireError on lengths
        beyond the limits, as soon as they are known, or a body that is no JSON object.
        """
        buffer = self._buffer
        if buffer:
            buffer += data
            data = buffer
        start, length = 0, len(data)
        while length - start >= _HEADER.size:
            json_length, blob_length = _HEADER.unpack_from(data, start)
            if json_length > JSON_LIMIT or blob_length > BLOB_LIMIT:
                raise WireError(f"frame lengths {json_length} and {blob_length} are beyond the limits")
            if self.limit is not None and json_length + blob_length > self.limit:
                raise WireError(f"a frame of {json_length + blob_length} bytes, where {self.limit} are allowed")
            middle = start + _HEADER.size + json_length
            if length < middle + blob_length:
                break
            body, blob = bytes(data[start + _HEADER.size : middle]), bytes(data[middle : middle + blob_length])
            start = middle + blob_length
            yield _parse(body), blob
        if data is buffer:
            del buffer[:start]
        else:
            buffer += data[start:]

    @property
    def pending(self) -> int:
        """Bytes of an incomplete frame."""
        return len(self._buffer)


def send(sock: socket.socket, message: Message, blob: bytes = b"") -> None:
    """Write one frame to a blocking socket."""
    sock.sendall(encode(message, blob))


def receive(sock: Readable, limit: Optional[int] = None) -> Frame:
    """Read one frame from a blocking socket; `limit`: as a Decoder has it. Raises WireError when the peer closes or
    sends no frame.
    """
    json_length, blob_length = _HEADER.unpack(_read(sock, _HEADER.size))
    if json_length > JSON_LIMIT or blob_length > BLOB_LIMIT:
        raise WireError(f"frame lengths {json_length} and {blob_length} are beyond the limits")
    if limit is not None and json_length + blob_length > limit:
        raise WireError(f"a frame of {json_length + blob_length} bytes, where {limit} are allowed")
    return _parse(_read(sock, json_length)), _read(sock, blob_length) if blob_length else b""


def _read(sock: Readable, count: int) -> bytes:
    parts: List[bytes] = []
    while count:
        part = sock.recv(min(count, 1 << 20))
        if not part:
            raise WireError("the other side closed the connection")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _parse(body: bytes) -> Message:
    if not body:
        return {}
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not JSON: {error}") from None
    if not isinstance(message, dict):
        raise WireError("a frame's JSON must be an object")
    return message
