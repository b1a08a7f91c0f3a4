"""The storage child's operations by which a worker restores: what is in a checkpoint, files of it compared and brought.
Shapes: see `child.py`.

Called by `operations`. Manifests are remembered, as they never change; a checkpoint that retention takes meanwhile
lacks its files.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Any, Dict, List, NamedTuple, Optional

from trainjob.checkpoint.errors import DamagedError
from trainjob.checkpoint.publishing import shares
from trainjob.checkpoint.reading import runs, stored
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.manifest import Manifest, ReleaseNote
from trainjob.checkpoint.stores import transfer
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.store import Store
from trainjob.checkpoint.stores.transfer import Progress

Fields = Dict[str, Any]
_KEPT = 4
_manifests: OrderedDict[str, Manifest] = OrderedDict()


class _Place(NamedTuple):
    """Where a request's checkpoint lies."""

    store: Store
    prefix: str
    id: Optional[CheckpointId]

    @classmethod
    def of(cls, store: Store, fields: Fields) -> _Place:
        """`uri` names any folder, `checkpoint` one of this job's."""
        if fields.get("uri") is not None:
            return cls(open_store(fields["uri"]), "", None)
        id_ = CheckpointId.parse(fields["checkpoint"])
        return cls(store, layout.folder(id_), id_)

    def manifest(self) -> Manifest:
        """Read once. Raises DamagedError, or StoreError when there is no checkpoint."""
        uri = self.store.uri(self.prefix)
        found = _manifests.get(uri)
        if found is None:
            found = _manifests[uri] = stored.head(self.store, self.prefix, self.id)
            while len(_manifests) > _KEPT:
                _manifests.popitem(last=False)
        return found


def manifest(store: Store, fields: Fields, _progress: Progress) -> Fields:
    """Operation `manifest`."""
    place = _Place.of(store, fields)
    found = place.manifest()
    sums = [[e.path, e.checksum, e.algorithm] for e in found.entries]
    return {"path": place.store.local(place.prefix), "note": found.note.to_json(), "sums": sums}


def verify(store: Store, fields: Fields, progress: Progress) -> Fields:
    """Operation `verify`."""
    place = _Place.of(store, fields)
    paths = set(fields["paths"])
    entries = [e for e in place.manifest().entries if e.path in paths]
    if len(entries) != len(paths):
        raise KeyError(sorted(paths - {e.path for e in entries})[0])
    try:
        path = stored.fetch(place.store, place.prefix, entries, str(fields["into"]), progress, bool(fields.get("copy")))
    except DamagedError as error:
        if fields.get("uri") is not None:
            # The folder may be another job's, and not ours to mark.
            runs.mark_origin_damaged(store, str(fields["uri"]), str(error))
        raise
    return {"path": path, "bytes": sum(e.size for e in entries)}


def fetch(store: Store, fields: Fields, _progress: Progress) -> Fields:
    """Operation `fetch`."""
    shares.fetch(store, ReleaseNote.from_json(fields["note"]), fields["paths"], fields["into"])
    return {}


def compare(_store: Store, fields: Fields, progress: Progress) -> Fields:
    """Operation `compare`."""
    different: List[str] = []
    for path, size, checksum, algorithm in fields["files"]:
        try:
            with open(os.path.join(fields["folder"], layout.checked_path(path)), "rb", buffering=0) as file:
                found = transfer.checksum(file.fileno(), progress, algorithm)
        except FileNotFoundError:
            found = (0, "")
        if found != (size, checksum):
            different.append(path)
    return {"different": different}
