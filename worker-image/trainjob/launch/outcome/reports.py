"""Follows a running job's reports on storage, for the trainer's callbacks.

Rank 0's agent writes the history of each attempt as files of JSON lines, of which only the last one grows (it is
replaced whole, at most once a second); here the new lines are handed on, in order, each with its checkpoint once that
is committed. Only reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trainjob.checkpoint.choice import catalogue
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.stores.store import Store
from trainjob.launch.handover.callbacks import Report
from trainjob.session.checkpoint import Checkpoint
from trainjob_api import nonfinite

Row = Mapping[str, Any]


def report_of(row: Row, checkpoint: Checkpoint | None = None, first_run: int | None = None) -> Report:
    """A report out of its row of history, or what a job's status says of its newest one."""
    by_rank = [nonfinite.numbers(metrics) for metrics in row.get("ranks") or [row.get("metrics") or {}]]
    return Report(
        metrics=nonfinite.numbers(row.get("metrics") or {}),
        by_rank=by_rank,
        checkpoint=checkpoint,
        position=int(row.get("position") or 0),
        step=row.get("step"),
        epoch=row.get("epoch"),
        attempt=row.get("attempt"),
        run=row.get("run"),
        first_run=first_run,
        time=row.get("time"),
    )


def makes_sense(row: Any) -> bool:
    """Whether it is a row of history: anybody may write into a job's storage, and one row ends nobody who follows."""
    try:
        report_of(row)
        if row.get("checkpoint"):
            CheckpointId.parse(row["checkpoint"])
    except (ValueError, TypeError, AttributeError):
        return False
    return True


class Follower:
    """The reports of one run, each handed out once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._run: int | None = None
        self._first_run: int | None = None
        self._attempt = 0
        self._read = (0, 0)
        """Up to where: the segment, and the offset in it."""

    def poll(self, run: int | None, attempt: int, *, final: bool = False, most: int | None = None) -> list[Report]:
        """What is new up to that attempt, so many at most: the others come with the next look. `final`: the job is
        over, nothing more will be committed.
        """
        if run is None:
            return []
        found: list[Report] = []
        try:
            if run != self._run:
                self._first_run = catalogue.first_run(self._store, run)
                self._run, self._attempt, self._read = run, 1, (0, 0)
            while self._take(run, found, most, over=final or self._attempt < attempt) and self._attempt < attempt:
                self._attempt, self._read = self._attempt + 1, (0, 0)
        except StoreError:
            pass  # a storage that is away for a moment: the rest comes with the next look
        return found

    def _take(self, run: int, found: list[Report], most: int | None, *, over: bool) -> bool:
        """Append the reports of the attempt that is being read; False when one has to wait: for its checkpoint to be
        stored, or for the next look.
        """
        rows = self._rows(run)
        committed = [
            at for at, (row, _) in enumerate(rows) if row.get("checkpoint") and self._is_committed(row["checkpoint"])
        ]
        newest = committed[-1] if committed else -1
        for at, (row, end) in enumerate(rows):
            if most is not None and len(found) >= most:
                return False
            identity = str(row.get("checkpoint") or "")
            stored = at in committed
            # One that is not stored although a later one is: it was dropped, or retention took it.
            if identity and not stored and at > newest and not over:
                return False
            self._read = end
            if row.get("kind") == "report":
                handle = self._handle(identity, row) if stored else None
                found.append(report_of(row, handle, self._first_run))
        return True

    def _rows(self, run: int) -> list[tuple[dict[str, Any], tuple[int, int]]]:
        """Complete new lines of all segments, each with the place behind it."""
        found: list[tuple[dict[str, Any], tuple[int, int]]] = []
        segment, offset = self._read
        while (data := self._store.read(layout.history_key(run, self._attempt, segment))) is not None:
            for line in data[offset:].split(b"\n")[:-1]:
                offset += len(line) + 1
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if makes_sense(row):
                    found.append((row, (segment, offset)))
            segment, offset = segment + 1, 0
        return found

    def _is_committed(self, identity: str) -> bool:
        return self._store.size(layout.manifest_key(CheckpointId.parse(identity))) is not None

    def _handle(self, identity: str, row: Row) -> Checkpoint:
        uri = catalogue.checkpoint_uri(self._store, CheckpointId.parse(identity))
        return Checkpoint.from_restored(
            {
                "path": uri,
                "uri": uri,
                "id": identity,
                "step": row.get("step"),
                "epoch": row.get("epoch"),
                "metrics": row.get("metrics"),
            }
        )
