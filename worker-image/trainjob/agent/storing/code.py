"""Unpacks the code that `tj submit` left in the job's storage into the working directory. Called by `attempt` before
its ranks start; once per agent.
"""

from __future__ import annotations

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

    async def unpack(self) -> None:
        """Nothing happens where no code was left, or once it is here. Raises StorageError; an attempt later it is
        tried again.
        """
        if self._key is None or self._is_here:
            return
        if self._storage is None:
            raise StorageError(
                INVALID,
                "the code of this job was left in its storage, and it has none any more (spec.checkpoint.storage): "
                "submit it again",
            )
        reply = await self._storage.call("code", {"key": self._key, "into": os.getcwd()})
        self._is_here = True
        self._console.say(f"the code is here: {reply['files']} files in {os.getcwd()}")
