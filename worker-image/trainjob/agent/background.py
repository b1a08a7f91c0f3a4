"""Background work of one object of the agent: a fault in it surfaces as the loop's, and it ends with its owner."""

from __future__ import annotations

import asyncio
from typing import Any, Coroutine, Set


class Background:
    """Tasks that nobody awaits. Keeps them from being collected while they run."""

    def __init__(self) -> None:
        self._tasks: Set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start it now."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def cancel(self) -> None:
        """End what still runs."""
        for task in list(self._tasks):
            task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()
