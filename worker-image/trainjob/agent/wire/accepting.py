"""Connections that cannot be accepted, as this process may open no more files: for a moment that is nobody's fault; a
rank that waits for its agent longer than that would wait for ever.

Pure; asked by `agent` for each time that asyncio tells of it, which is once a second and socket while it lasts.
"""

from __future__ import annotations

MESSAGE = "socket.accept() out of system resource"
"""asyncio's word for it."""
FAILING_S = 15.0
"""So long it may last: what takes files (a copy, a burst of peers) gives them back."""
AGAIN_S = 5.0
"""After so long without a word of it, it was over."""


class Accepting:
    """What was told so far."""

    def __init__(self) -> None:
        self._since = self._last = float("-inf")

    def failed(self, now: float) -> bool:
        """It failed at that moment; True: for the first time, so that it is worth a line."""
        first = now - self._last > AGAIN_S
        if first:
            self._since = now
        self._last = now
        return first

    @property
    def is_lasting(self) -> bool:
        """It has failed for so long that it will not pass."""
        return self._last - self._since >= FAILING_S
