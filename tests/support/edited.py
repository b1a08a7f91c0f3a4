"""A local job that is edited while it runs: put in the place of `drive.MemoryCluster`."""

from __future__ import annotations

import asyncio
from typing import Any

from trainjob_operator.memory import MemoryCluster


class Edited(MemoryCluster):
    """A user edits the job of `run_job` from another thread."""

    newest: Edited

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._running = asyncio.get_running_loop()
        Edited.newest = self

    def edit(self, name: str = "job", **spec: object) -> None:
        """From any thread."""
        self._running.call_soon_threadsafe(lambda: self.update_job_spec("default", name, spec))
