"""Reading a job's folder: its runs, good checkpoints, history. For Result and the command line; writes nothing.

`open_store` gives the store of a job's folder; every function may raise StoreError. Warnings (a damaged checkpoint
passed over, a line of history that does not parse) are appended to the list that the caller gives.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from trainjob.checkpoint.choice import inventory
from trainjob.checkpoint.reading import runs, stored
from trainjob.checkpoint.reading.runs import Claim, Origin
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.manifest import FileEntry, Manifest
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.store import Store
from trainjob_api import nonfinite

__all__ = [
    "Opened",
    "checkpoint_uri",
    "fetch",
    "first_run",
    "history",
    "latest_run",
    "lineage_history",
    "list_checkpoints",
    "next_start",
    "open_checkpoint",
    "open_store",
    "read_claim",
    "read_end",
    "read_manifest",
]

Row = Dict[str, Any]


class Opened(NamedTuple):
    """A checkpoint folder that verified, ready to be read."""

    manifest: Manifest
    path: str


def latest_run(store: Store) -> Optional[int]:
    """The newest run that was claimed; None in a folder that was never used."""
    found = runs.numbers(store)
    return found[-1] if found else None


def read_claim(store: Store, run: int) -> Optional[Claim]:
    """Who owns a run and what it resumes from."""
    return runs.read_claim(store, run)


def first_run(store: Store, run: int) -> int:
    """The run in which a run's training began: itself, or the first of those in this folder that it goes on from."""
    while True:
        claim = runs.read_claim(store, run)
        if claim is None or claim.uri is not None or claim.resumes is None or claim.resumes.run >= run:
            return run
        run = claim.resumes.run


def read_end(store: Store, run: int) -> Optional[Dict[str, Any]]:
    """The summary of a completed run; None when it has not completed."""
    return runs.read_end(store, run)


def list_checkpoints(store: Store, run: Optional[int] = None, warnings: Optional[List[str]] = None) -> List[Manifest]:
    """Good checkpoints of a run (the newest one if none is named), oldest first."""
    chosen = latest_run(store) if run is None else run
    if chosen is None:
        return []
    entries = inventory.look(store, chosen)
    if warnings is not None:
        warnings += [
            f"checkpoint {entry.id} is skipped for the one before: {entry.why}"
            for entry in entries
            if entry.state == inventory.DAMAGED
        ]
    return [entry.manifest for entry in entries if entry.good and entry.manifest is not None]


def next_start(store: Store) -> Optional[Origin]:
    """What the next run of this name resumes from by itself; None: it starts from the beginning."""
    return runs.next_start(store)


def checkpoint_uri(store: Store, id_: CheckpointId) -> str:
    """The folder of a checkpoint."""
    return store.uri(layout.folder(id_))


def read_manifest(uri: str) -> Manifest:
    """The manifest of a checkpoint anywhere, its files not looked at. Raises StoreError when there is none,
    DamagedError when it was found damaged.
    """
    return stored.head(open_store(uri), "")


def fetch(uri: str, entries: Sequence[FileEntry], into: str) -> str:
    """These files of a checkpoint, compared with its manifest's entries: its own folder if it is on a path, else
    `into`, to which they are downloaded.

    Raises StoreError with a sentence on what is wrong.
    """
    return stored.fetch(open_store(uri), "", entries, into)


def open_checkpoint(path: str, verify: bool = True) -> Opened:
    """A checkpoint folder anywhere, every file's checksum verified unless told otherwise. Raises StoreError with a
    sentence on what is wrong with it.
    """
    manifest = runs.open_checkpoint(path)
    return Opened(stored.verify(open_store(path), "") if verify else manifest, path)


def lineage_history(store: Store, run: int, warnings: Optional[List[str]] = None) -> List[Row]:
    """The rows of a run, and before them those of the runs in this folder from which it goes on: of each its own up to
    the checkpoint with which the next one began. What a later run did again counts as it did it.
    """
    bounds = inventory.ancestry(store, run)
    return [row for each in sorted(bounds) for row in history(store, each, warnings, bounds[each])]


def history(
    store: Store, run: int, warnings: Optional[List[str]] = None, last: Optional[CheckpointId] = None
) -> List[Row]:
    """Report and log rows of a run in the order of training, without those that a resume has superseded.

    An attempt that resumed at position p drops what earlier attempts wrote after their report p. `last`: only up to the
    report with that checkpoint, as the run stood then.
    """
    notes: List[str] = [] if warnings is None else warnings
    segments: Dict[int, List[int]] = {}
    for k, attempt, segment in (layout.parse_history(name) or (0, 0, 0) for name, _ in store.names(layout.HISTORY)):
        if k == run and (last is None or attempt <= last.attempt):
            segments.setdefault(attempt, []).append(segment)
    rows: List[Row] = []
    for attempt in sorted(segments):
        keys = [layout.history_key(run, attempt, segment) for segment in sorted(segments[attempt])]
        mine = [row for key in keys for row in _read(store, key, notes)]
        if mine:
            rows = _until(rows, _start(mine)) + [row for row in mine if row.get("kind") != "start"]
    ends = [] if last is None else [at for at, row in enumerate(rows, 1) if row.get("checkpoint") == str(last)]
    return rows[: ends[-1]] if ends else rows


def _read(store: Store, key: str, warnings: List[str]) -> List[Row]:
    rows: List[Row] = []
    for number, line in enumerate((store.read(key) or b"").splitlines(), 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or not isinstance(row.get("position"), int):
                raise ValueError("no row")
            if isinstance(row.get("metrics"), dict):
                row["metrics"] = nonfinite.numbers(row["metrics"])
        except (ValueError, RecursionError):
            warnings.append(f"{store.uri(key)}, line {number} is no row of history and is passed over")
            continue
        rows.append(row)
    return rows


def _start(rows: List[Row]) -> int:
    """Position at which an attempt resumed: its own word, else the one before its first report, or of its first log
    row.
    """
    first = rows[0]
    return int(first["position"]) - (1 if first.get("kind") == "report" else 0)


def _until(rows: List[Row], position: int) -> List[Row]:
    """Everything up to the report at `position`; log rows after it led to reports that were lost."""
    keep = 0
    for number, row in enumerate(rows, 1):
        if row.get("kind") == "report" and row["position"] <= position:
            keep = number
    return rows[:keep]
