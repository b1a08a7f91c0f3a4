"""Unpacks the code that `tj submit` left in the job's storage into the working directory. Called when the agent begins,
and by `attempt` before its ranks start; once per agent.
"""

from __future__ import annotations

import asyncio
import os
from typing import Optional

from trainjob.agent.processes.console import Console
from trainjob.agent.storing.storage import StorageChild, StorageError
from trainjob.checkpoint.errors import INVALID


class JobCode:
    """One per agent. `key` of the packed code in the job's folder on storage; None: none was left."""

    def __init__(self, key: Optional[str], storage: Optional[StorageChild], console: Console) -> None:
        self._key = key
        self._storage = storage
        self._console = console
        self._is_here = False
        self._coming: Optional[asyncio.Task[None]] = None

    @property
    def is_here(self) -> bool:
        """Nothing of it is still to come."""
        return self._key is None or self._is_here

    async def unpack(self) -> None:
        """Nothing happens where no code was left, or once it is here; who asks while it comes waits for that. Raises
        StorageError; an attempt later it is tried again. May be cancelled: it comes all the same.
        """
        if self._key is None or self._is_here:
            return
        if self._coming is None or self._coming.done():
            self._coming = asyncio.ensure_future(self._bring(self._key))
            self._coming.add_done_callback(lambda coming: coming.cancelled() or coming.exception())
        await asyncio.shield(self._coming)

    async def _bring(self, key: str) -> None:
        if self._storage is None:
            raise StorageError(
                INVALID,
                "the code of this job was left in its storage, and it has none any more (spec.checkpoint.storage): "
                "submit it again",
            )
        reply = await self._storage.call("code", {"key": key, "into": os.getcwd()})
        self._is_here = True
        self._console.say(f"the code is here: {reply['files']} files in {os.getcwd()}")
