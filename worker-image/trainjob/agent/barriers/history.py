"""The rows of one attempt (reports, log rows) on their way to storage, kept by rank 0's agent.

Called by `leader`. Rows lie in segments, of which only the last one is written again: what a flush costs and what
is kept in memory does not grow with the attempt.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional

from trainjob.agent.background import Background, OnFault, of_the_agent
from trainjob.agent.storing.storage import StorageChild, StorageError
from trainjob_api import nonfinite

FLUSH_S = 1.0
SEGMENT_BYTES = 128 * 1024
BYTES_PER_S = 32 * 1024
"""A flush of n bytes is followed by a pause of n / BYTES_PER_S: at most four seconds."""
LOG_ROWS = 4000
"""Beyond so many log rows, one in a second is kept."""
THIN_S = 1.0
ROWS_LIMIT = 20000
"""Beyond so many rows log rows are not kept at all."""
WAITING_LIMIT = 16 * 1024 * 1024
"""Bytes of rows that may wait for a storage that takes nothing; beyond it rows are lost, which is said once."""

_LAST_FLUSHES = Background(of_the_agent)
"""They outlive their attempt."""
_LEFT: List[History] = []
"""Of attempts that are over, in their order, whose rows are not all stored."""


OnLoss = Callable[[str], None]


def _unsaid(text: str) -> None:
    pass


class _Segment:
    """A file of rows: written again as it grows, and never again once the next one has begun."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.lines: List[str] = []
        self.bytes = 0
        self.stored = 0
        """Lines that are on storage."""


class History:
    """`add` rows; they reach storage within about a second, and at the end by `flush`."""

    def __init__(
        self,
        storage: Optional[StorageChild],
        run: int,
        attempt: int,
        position: int,
        on_fault: OnFault,
        on_loss: OnLoss = _unsaid,
    ) -> None:
        self._storage = storage
        self._run = run
        self._attempt = attempt
        self._segments: Deque[_Segment] = deque([_Segment(0)])
        """Those that are not wholly on storage, in order; the last one is open. What is stored is not kept."""
        self._rows = 0
        self._log_rows = 0
        self._last_log = 0.0
        self._dirty = asyncio.Event()
        self._flushing = asyncio.Lock()
        self._on_loss = on_loss
        self._lost = False
        self._background = Background(on_fault)
        self._task: Optional[asyncio.Task[None]] = None
        self._append({"kind": "start", "position": position})

    def report(self, row: Dict[str, Any]) -> None:
        """A released report."""
        self._add({"kind": "report", **row})

    def log(self, row: Dict[str, Any]) -> None:
        """A row of log(): all at first, then thinned."""
        at = float(row.get("time") or 0.0)
        if self._log_rows >= LOG_ROWS and (at - self._last_log < THIN_S or self._rows >= ROWS_LIMIT):
            return
        self._log_rows += 1
        self._last_log = at
        self._add({"kind": "log", **row})

    async def flush(self) -> None:
        """Put what is new, and before it what attempts before have left: who follows the rows looks at no attempt again
        once a later one has some. Raises StorageError.
        """
        for earlier in [one for one in _LEFT if one is not self and one._attempt < self._attempt]:
            await earlier.flush()
        async with self._flushing:
            # An attempt that reports nothing leaves no file.
            while self._storage is not None and self._rows > 1:
                segment = self._segments[0]
                count = len(segment.lines)
                if segment.stored == count:
                    return
                wanted = {"run": self._run, "attempt": self._attempt, "segment": segment.number}
                await self._storage.call("history", {**wanted, "text": "".join(segment.lines[:count])})
                segment.stored = count
                if len(self._segments) > 1 and count == len(segment.lines):
                    self._segments.popleft()

    def close(self) -> None:
        """A newer attempt begins: what is left is flushed on its own, until storage has taken it."""
        if self._task is not None and self not in _LEFT:
            self._task.cancel()
            _LEFT.append(self)
            _LAST_FLUSHES.spawn(self._last_flush())

    async def _last_flush(self) -> None:
        try:
            while True:
                try:
                    return await self.flush()
                except StorageError:
                    await asyncio.sleep(FLUSH_S)  # uploads say what is wrong with the storage
        finally:
            _LEFT.remove(self)

    def _add(self, row: Dict[str, Any]) -> None:
        if self._storage is None:
            return
        self._append({**row, "attempt": self._attempt, "run": self._run})
        self._dirty.set()
        if self._task is None:
            self._task = self._background.task(self._keep())

    def _append(self, row: Dict[str, Any]) -> None:
        if sum(segment.bytes for segment in self._segments) > WAITING_LIMIT:
            if not self._lost:
                self._lost = True
                self._on_loss("The history has a gap: storage took no rows for too long.")
            return
        line = nonfinite.dumps(row) + "\n"
        last = self._segments[-1]
        if last.bytes >= SEGMENT_BYTES:
            if last.stored == len(last.lines):
                self._segments.pop()
            last = _Segment(last.number + 1)
            self._segments.append(last)
        last.lines.append(line)
        last.bytes += len(line)
        self._rows += 1

    async def _keep(self) -> None:
        while True:
            await self._dirty.wait()
            await asyncio.sleep(max(FLUSH_S, self._segments[-1].bytes / BYTES_PER_S))
            self._dirty.clear()
            try:
                await self.flush()
            except StorageError:
                # Uploads say what is wrong with the storage; rows are kept and tried again.
                self._dirty.set()
