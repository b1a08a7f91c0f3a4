"""Storing a checkpoint: each rank's share, then the commit.

A share is a rank's files, copied under their exclusive names, and a record of their sizes and checksums written last.
The commit builds the manifest from the records and publishes it. Both may be run again by anybody, at any point: files
that are there are compared, never written again, so an older attempt that still runs cannot make anything torn. Called
by the storage child.
"""

from __future__ import annotations

import os
from typing import Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import DamagedError, StagingError, StoreError
from trainjob.checkpoint.reading import stored
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.manifest import FileEntry, Manifest, NoteFile, ReleaseNote, entry_from_json
from trainjob.checkpoint.records.merge import Listing, difference
from trainjob.checkpoint.records.sealed import need, need_list, seal, unseal
from trainjob.checkpoint.staging.stamp import Stamp
from trainjob.checkpoint.stores import transfer
from trainjob.checkpoint.stores.store import Store
from trainjob.checkpoint.stores.transfer import Progress


class Share(NamedTuple):
    """What one rank contributes to a checkpoint."""

    id: CheckpointId
    rank: int
    staged: str
    """Folder in which its files lie."""
    files: Listing
    duplicates: Listing = ()
    """Paths whose other copy counts: only their checksums are recorded."""
    stamps: Mapping[str, Stamp] = {}
    """How the files looked when they were released."""


class ShareRecord(NamedTuple):
    """The stored record of a share that is complete."""

    files: Tuple[FileEntry, ...]
    duplicates: Tuple[FileEntry, ...]

    def dumps(self, id_: CheckpointId, rank: int) -> bytes:
        """As it is stored."""
        rows = {name: [dict(zip(FileEntry._fields, e)) for e in files] for name, files in zip(self._fields, self)}
        return seal({"id": str(id_), "rank": rank, **rows})

    @classmethod
    def loads(cls, text: bytes) -> ShareRecord:
        """Raises ValueError."""
        doc = unseal(text)
        return cls(*(tuple(entry_from_json(row) for row in need_list(need(doc, name))) for name in cls._fields))


class Commit(NamedTuple):
    """`manifest` is None as long as shares are `missing`, or when the checkpoint has been retired meanwhile (nothing
    missing).
    """

    manifest: Optional[Manifest]
    missing: Tuple[int, ...] = ()
    warnings: Tuple[str, ...] = ()


def share(store: Store, request: Share, progress: Progress = transfer.nothing) -> int:
    """Store a rank's share; its bytes. Raises StoreError, or StagingError when a staged file is not what was
    released.
    """
    total = sum(size for _, size in request.files)
    record = _record(store, request.id, request.rank)
    if record is None:
        _refuse_retired(store, request.id)
        record = _transfer(store, request, progress)
        if store.create(layout.share_key(request.id, request.rank), record.dumps(request.id, request.rank)):
            return total
        record = _record(store, request.id, request.rank)
    if record is None or sorted((e.path, e.size) for e in record.files) != sorted(
        (path, size) for path, size in request.files
    ):
        raise StoreError(
            errors.CONFLICT,
            f"{store.uri(layout.share_key(request.id, request.rank))} records other files than rank {request.rank} "
            "holds; likely another job uses this folder. "
            "Give every job its own name or storage.",
        )
    return total


def commit(store: Store, note: ReleaseNote, nonce: str, ranks: Optional[Sequence[int]] = None) -> Commit:
    """Publish the manifest if every rank's share is there. Raises StoreError."""
    prefix = layout.folder(note.id)
    there = stored.read_manifest(store, prefix, note.id)
    if there is not None:
        store.tidy(prefix)
        return Commit(there)
    if store.size(layout.retired_key(note.id)) is not None:
        return Commit(None)
    records: Dict[int, ShareRecord] = {}
    needed = sorted(set(note.ranks if ranks is None else ranks))
    for rank in needed:
        record = _record(store, note.id, rank)
        if record is not None:
            records[rank] = record
    missing = tuple(rank for rank in needed if rank not in records)
    if missing:
        return Commit(None, missing)
    manifest = Manifest(note._replace(duplicates=()), _entries(store, note, records), nonce)
    _check_sizes(store, prefix, manifest)
    if not store.create(layout.manifest_key(note.id), manifest.dumps()):
        # Taken: by an older leader, or by this very call whose reply was lost. Either way what stands there counts;
        # only its nonce tells whose it is.
        there = stored.read_manifest(store, prefix, note.id)
        if there is None:
            return Commit(None)
        manifest = there
    store.tidy(prefix)
    return Commit(manifest, (), _differences(note, records))


def verified(store: Store, id_: CheckpointId, files: Sequence[NoteFile], warnings: List[str]) -> List[str]:
    """Paths among `files` that a finished share holds, read and compared; for a checkpoint that is not committed
    yet.
    """
    out: List[str] = []
    for rank in sorted({f.rank for f in files}):
        try:
            record = _record(store, id_, rank)
        except DamagedError as error:
            warnings.append(str(error))
            continue
        entries = {e.path: e for e in record.files} if record is not None else {}
        for file in files:
            entry = entries.get(file.path) if file.rank == rank else None
            if entry is None or entry.size != file.size:
                continue
            key = layout.file_key(id_, file.path)
            found = store.checksum(key, transfer.nothing, entry.algorithm)
            if found == (entry.size, entry.checksum, entry.algorithm):
                out.append(file.path)
            else:
                what = "no such file" if found is None else f"{found.size} bytes with {found.checksum}"
                warnings.append(
                    f"{store.uri(key)} is damaged: expected {entry.size} bytes with {entry.algorithm} "
                    f"{entry.checksum}, found {what}"
                )
    return out


def fetch(store: Store, note: ReleaseNote, paths: Collection[str], into: str) -> None:
    """Bring files that finished shares hold to a local folder, compared. Raises DamagedError for what is not there
    or not the same, StoreError.
    """
    wanted = [f for f in note.files if f.path in paths]
    records = {rank: _record(store, note.id, rank) for rank in {f.rank for f in wanted}}
    held = {(rank, e.path): e for rank, record in records.items() if record is not None for e in record.files}
    missing = [f.path for f in wanted if (f.rank, f.path) not in held]
    if missing:
        raise DamagedError(
            f"{store.uri(layout.folder(note.id))}: no share records {missing[0]} any more; likely it was removed by "
            "retention"
        )
    entries = [held[f.rank, f.path] for f in wanted]
    stored.compare(store, layout.folder(note.id), entries, into)


def _refuse_retired(store: Store, id_: CheckpointId) -> None:
    if store.size(layout.retired_key(id_)) is not None:
        raise StoreError(
            errors.RETIRED, f"checkpoint {id_} has been removed by retention meanwhile: there is nothing left to store"
        )


def _transfer(store: Store, request: Share, progress: Progress) -> ShareRecord:
    entries: Dict[str, FileEntry] = {}
    duplicates: Dict[str, FileEntry] = {}

    def upload(file: Tuple[str, str, int]) -> None:
        key, path, size = file
        result = at_once.get(key) or store.upload(key, _staged(request, path, size), progress)
        entries[path] = FileEntry(path, result.size, result.checksum, result.algorithm, request.rank)

    def compare(file: Tuple[str, int]) -> None:
        path, size = file
        with open(_staged(request, path, size), "rb", buffering=0) as local:
            found, checksum = transfer.checksum(local.fileno(), progress, store.algorithm)
        duplicates[path] = FileEntry(path, found, checksum, store.algorithm, request.rank)

    files = [(layout.file_key(request.id, layout.checked_path(path)), path, size) for path, size in request.files]
    for _, path, size in files:
        _staged(request, path, size)  # before the first goes under a name that nobody can take back
    at_once = store.upload_small(
        [(key, os.path.join(request.staged, path), size) for key, path, size in files], progress
    )
    transfer.each(files, upload, store.at_once)
    transfer.each([(path, size) for path, size in request.duplicates], compare, store.at_once)
    for path, size in request.files:
        _staged(request, path, size)  # once more: the checksums are of what was read, whoever wrote to it meanwhile
    store.flush()
    return ShareRecord(tuple(entries[p] for p in sorted(entries)), tuple(duplicates[p] for p in sorted(duplicates)))


def _staged(request: Share, path: str, size: int) -> str:
    local = os.path.join(request.staged, layout.checked_path(path))
    try:
        found = Stamp.of(os.stat(local))
    except OSError as error:
        raise StagingError(*errors.explain(error, "read the staged file", local, writing=False)) from error
    if found.size != size or found != request.stamps.get(path, found):
        what = f"expected {size} bytes, found {found.size}" if found.size != size else "somebody wrote to it"
        raise StagingError(
            errors.LOST,
            f"staged file {local} changed after its release ({what}); likely the training script saves into the folder "
            "of the checkpoint that it resumed from. Save into a folder of its own.",
        )
    return local


def _record(store: Store, id_: CheckpointId, rank: int) -> Optional[ShareRecord]:
    key = layout.share_key(id_, rank)
    text = store.read(key)
    if text is None:
        return None
    try:
        return ShareRecord.loads(text)
    except ValueError as error:
        raise DamagedError(f"{store.uri(key)} is damaged: {error}") from None


def _entries(store: Store, note: ReleaseNote, records: Dict[int, ShareRecord]) -> Tuple[FileEntry, ...]:
    shared = {(rank, e.path): e for rank, record in records.items() for e in record.files}
    out: List[FileEntry] = []
    for file in note.files:
        entry = shared.get((file.rank, file.path))
        if entry is None or entry.size != file.size:
            found = "nothing of it" if entry is None else f"{entry.size} bytes"
            raise StoreError(
                errors.CONFLICT,
                f"checkpoint {note.id}: {file.path} was released with {file.size} bytes by rank {file.rank}, whose "
                f"share holds {found}",
            )
        out.append(entry)
    return tuple(out)


def _check_sizes(store: Store, prefix: str, manifest: Manifest) -> None:
    for entry, found in stored.wrong_sizes(store, prefix, manifest.entries):
        what = "no such file" if found is None else f"{found} bytes"
        raise StoreError(
            errors.LOST,
            f"{store.uri(f'{prefix}/{entry.path}')} was stored with {entry.size} bytes, found {what}; likely "
            "something else cleans up in this folder",
        )


def _differences(note: ReleaseNote, records: Dict[int, ShareRecord]) -> Tuple[str, ...]:
    counts = {f.path: f.rank for f in note.files}
    sums = {
        (e.path, e.algorithm): (e.size, e.checksum)
        for record in records.values()
        for e in record.files
        if counts.get(e.path) == e.rank
    }
    different: Dict[Tuple[int, int], List[str]] = {}
    for record in records.values():
        for copy in record.duplicates:
            if sums.get((copy.path, copy.algorithm), (copy.size, copy.checksum)) != (copy.size, copy.checksum):
                different.setdefault((counts[copy.path], copy.rank), []).append(copy.path)
    return tuple(difference(low, high, paths) for (low, high), paths in sorted(different.items()))
