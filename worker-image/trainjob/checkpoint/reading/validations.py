"""What a run's checkpoints were validated with, as records beside its claim: rank 0 of a trainer writes them, everyone
who ranks or lists checkpoints reads them.

Python 3.9. Every function may raise StoreError.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional

from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.stores import transfer
from trainjob.checkpoint.stores.store import Store
from trainjob_api import nonfinite

PENDING = "PENDING_VALIDATION"
VALIDATED = "VALIDATED"
TIMEOUT = "VALIDATION_TIMEOUT"
FAILED = "VALIDATION_FAILED"
STATUSES = (PENDING, VALIDATED, TIMEOUT, FAILED)

_NAME = re.compile(r"[1-9][0-9]{0,17}\.validation-(?P<id>[0-9]+-[0-9]+-[0-9]+)\.json", re.ASCII)


class Validation(NamedTuple):
    """Of one checkpoint."""

    status: str
    metrics: Mapping[str, Any] = {}
    """What the function returned."""
    task: Mapping[str, Any] = {}
    """What it is called with: fn_kwargs, timeout_s."""


def write(store: Store, id_: CheckpointId, validation: Validation) -> None:
    """Over what was known before."""
    store.put(layout.validation_key(id_), nonfinite.dumps(validation._asdict()).encode())


def end(store: Store, id_: CheckpointId, validation: Validation) -> None:
    """One that is over. What measured nothing leaves what another attempt has measured: it may be that of a rank 0
    which was lost, and lives on where nobody can end it.
    """
    if validation.status != VALIDATED:
        known = _parsed(store.read(layout.validation_key(id_)) or b"")
        if known is not None and known.status == VALIDATED:
            return
    write(store, id_, validation)


def read(store: Store, run: int, known: Mapping[CheckpointId, Validation] = {}) -> Dict[CheckpointId, Validation]:
    """One listing, and a read for each checkpoint that was validated or is to be, several at once. What does not parse
    is left out. `known`: what an earlier call gave; those that are over are not read again.
    """
    found: Dict[CheckpointId, Validation] = {}

    def one(id_: CheckpointId) -> None:
        record = _parsed(store.read(layout.validation_key(id_)) or b"")
        if record is not None:
            found[id_] = record

    there = _ids(store, run)
    over = {id_: known[id_] for id_ in there if id_ in known and known[id_].status != PENDING}
    transfer.each([id_ for id_ in there if id_ not in over], one, store.at_once)
    found.update(over)
    return {id_: found[id_] for id_ in there if id_ in found}


def given_up(store: Store, run: int) -> Iterator[CheckpointId]:
    """Those of a run that nobody validates any more: each counts as failed from then on, for those who wait for it and
    for retention.
    """
    for id_, found in sorted(read(store, run).items()):
        if found.status == PENDING:
            end(store, id_, found._replace(status=FAILED))
            yield id_


def merged(metrics: Mapping[str, Any], validation: Optional[Validation]) -> Dict[str, Any]:
    """What a checkpoint was reported with, and over it what its validation measured, if there was one."""
    return {**metrics, **({} if validation is None else validation.metrics)}


def _ids(store: Store, run: int) -> List[CheckpointId]:
    """Of the run's checkpoints that have a record."""
    found: List[CheckpointId] = []
    for name, _ in store.names(layout.RUNS):
        match = _NAME.fullmatch(name)
        try:
            if match is not None:
                found.append(CheckpointId.parse(match["id"]))
        except ValueError:
            continue
    return [id_ for id_ in found if id_.run == run]


def _parsed(record: bytes) -> Optional[Validation]:
    """None: it makes no sense."""
    try:
        doc = json.loads(record)
        if doc.get("status") not in STATUSES:
            return None
        return Validation(doc["status"], nonfinite.numbers(doc.get("metrics") or {}), dict(doc.get("task") or {}))
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None
