"""What a run's checkpoints were validated with, as records beside its claim: rank 0 of a trainer writes them, everyone
who ranks or lists checkpoints reads them.

Python 3.9. Every function may raise StoreError.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, Mapping, NamedTuple

from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.manifest import Manifest
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


def read(store: Store, run: int) -> Dict[CheckpointId, Validation]:
    """One listing, and a read for each checkpoint that was validated or is to be. What does not parse is left out."""
    found: Dict[CheckpointId, Validation] = {}
    for name, _ in store.names(layout.RUNS):
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        try:
            id_ = CheckpointId.parse(match["id"])
            doc = json.loads(store.read(layout.validation_key(id_)) or b"") if id_.run == run else {}
            if doc.get("status") in STATUSES:
                metrics = doc.get("metrics") or {}
                found[id_] = Validation(doc["status"], nonfinite.numbers(metrics), dict(doc.get("task") or {}))
        except (ValueError, AttributeError, TypeError, RecursionError):
            continue
    return found


def merged(manifest: Manifest, found: Mapping[CheckpointId, Validation]) -> Manifest:
    """The manifest with what its validation measured among its metrics."""
    validation = found.get(manifest.id)
    if validation is None or not validation.metrics:
        return manifest
    note = manifest.note
    return manifest._replace(note=note._replace(metrics={**note.metrics, **validation.metrics}))
