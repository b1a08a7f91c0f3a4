"""Follows a running job's reports on storage, for the trainer's callbacks.

Rank 0's agent writes the history of each attempt as files of JSON lines, of which only the last one grows (it is
replaced whole, at most once a second); here the new lines are handed on, in order, each with its checkpoint once that
is committed. Only reads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from trainjob.checkpoint.records import layout
from trainjob.session.checkpoint import Checkpoint
from trainjob_api import nonfinite


class Report(NamedTuple):
    """A report of all ranks."""

    checkpoint: Checkpoint | None
    """Committed; None when the report had none, or retention or a lost upload took it."""
    by_rank: list[dict[str, Any]]
    """Each rank's metrics, where the job keeps them; else rank 0's alone."""


def by_rank(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each rank's metrics of a report's row, in the order of the ranks; rank 0's where no more are kept."""
    return [nonfinite.numbers(metrics) for metrics in row.get("ranks") or [row.get("metrics") or {}]]


class Follower:
    """The reports of one run, each handed out once."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._run: int | None = None
        self._attempt = 0
        self._read = (0, 0)
        """Up to where: the segment, and the offset in it."""

    def poll(self, run: int | None, attempt: int, *, final: bool = False) -> list[Report]:
        """What is new up to that attempt. `final`: the job is over, nothing more will be committed."""
        if run is None:
            return []
        if run != self._run:
            self._run, self._attempt, self._read = run, 1, (0, 0)
        found: list[Report] = []
        while self._take(run, found, over=final or self._attempt < attempt) and self._attempt < attempt:
            self._attempt, self._read = self._attempt + 1, (0, 0)
        return found

    def _take(self, run: int, found: list[Report], *, over: bool) -> bool:
        """Append the reports of the attempt that is being read; False when one has to wait for its checkpoint to be
        stored.
        """
        rows = self._rows(run)
        committed = [
            at for at, (row, _) in enumerate(rows) if row.get("checkpoint") and self._is_committed(row["checkpoint"])
        ]
        newest = committed[-1] if committed else -1
        for at, (row, end) in enumerate(rows):
            identity = str(row.get("checkpoint") or "")
            stored = at in committed
            # One that is not stored although a later one is: it was dropped, or retention took it.
            if identity and not stored and at > newest and not over:
                return False
            self._read = end
            if row.get("kind") == "report":
                found.append(Report(self._handle(identity, row) if stored else None, by_rank(row)))
        return True

    def _rows(self, run: int) -> list[tuple[dict[str, Any], tuple[int, int]]]:
        """Complete new lines of all segments, each with the place behind it."""
        found: list[tuple[dict[str, Any], tuple[int, int]]] = []
        segment, offset = self._read
        while (data := self._data(run, segment, offset)) is not None:
            for line in data.split(b"\n")[:-1]:
                offset += len(line) + 1
                try:
                    row = json.loads(line)
                except ValueError:
                    continue
                if isinstance(row, dict):
                    found.append((row, (segment, offset)))
            segment, offset = segment + 1, 0
        return found

    def _data(self, run: int, segment: int, offset: int) -> bytes | None:
        try:
            with open(os.path.join(self._folder, layout.history_key(run, self._attempt, segment)), "rb") as file:
                file.seek(offset)
                return file.read()
        except OSError:
            return None

    def _is_committed(self, identity: str) -> bool:
        return os.path.exists(os.path.join(self._folder, "checkpoints", identity, ".trainjob", "manifest.json"))

    def _handle(self, identity: str, row: dict[str, Any]) -> Checkpoint:
        path = os.path.join(self._folder, "checkpoints", identity)
        return Checkpoint.from_restored(
            {
                "path": path,
                "uri": path,
                "id": identity,
                "step": row.get("step"),
                "epoch": row.get("epoch"),
                "metrics": row.get("metrics"),
            }
        )
