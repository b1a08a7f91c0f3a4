"""The storage child's operations: JSON fields in, JSON fields out. Their shapes are described in `child.py`, which
calls them.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from trainjob.checkpoint import errors
from trainjob.checkpoint.choice import inventory
from trainjob.checkpoint.choice.choose import Candidate
from trainjob.checkpoint.choice.settle import settle
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.publishing import shares
from trainjob.checkpoint.publishing.retention import Policy
from trainjob.checkpoint.publishing.retire import Retainer, Summary
from trainjob.checkpoint.reading import runs, stored, validations
from trainjob.checkpoint.records import layout, shown
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.manifest import ReleaseNote
from trainjob.checkpoint.staging.stamp import Stamp
from trainjob.checkpoint.storage_child import bringing
from trainjob.checkpoint.stores import mounts
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.store import Store
from trainjob.checkpoint.stores.transfer import Progress
from trainjob_api import contract

Fields = Dict[str, Any]

# Lanes: operations of one lane run one after the other, or as many at a time as LANES says.
BULK = "bulk"
CHECK = "check"
RESTORE = "restore"
SMALL = "small"
LANES = {BULK: 1, CHECK: 1, RESTORE: 4, SMALL: 1}


class Operation(NamedTuple):
    """An operation, and the lane it runs in."""

    lane: str
    run: Callable[[Store, Fields, Progress], Fields]


def _probe(store: Store, _fields: Fields, _progress: Progress) -> Fields:
    store.probe()
    return {}


def _settle(store: Store, fields: Fields, _progress: Progress) -> Fields:
    candidates = [Candidate(ReleaseNote.from_json(c["note"]), frozenset(c["held"])) for c in fields["candidates"]]
    settled = settle(store, fields["job_uid"], fields["resume_from"], candidates, fields.get("attempt"))
    chosen: Optional[Fields] = None
    if settled.choice is not None:
        note = settled.choice.note
        chosen = {
            "id": str(note.id),
            "source": settled.choice.source,
            "uri": settled.uri,
            "note": note.to_json(),
            "stored": list(settled.choice.stored),
        }
    # For workers on other hosts, to see whether a path is the same folder there. Buckets are.
    claimed = runs.read_claim(store, settled.run) if store.local("") is not None else None
    claim = None if claimed is None else {"run": claimed.run, "nonce": claimed.nonce}
    return {
        "run": settled.run,
        "completed": settled.completed,
        "checkpoint": chosen,
        "warnings": list(settled.warnings),
        "why": settled.why,
        "claim": claim,
        "shown": (runs.read_end(store, settled.run) or {}).get("shown") if settled.completed else None,
    }


def _ended(store: Store, fields: Fields, _progress: Progress) -> Fields:
    run = runs.of_job(store, fields["job_uid"])
    end = None if run is None else runs.read_end(store, run)
    return {"run": run, "completed": end is not None, "shown": (end or {}).get("shown")}


def _see(store: Store, fields: Fields, _progress: Progress) -> Fields:
    claim = fields["claim"]
    seen = runs.sees(store, int(claim["run"]), str(claim["nonce"]))
    return {"seen": seen, "where": "" if seen else mounts.describe(store.uri())}


def _share(store: Store, fields: Fields, progress: Progress) -> Fields:
    files, duplicates = ([(path, size) for path, size in fields.get(name, [])] for name in ("files", "duplicates"))
    stamps = {path: Stamp.from_json(row) for path, *row in fields.get("stamps") or ()}
    request = shares.Share(
        CheckpointId.parse(fields["checkpoint"]), int(fields["rank"]), fields["staged"], files, duplicates, stamps
    )
    return {"bytes": shares.share(store, request, progress)}


def _commit(store: Store, fields: Fields, _progress: Progress) -> Fields:
    note = ReleaseNote.from_json(fields["note"])
    done = shares.commit(store, note, fields["nonce"], fields.get("ranks"))
    if done.manifest is None:
        return {"committed": False, "missing": list(done.missing)}
    uri = store.uri(layout.folder(note.id))
    return {
        "committed": True,
        "checkpoint": str(note.id),
        "uri": uri,
        "bytes": done.manifest.total_bytes,
        "warnings": list(done.warnings),
    }


def _reported(store: Store, fields: Fields, _progress: Progress) -> Fields:
    rows, over, run = [], set(fields.get("over", ())), int(fields["run"])
    for entry in inventory.lineage(store, run):
        if entry.good and entry.manifest is not None:
            note, uri = entry.manifest.note, store.uri(entry.prefix)
            shown = {
                "id": str(entry.id),
                "path": uri,
                "uri": uri,
                "step": note.step,
                "epoch": note.epoch,
                "world_size": note.world_size,
                "elsewhere": entry.manifest.is_note,
            }
            if entry.validation:
                # Nobody goes on with those of an earlier run.
                given_up = entry.validation == validations.PENDING and (str(entry.id) in over or entry.id.run != run)
                shown["validation"] = validations.FAILED if given_up else entry.validation
            rows.append({**shown, "metrics": dict(note.metrics)})
    return {"checkpoints": rows}


def _give_up_validations(store: Store, fields: Fields, _progress: Progress) -> Fields:
    return {"checkpoints": [str(id_) for id_ in validations.given_up(store, int(fields["run"]))]}


def _history(store: Store, fields: Fields, _progress: Progress) -> Fields:
    store.put(
        layout.history_key(int(fields["run"]), int(fields["attempt"]), int(fields["segment"])),
        fields["text"].encode("utf-8", "backslashreplace"),
    )
    return {}


def _end(store: Store, fields: Fields, _progress: Progress) -> Fields:
    # Before the record: who finds that finds this too.
    if fields.get("returned"):
        with open(str(fields["returned"]), "rb") as file:
            store.put(layout.returned_key(int(fields["run"])), file.read())
    runs.write_end(store, int(fields["run"]), fields["summary"])
    return {}


def _code(store: Store, fields: Fields, _progress: Progress) -> Fields:
    from trainjob.checkpoint.storage_child import (
        code,
    )  # few jobs need it, and it would be a tenth of this process's start

    return {"files": code.unpack(store, str(fields["key"]), str(fields["into"]))}


def _mark_damaged(store: Store, fields: Fields, _progress: Progress) -> Fields:
    stored.mark_damaged(store, layout.folder(CheckpointId.parse(fields["checkpoint"])), str(fields["why"]))
    return {}


class _Retention:
    """Remembers what it has read of the run that this child serves, and of no other."""

    def __init__(self) -> None:
        self._serves: Optional[Tuple[str, int]] = None
        self._retainer: Optional[Retainer] = None
        self._noted: Optional[Policy] = None

    def __call__(self, store: Store, fields: Fields, _progress: Progress) -> Fields:
        run, attempt = int(fields["run"]), fields.get("attempt")
        retainer = self._retainer
        if retainer is None or self._serves != (store.uri(), run):
            retainer = self._retainer = Retainer(store, run, attempt)
            self._serves, self._noted = (store.uri(), run), None
        retainer.begin(attempt)
        policy = Policy(fields.get("keep"), fields.get("score_attribute"), fields.get("score_order") or "max")
        if policy.score_attribute and self._noted != policy:
            inventory.write_policy(store, run, policy)
            self._noted = policy
        done = retainer.retain(
            policy,
            {CheckpointId.parse(text) for text in fields.get("protect", [])},
            bool(fields.get("validates")),
            {CheckpointId.parse(text) for text in fields.get("over", [])},
        )
        return {
            "deleted": [str(id_) for id_ in done.removed],
            "count": done.committed,
            "latest": _report(store, done.latest),
            "best": _report(store, done.best),
            "warnings": list(done.warnings),
        }


def _report(store: Store, summary: Optional[Summary]) -> Optional[contract.CheckpointReport]:
    """As contract.CheckpointReport."""
    if summary is None:
        return None
    return shown.checkpoint(
        summary.id,
        store.uri(layout.folder(summary.id)),
        step=summary.step,
        time=summary.time,
        total_bytes=summary.total_bytes,
        reported=summary.metrics,
    )


OPERATIONS: Dict[str, Operation] = {
    "probe": Operation(CHECK, _probe),
    "settle": Operation(SMALL, _settle),
    "ended": Operation(SMALL, _ended),
    "see": Operation(SMALL, _see),
    "share": Operation(BULK, _share),
    "commit": Operation(SMALL, _commit),
    "retain": Operation(CHECK, _Retention()),
    "reported": Operation(CHECK, _reported),
    "give_up_validations": Operation(SMALL, _give_up_validations),
    "history": Operation(SMALL, _history),
    "code": Operation(CHECK, _code),
    "end": Operation(SMALL, _end),
    "manifest": Operation(RESTORE, bringing.manifest),
    "verify": Operation(RESTORE, bringing.verify),
    "fetch": Operation(RESTORE, bringing.fetch),
    "compare": Operation(RESTORE, bringing.compare),
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
        raise StoreError(
            errors.INVALID, f"malformed request {fields.get('op')}: {type(error).__name__}: {error}"
        ) from error
