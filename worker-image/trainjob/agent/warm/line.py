"""The agent's end of a line to the warm parent or to a fork of it: packets in, packets with descriptors out.

Used by `parent` and `gate`.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Callable, Optional, Sequence

from trainjob_api.typed import BadMessage, Vocabulary
from trainjob_api.warm_messages import PACKET_LIMIT, parse


class Line:
    """Open until `close`."""

    def __init__(self, line: socket.socket, words: Vocabulary[Any], on_word: Callable[[Any], None]) -> None:
        """`on_word` gets each of the words, a BadMessage for what is none, and None when the other end is gone."""
        self._loop = asyncio.get_running_loop()
        self._socket: Optional[socket.socket] = line
        self._words = words
        self._on_word = on_word
        line.setblocking(False)
        self._loop.add_reader(line.fileno(), self._readable)

    @property
    def is_open(self) -> bool:
        """Nobody has closed it here."""
        return self._socket is not None

    def send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Raises OSError."""
        if self._socket is None:
            raise BrokenPipeError
        socket.send_fds(self._socket, [data], list(descriptors))

    def close(self) -> None:
        """Nothing more is read; the other end sees it."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _readable(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(PACKET_LIMIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._on_word(None)
            return
        try:
            word = parse(self._words, data)
        except BadMessage as error:
            word = error
        self._on_word(word)
