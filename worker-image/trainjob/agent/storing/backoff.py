"""Pauses between tries of what storage refuses for now."""

from __future__ import annotations

import asyncio

FIRST_S = 1.0
CAP_S = 10.0


class Backoff:
    """Twice as long each time, up to CAP_S."""

    def __init__(self) -> None:
        self._next_s = FIRST_S

    async def pause(self) -> None:
        """Before the next try."""
        pause_s, self._next_s = self._next_s, min(self._next_s * 2, CAP_S)
        await asyncio.sleep(pause_s)

    def reset(self) -> None:
        """It worked."""
        self._next_s = FIRST_S
