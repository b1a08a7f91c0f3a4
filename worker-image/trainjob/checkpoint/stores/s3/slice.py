"""Some bytes of a staged file as the body of a request to an object store.

Made by `sending` for each try, read or sent by `bodies`. It holds no bytes itself.
"""

from __future__ import annotations

import os
import select
import ssl
from typing import Any, Tuple

from trainjob.checkpoint.stores.s3.requests import Pace, Stalled
from trainjob.checkpoint.stores.transfer import BLOCK, Progress

WINDOW = 256 << 10
"""What is read at once: it stays in the processor's cache while it is checksummed and written."""


class Slice:
    """Some bytes of an open file as a request's body. For one try; another one takes another."""

    def __init__(self, part: Tuple[int, int, int], progress: Progress, timeout_s: float) -> None:
        self._file, self._offset, self._length = part
        self._progress, self._timeout_s = progress, timeout_s
        self._pace = Pace(timeout_s)
        self._at = 0

    def __len__(self) -> int:
        return self._length

    def read(self, count: int = -1) -> bytes:
        """The next bytes; b"" at the end."""
        left = self._length - self._at
        data = os.pread(self._file, left if count is None or count < 0 else min(left, count), self._offset + self._at)
        self._moved(len(data))
        return data

    def seek(self, to: int, whence: int = os.SEEK_SET) -> int:
        """botocore measures bodies by it."""
        self._at = to + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        return self._at

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def send(self, connection: Any) -> None:
        """All of it into a socket, by the kernel alone where the connection is not encrypted. Raises OSError."""
        encrypted = isinstance(connection, ssl.SSLSocket)
        while self._at < self._length:
            if encrypted:
                data = os.pread(self._file, min(WINDOW, self._length - self._at), self._offset + self._at)
                connection.sendall(data)
                count = len(data)
            else:
                count = self._sendfile(connection)
            if not count:
                raise Stalled("the file is shorter than it was")  # the next try says so
            self._moved(count)

    def _sendfile(self, connection: Any) -> int:
        while True:
            try:
                return os.sendfile(
                    connection.fileno(), self._file, self._offset + self._at, min(BLOCK, self._length - self._at)
                )
            except BlockingIOError:
                poll = select.poll()
                poll.register(connection, select.POLLOUT)
                if not poll.poll(self._timeout_s * 1000):
                    raise Stalled(
                        f"the stream stands still: the store took nothing for {self._timeout_s:.0f} s"
                    ) from None

    def _moved(self, count: int) -> None:
        self._at += count
        self._pace.moved(count)
        self._progress(count)
