"""The storage child's operations: JSON fields in, JSON fields out. Their shapes are described in `child.py`, which calls them."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from trainjob.checkpoint import errors, layout, runs, shares, stored
from trainjob.checkpoint.choose import Candidate
from trainjob.checkpoint.errors import DamagedError, StoreError
from trainjob.checkpoint.identity import CheckpointId
from trainjob.checkpoint.manifest import ReleaseNote
from trainjob.checkpoint.retention import Policy
from trainjob.checkpoint.retire import Retainer, Summary
from trainjob.checkpoint.settle import settle
from trainjob.checkpoint.store import Store, open_store
from trainjob.checkpoint.transfer import Progress

Fields = Dict[str, Any]

# Lanes: operations of one lane run one after the other.
BULK = "bulk"
CHECK = "check"
SMALL = "small"


class Operation(NamedTuple):
    """An operation, and the lane it runs in."""

    lane: str
    run: Callable[[Store, Fields, Progress], Fields]


def _probe(store: Store, _fields: Fields, _progress: Progress) -> Fields:
    store.probe()
    return {}


def _settle(store: Store, fields: Fields, _progress: Progress) -> Fields:
    candidates = [Candidate(ReleaseNote.from_json(c["note"]), frozenset(c["held"])) for c in fields["candidates"]]
    settled = settle(store, fields["job_uid"], fields["resume_from"], candidates)
    chosen: Optional[Fields] = None
    if settled.choice is not None:
        note = settled.choice.note
        chosen = {"id": str(note.id), "source": settled.choice.source, "uri": settled.uri, "note": note.to_json(), "stored": list(settled.choice.stored)}
    return {"run": settled.run, "completed": settled.completed, "checkpoint": chosen, "warnings": list(settled.warnings), "why": settled.why}


def _share(store: Store, fields: Fields, progress: Progress) -> Fields:
    files, duplicates = ([(path, size) for path, size in fields.get(name, [])] for name in ("files", "duplicates"))
    request = shares.Share(CheckpointId.parse(fields["checkpoint"]), int(fields["rank"]), fields["staged"], files, duplicates)
    return {"bytes": shares.share(store, request, progress)}


def _commit(store: Store, fields: Fields, _progress: Progress) -> Fields:
    note = ReleaseNote.from_json(fields["note"])
    done = shares.commit(store, note, fields["nonce"], fields.get("ranks"))
    if done.manifest is None:
        return {"committed": False, "missing": list(done.missing)}
    uri = store.uri(layout.folder(note.id))
    return {"committed": True, "checkpoint": str(note.id), "uri": uri, "bytes": done.manifest.total_bytes, "warnings": list(done.warnings)}


def _history(store: Store, fields: Fields, _progress: Progress) -> Fields:
    store.put(layout.history_key(int(fields["run"]), int(fields["attempt"])), fields["text"].encode("utf-8", "backslashreplace"))
    return {}


def _end(store: Store, fields: Fields, _progress: Progress) -> Fields:
    runs.write_end(store, int(fields["run"]), fields["summary"])
    return {}


def _verify(store: Store, fields: Fields, progress: Progress) -> Fields:
    uri: Optional[str] = fields.get("uri")
    id_ = None if uri is not None else CheckpointId.parse(fields["checkpoint"])
    folder, prefix = (store, layout.folder(id_)) if id_ is not None else (open_store(uri or ""), "")
    path = folder.local(prefix)
    into = str(fields.get("into") or "")
    try:
        if path is None and into:
            path, manifest = into, stored.fetch(folder, prefix, into, id_, progress)
        else:
            manifest = stored.verify(folder, prefix, id_, progress)
    except DamagedError as error:
        if uri is not None:
            # The folder may be another job's, and not ours to mark.
            runs.mark_origin_damaged(store, uri, str(error))
        raise
    return {"path": path, "note": manifest.note.to_json(), "bytes": manifest.total_bytes}


def _fetch(store: Store, fields: Fields, _progress: Progress) -> Fields:
    shares.fetch(store, ReleaseNote.from_json(fields["note"]), fields["paths"], fields["into"])
    return {}


def _mark_damaged(store: Store, fields: Fields, _progress: Progress) -> Fields:
    stored.mark_damaged(store, layout.folder(CheckpointId.parse(fields["checkpoint"])), str(fields["why"]))
    return {}


class _Retention:
    """Remembers what it has read of the run that this child serves."""

    def __init__(self) -> None:
        self._retainers: Dict[Tuple[str, int], Retainer] = {}

    def __call__(self, store: Store, fields: Fields, _progress: Progress) -> Fields:
        run = int(fields["run"])
        retainer = self._retainers.setdefault((store.uri(), run), Retainer(store, run))
        policy = Policy(fields.get("keep"), fields.get("score_attribute"), fields.get("score_order") or "max")
        done = retainer.retain(policy, {CheckpointId.parse(text) for text in fields.get("protect", [])})
        return {
            "deleted": [str(id_) for id_ in done.removed],
            "count": done.committed,
            "latest": _report(store, done.latest),
            "best": _report(store, done.best),
            "warnings": list(done.warnings),
        }


def _report(store: Store, summary: Optional[Summary]) -> Optional[Fields]:
    """In the shape of contract.CheckpointReport: finite top-level numbers alone, as the API server takes no others."""
    if summary is None:
        return None
    numbers = {k: v for k, v in summary.metrics.items() if isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v)}
    uri = store.uri(layout.folder(summary.id))
    return {"id": str(summary.id), "step": summary.step, "uri": uri, "time": summary.time, "bytes": summary.total_bytes, "metrics": numbers}


OPERATIONS: Dict[str, Operation] = {
    "probe": Operation(SMALL, _probe),
    "settle": Operation(SMALL, _settle),
    "share": Operation(BULK, _share),
    "commit": Operation(SMALL, _commit),
    "retain": Operation(CHECK, _Retention()),
    "history": Operation(SMALL, _history),
    "end": Operation(SMALL, _end),
    "verify": Operation(CHECK, _verify),
    "fetch": Operation(CHECK, _fetch),
    "mark_damaged": Operation(SMALL, _mark_damaged),
}


def perform(fields: Fields, progress: Progress) -> Fields:
    """Run one request. Raises CheckpointError, with kind invalid when the request itself is malformed."""
    operation = OPERATIONS.get(str(fields.get("op")))
    if operation is None:
        raise StoreError(errors.INVALID, f"unknown operation {fields.get('op')!r}; there are {', '.join(OPERATIONS)}")
    try:
        return operation.run(open_store(fields["storage"]), fields, progress)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise StoreError(errors.INVALID, f"malformed request {fields.get('op')}: {type(error).__name__}: {error}") from error
