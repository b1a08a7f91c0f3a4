"""Follows a running job's reports on storage, for the trainer's callbacks.

Rank 0's agent writes the history of each attempt as files of JSON lines, of which only the last one grows (it is
replaced whole, at most once a second); here the new lines are handed on, in order, each with its checkpoint once that
is committed. Only reads, of a long history no more than is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
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
_WHOLE = ("position", "step", "epoch", "attempt", "run")
"""Of a row: they are compared and counted with."""
_NO_MOMENT = 1e12
"""Seconds that are none since the epoch."""


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
    except (ValueError, TypeError, AttributeError, OverflowError):
        return False
    return all(_is_whole(row.get(name)) for name in _WHOLE) and _is_moment(row.get("time"))


def _is_whole(value: Any) -> bool:
    return value is None or type(value) is int


def _is_moment(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and abs(value) < _NO_MOMENT)


class Follower:
    """The reports of one run, each handed out once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._run: int | None = None
        self._first_run: int | None = None
        self._attempt = 0
        self._read = (0, 0)
        """Up to where: the segment, and the offset in it."""
        self._found: list[Report] = []
        """Read, and not handed out yet: a Ctrl-C may come between."""
        self.failed = False
        """The last look came to no end: the storage was away."""

    def poll(self, run: int | None, attempt: int, *, final: bool = False, most: int | None = None) -> list[Report]:
        """What is new up to that attempt, so many at most: the others come with the next look. `final`: the job is
        over, nothing more will be committed.
        """
        if run is None:
            return []
        self.failed = False
        try:
            if run != self._run:
                self._first_run = catalogue.first_run(self._store, run)
                self._run, self._attempt, self._read = run, 1, (0, 0)
            while True:
                # Asked first: the rows of an attempt are all there once those of a later one come.
                following = self._following(run, attempt)
                if not self._take(run, most, over=final or self._attempt < attempt) or following is None:
                    break
                self._attempt, self._read = following, (0, 0)
        except StoreError:
            self.failed = True  # for a moment: the rest comes with the next look
        found, self._found = self._found, []
        return found

    def _following(self, run: int, attempt: int) -> int | None:
        """The next one, up to that attempt, of which there is anything."""
        if self._attempt >= attempt:
            return None
        parsed = [layout.parse_history(name) for name, _ in self._store.names(layout.HISTORY)]
        later = [one[1] for one in parsed if one is not None and one[0] == run and self._attempt < one[1] <= attempt]
        return min(later, default=None)

    def _take(self, run: int, most: int | None, *, over: bool) -> bool:
        """Find the reports of the attempt that is being read; False when one has to wait: for its checkpoint to be
        stored, or for the next look.
        """
        dropped: tuple[int, int] | None = None
        if len(self._found) == most:
            return False
        for row, end in self._rows(run):
            identity = str(row.get("checkpoint") or "")
            stored = bool(identity) and self._is_committed(identity)
            if identity and not stored and not over:
                # One that is not stored although a later one is: it was dropped, or retention took it.
                dropped = self._newest_committed(run) if dropped is None else dropped
                if end > dropped:
                    return False
                stored = self._is_committed(identity)  # it may have become so between the two looks
            handle = self._handle(identity, row) if stored else None
            report = report_of(row, handle, self._first_run) if row.get("kind") == "report" else None
            self._read = end  # a Ctrl-C comes before this, or after the next
            if report is not None:
                self._found.append(report)
                if len(self._found) == most:
                    return False
        return True

    def _newest_committed(self, run: int) -> tuple[int, int]:
        """The place behind the last row whose checkpoint is stored."""
        rows = [(str(row["checkpoint"]), end) for row, end in self._rows(run) if row.get("checkpoint")]
        return next((end for identity, end in reversed(rows) if self._is_committed(identity)), (0, 0))

    def _rows(self, run: int) -> Iterator[tuple[dict[str, Any], tuple[int, int]]]:
        """Complete new lines of all segments, each with the place behind it; a segment is read when it is needed."""
        segment, offset = self._read
        while True:
            # Asked first: a segment is complete once the next one has begun.
            complete = self._store.size(layout.history_key(run, self._attempt, segment + 1)) is not None
            data = self._store.read(layout.history_key(run, self._attempt, segment))
            if data is None:
                return
            for line in data[offset:].split(b"\n")[:-1]:
                offset += len(line) + 1
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if makes_sense(row):
                    yield row, (segment, offset)
            if not complete:
                return
            segment, offset = segment + 1, 0

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
