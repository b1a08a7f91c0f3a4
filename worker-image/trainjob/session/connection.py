"""One connection of this process to its agent, whose descriptor the program may close behind our back (os.closerange,
libraries that make daemons): its number may then be another file's or socket's, which is neither written to, read from
nor closed.

Made by `line`, which makes another when this one is gone.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Optional, Tuple

from trainjob.session import errors

CONNECT_TIMEOUT_S = 30.0


class Vanished(Exception):
    """The program has closed the descriptor before it was connected."""


class Connection:
    """To the agent's socket at `path`. Raises AgentLostError, and Vanished."""

    def __init__(self, path: str) -> None:
        try:
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:  # this process's own trouble
            raise errors.AgentLostError(f"No connection to the agent of this worker can be made: {error}") from None
        self._file = self._now()
        try:
            self._sock.settimeout(CONNECT_TIMEOUT_S)
            self._sock.connect(path)
            self._sock.settimeout(None)
        except OSError as error:
            vanished = not self.is_there()
            self.close()
            if vanished:
                raise Vanished from None
            raise errors.AgentLostError(
                f"The agent of this worker does not answer on {path}: {error}. It was stopped, or this process "
                "outlived it."
            ) from None

    def is_there(self) -> bool:
        """Whether the descriptor is still ours."""
        return self._file is not None and self._now() == self._file

    def recv(self, count: int) -> bytes:
        """As a socket's."""
        if not self.is_there():
            raise OSError(errno.EBADF, "the program has closed its descriptor")
        return self._sock.recv(count)

    def sendall(self, data: bytes) -> None:
        """As a socket's."""
        self._sock.sendall(data)

    def settimeout(self, seconds: float) -> None:
        """As a socket's."""
        self._sock.settimeout(seconds)

    def close(self) -> None:
        """If it is still ours."""
        if self.is_there():
            self._sock.close()
        else:
            self._sock.detach()

    def _now(self) -> Optional[Tuple[int, int]]:
        """Which file the descriptor is now; None: it is closed."""
        try:
            found = os.fstat(self._sock.fileno())
        except OSError:
            return None
        return found.st_dev, found.st_ino
