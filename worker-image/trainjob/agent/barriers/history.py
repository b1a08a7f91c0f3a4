"""The rows of one attempt (reports, log rows) on their way to storage, kept by rank 0's agent.

Called by `leader`. The storage child puts the whole file each time, so flushes get rarer as it grows and log rows
thinner.
"""

from __future__ import annotations

import asyncio
from typing import Any, Dict, List, Optional

from trainjob.agent.background import Background, OnFault, of_the_agent
from trainjob.agent.storing.storage import StorageChild, StorageError
from trainjob_api import nonfinite

FLUSH_S = 1.0
BYTES_PER_S = 512 * 1024
"""A flush of n bytes is followed by a pause of n / BYTES_PER_S."""
LOG_ROWS = 4000
"""Beyond so many log rows, one in a second is kept."""
THIN_S = 1.0
ROWS_LIMIT = 20000
"""Beyond so many rows log rows are not kept at all."""

_LAST_FLUSHES = Background(of_the_agent)
"""They outlive their attempt."""


class History:
    """`add` rows; they reach storage within about a second, and at the end by `flush`."""

    def __init__(
        self, storage: Optional[StorageChild], run: int, attempt: int, position: int, on_fault: OnFault
    ) -> None:
        self._storage = storage
        self._run = run
        self._attempt = attempt
        self._lines: List[str] = []
        self._bytes = 0
        self._log_rows = 0
        self._last_log = 0.0
        self._dirty = asyncio.Event()
        self._flushed = 0
        self._background = Background(on_fault)
        self._task: Optional[asyncio.Task[None]] = None
        self._append({"kind": "start", "position": position})

    def report(self, row: Dict[str, Any]) -> None:
        """A released report."""
        self._add({"kind": "report", **row})

    def log(self, row: Dict[str, Any]) -> None:
        """A row of log(): all at first, then thinned."""
        at = float(row.get("time") or 0.0)
        if self._log_rows >= LOG_ROWS and (at - self._last_log < THIN_S or len(self._lines) >= ROWS_LIMIT):
            return
        self._log_rows += 1
        self._last_log = at
        self._add({"kind": "log", **row})

    async def flush(self) -> None:
        """Put everything. Raises StorageError."""
        count = len(self._lines)
        if self._storage is not None and count > max(self._flushed, 1):
            await self._storage.call(
                "history", {"run": self._run, "attempt": self._attempt, "text": "".join(self._lines)}
            )
            self._flushed = count

    def close(self) -> None:
        """A newer attempt begins: one more flush, on its own."""
        if self._task is not None:
            self._task.cancel()
            _LAST_FLUSHES.spawn(self._last_flush())

    async def _last_flush(self) -> None:
        try:
            await self.flush()
        except StorageError:
            pass  # uploads say what is wrong with the storage

    def _add(self, row: Dict[str, Any]) -> None:
        if self._storage is None:
            return
        self._append({**row, "attempt": self._attempt, "run": self._run})
        self._dirty.set()
        if self._task is None:
            self._task = self._background.task(self._keep())

    def _append(self, row: Dict[str, Any]) -> None:
        line = nonfinite.dumps(row) + "\n"
        self._lines.append(line)
        self._bytes += len(line)

    async def _keep(self) -> None:
        while True:
            await self._dirty.wait()
            await asyncio.sleep(max(FLUSH_S, self._bytes / BYTES_PER_S))
            self._dirty.clear()
            try:
                await self.flush()
            except StorageError:
                # Uploads say what is wrong with the storage; rows are kept and tried again.
                self._dirty.set()
