"""Descriptors of ours that the program may close behind our back (os.closerange, libraries that make daemons): the
number may then be another file's or socket's, which is neither written to, read from nor closed.
"""

from __future__ import annotations

import os
from _socket import socket
from typing import Optional, Tuple

Identity = Tuple[int, int]


def identity(descriptor: int) -> Optional[Identity]:
    """Which file it is now; None: it is closed."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_ours(descriptor: int, ours: Optional[Identity]) -> bool:
    """Whether it is still what it was."""
    return ours is not None and identity(descriptor) == ours


def close(sock: socket, ours: Optional[Identity]) -> None:
    """If it is still ours; otherwise only forget it. Raises nothing."""
    if is_ours(sock.fileno(), ours):
        try:
            sock.close()
            return
        except OSError:
            pass
    sock.detach()
