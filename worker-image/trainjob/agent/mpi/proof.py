"""How the workers' sides know each other: the agents' handshake, with a key of the attempt's for this alone.

Nothing is encrypted, as nothing is of what Open MPI says between its daemons.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import IO, Any, Dict

from trainjob.agent.wire import handshake

FRAME_LIMIT = 1 << 20
"""Bytes of a command line."""


def key_of(secret: str) -> str:
    """Of an attempt's secret, which the ranks' side is not told."""
    return hmac.new(secret.encode(), b"mpi", hashlib.sha256).hexdigest()


def encoded(message: Dict[str, Any]) -> bytes:
    """As one line."""
    return json.dumps(message).encode() + b"\n"


def decoded(line: bytes) -> Dict[str, Any]:
    """Raises ValueError, of a line that is cut off too."""
    message = json.loads(line) if line.endswith(b"\n") else None
    if not isinstance(message, dict):
        raise ValueError("no message")
    return message


def introduce(reader: IO[bytes], writer: IO[bytes], key: str, attempt: int, index: int) -> None:
    """The caller's part: says who it is once the other side has proven itself. Raises OSError, ValueError."""
    hello = handshake.hello(handshake.MEMBER, attempt, index)
    _say(writer, hello.to_message())
    _say(writer, handshake.answer(key, hello, decoded(reader.readline(handshake.REFUSAL_LIMIT))))


def _say(writer: IO[bytes], message: Dict[str, Any]) -> None:
    writer.write(encoded(message))
    writer.flush()
