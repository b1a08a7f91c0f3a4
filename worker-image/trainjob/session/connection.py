"""One connection of this process to its agent, whose descriptor the program may close behind our back (`descriptors`).

Made by `line`, which makes another when this one is gone.
"""

from __future__ import annotations

import errno
import socket

from trainjob.session import descriptors, errors

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
        self._ours = descriptors.identity(self._sock.fileno())
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
        return descriptors.is_ours(self._sock.fileno(), self._ours)

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
        descriptors.close(self._sock, self._ours)
