"""What a feed needs to know of its job's storage: where its claim lies, and which reports are there. For `feed`."""

from __future__ import annotations

import hashlib
import os
import threading
from typing import NamedTuple

from trainjob.checkpoint.choice import catalogue
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.store import Store
from trainjob.launch.handover.callbacks import Report, RunContext
from trainjob.launch.outcome.reports import makes_sense, report_of
from trainjob.trackers import claim
from trainjob.trackers.claim import Mark

RETRY_S = 3.0
"""So long a bucket is tried."""

_LOCK = threading.Lock()
_FED: set[Fed] = set()
"""Of this process."""


class Fed(NamedTuple):
    """Which of a run's trackers one is."""

    run_id: str
    kind: str
    place: str
    ordinal: int
    """Of those of one kind that write to one place: two that a program gives are fed side by side. Whichever others
    there are, also in another process, it stays the same.
    """


def fed_as(run_id: str, kind: str, place: str) -> Fed:
    """The next one."""
    with _LOCK:
        found = next(one for n in range(len(_FED) + 1) if (one := Fed(run_id, kind, place, n)) not in _FED)
        _FED.add(found)
        return found


def free(fed: Fed) -> None:
    """That one is fed no more."""
    with _LOCK:
        _FED.discard(fed)


def key_of(kind: str, place: str, ordinal: int) -> str:
    """The name of a tracker in the storage: the same in all processes that would feed it."""
    written = hashlib.sha256(place.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{kind}-{written}-{ordinal}"


def is_seen(context: RunContext, first: Report) -> bool:
    """Whether this process may see the job's folder; asks no storage."""
    if first.run is None:
        return False
    return context.store is not None or "://" in context.path or os.path.isdir(context.path)


def storage_of(context: RunContext, first: Report) -> Store | None:
    """The job's folder, where this process sees it; None: processes cannot hear of each other."""
    if not is_seen(context, first):
        return None
    if context.store is not None:
        return context.store
    try:
        return open_store(context.path, RETRY_S)
    except StoreError:
        return None  # no path of a storage


def mark_of(report: Report) -> Mark:
    """The place of a report in its training."""
    return Mark(report.run or 0, report.attempt or 0, report.position)


def missing(store: Store, mark: Mark, first: Report) -> list[Report]:
    """Reports of earlier runs that the process of that run has stored and not recorded. Raises StoreError."""
    if first.first_run is None or first.run is None:
        return []
    begins = mark_of(first)
    if not claim.has_gap(mark, begins, first.first_run):
        return []
    rows = catalogue.lineage_history(store, first.run, [])
    found = [report_of(row, None, first.first_run) for row in rows if makes_sense(row) and row.get("kind") == "report"]
    return [report for report in found if claim.is_missing(mark, mark_of(report), begins, first.first_run)]
