"""Checkpoints as they lie on storage: which there are, whether one is good, and its full verification.

A checkpoint folder is a key prefix in a store: `checkpoints/<id>` in a job's folder, or "" in a store that is the
checkpoint folder itself (resumeFrom: a path). Without a manifest, or with the mark `retired.json`, it does not exist.
Good means: manifest whole, every file there in its size, no mark `damaged.json`. Called by everything that chooses,
lists or restores.
"""

from __future__ import annotations

import json
import os
from typing import Iterator, List, Optional, Sequence, Tuple

from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import DamagedError, StoreError
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.manifest import FileEntry, Manifest
from trainjob.checkpoint.stores import digest, transfer
from trainjob.checkpoint.stores.store import Store, Stored, Wanted
from trainjob.checkpoint.stores.transfer import Progress


def ids(store: Store, run: Optional[int] = None) -> List[CheckpointId]:
    """Every checkpoint folder there is, committed or not, oldest first."""
    found = []
    for name, is_folder in store.names(layout.CHECKPOINTS):
        try:
            id_ = CheckpointId.parse(name)
        except ValueError:
            continue
        if is_folder and run in (None, id_.run):
            found.append(id_)
    return sorted(found)


def passed_over(store: Store, id_: CheckpointId) -> bool:
    """Whether a later checkpoint of the run is committed: commits come in order, so one without a manifest by then was
    dropped, or removed.
    """
    return any(
        later > id_ and store.size(layout.manifest_key(later)) is not None for later in reversed(ids(store, id_.run))
    )


def load(store: Store, prefix: str, expected: Optional[CheckpointId] = None) -> Optional[Manifest]:
    """The manifest of a good checkpoint; None when the folder holds no checkpoint. Raises DamagedError naming file,
    expected and found.
    """
    manifest = read_manifest(store, prefix, expected)
    if manifest is None:
        return None
    _refuse_marked(store, prefix)
    for entry, found in wrong_sizes(store, prefix, manifest.entries):
        raise _wrong_size(store, join(prefix, entry.path), entry.size, found)
    return manifest


def wrong_sizes(store: Store, prefix: str, entries: Sequence[FileEntry]) -> Iterator[Tuple[FileEntry, Optional[int]]]:
    """Files that are not there in their size, each with what was found. A listing carries no checksum: what it says
    against a file is looked at again.
    """
    sizes = store.sizes(prefix)
    for entry in entries:
        key = join(prefix, entry.path)
        if sizes.get(key) != entry.size:
            found = store.size(key)
            if found != entry.size:
                yield entry, found


def read_manifest(store: Store, prefix: str, expected: Optional[CheckpointId] = None) -> Optional[Manifest]:
    """The manifest alone, files not looked at; None without one or once removal has begun. Raises DamagedError when
    it does not parse.
    """
    key = join(prefix, f"{layout.RESERVED}/{layout.MANIFEST}")
    text = store.read(key)
    if text is None or store.size(join(prefix, f"{layout.RESERVED}/{layout.RETIRED}")) is not None:
        return None
    try:
        manifest = Manifest.loads(text)
    except ValueError:
        try:
            manifest = Manifest.loads(
                store.read(key) or b""
            )  # once more, as with files: it may have been changed on its way here
        except ValueError as error:
            raise DamagedError(f"{store.uri(key)} is damaged: {error}") from None
    if expected not in (None, manifest.id):
        raise DamagedError(
            f"{store.uri(key)} is damaged: expected the manifest of {expected}, found that of {manifest.id}"
        )
    return manifest


def head(store: Store, prefix: str, expected: Optional[CheckpointId] = None) -> Manifest:
    """The manifest of a checkpoint that nobody found damaged, its files not looked at. Raises DamagedError, or
    StoreError when there is no checkpoint.
    """
    manifest = read_manifest(store, prefix, expected)
    if manifest is None:
        raise _no_checkpoint(store, prefix)
    _refuse_marked(store, prefix)
    return manifest


def newest_good(store: Store, run: int, warnings: List[str], upto: Optional[CheckpointId] = None) -> Optional[Manifest]:
    """The newest good checkpoint of a run (not newer than `upto`); damaged ones are passed over, each with a
    warning.
    """
    return next(good(store, run, warnings, upto), None)


def good(store: Store, run: int, warnings: List[str], upto: Optional[CheckpointId] = None) -> Iterator[Manifest]:
    """Good checkpoints of a run, newest first, each looked at only when it is asked for."""
    for id_ in reversed(ids(store, run)):
        if upto is not None and id_ > upto:
            continue
        try:
            manifest = load(store, layout.folder(id_), id_)
        except DamagedError as error:
            warnings.append(f"checkpoint {id_} is skipped for the one before: {error}")
            continue
        if manifest is not None:
            yield manifest


def verify(
    store: Store, prefix: str, expected: Optional[CheckpointId] = None, progress: Progress = transfer.nothing
) -> Manifest:
    """Read every file and compare sizes and checksums. Raises DamagedError (and leaves the mark), or StoreError when
    there is no checkpoint.
    """
    try:
        manifest = load(store, prefix, expected)
        if manifest is None:
            raise _no_checkpoint(store, prefix)
        compare(store, prefix, manifest.entries, None, progress)
    except DamagedError as error:
        mark_damaged(store, prefix, str(error))
        raise
    return manifest


def fetch(
    store: Store,
    prefix: str,
    entries: Sequence[FileEntry],
    into: str,
    progress: Progress = transfer.nothing,
    copy: bool = False,
) -> str:
    """Compare these files, downloading what cannot be read as it lies (or all: `copy`); the folder with them. Raises
    DamagedError (and leaves the mark), StoreError.
    """
    folder = None if copy else store.local(prefix)
    try:
        compare(store, prefix, entries, into if folder is None else None, progress)
    except DamagedError as error:
        mark_damaged(store, prefix, str(error))
        raise
    return into if folder is None else folder


def compare(
    store: Store,
    prefix: str,
    entries: Sequence[FileEntry],
    into: Optional[str] = None,
    progress: Progress = transfer.nothing,
) -> None:
    """Read these files through, or bring them to their paths below `into`. Raises DamagedError (and leaves no mark),
    StoreError.
    """
    transfer.each(
        _not_seen(store, prefix, entries, into, progress), lambda file: _compare(store, file, progress), store.at_once
    )


def damages(store: Store, prefix: str, entries: Sequence[FileEntry], progress: Progress) -> List[str]:
    """Read these files through; a sentence on each that is damaged or missing, sorted. Raises StoreError."""
    found: List[str] = []

    def look(file: Wanted) -> None:
        try:
            _compare(store, file, progress)
        except DamagedError as error:
            found.append(str(error))

    transfer.each(_not_seen(store, prefix, entries, None, progress), look, store.at_once)
    return sorted(found)


def _not_seen(
    store: Store, prefix: str, entries: Sequence[FileEntry], into: Optional[str], progress: Progress
) -> List[Wanted]:
    """What is left for one by one when the cheap way for many small files has done what it could."""
    by_key = {join(prefix, entry.path): entry for entry in entries}
    paths = {
        key: None if into is None else os.path.join(into, layout.checked_path(entry.path))
        for key, entry in by_key.items()
    }
    wanted = [
        Wanted(key, paths[key], Stored(entry.size, entry.checksum, entry.algorithm)) for key, entry in by_key.items()
    ]
    right = store.download_small(wanted, progress)
    return [file for file in wanted if file.key not in right]


def mark_damaged(store: Store, prefix: str, why: str) -> None:
    """Leave the mark that readers pass over; the first reason stays. A folder that cannot be written stays unmarked:
    every reader checks anew.
    """
    try:
        store.create(join(prefix, f"{layout.RESERVED}/{layout.DAMAGED}"), json.dumps({"why": why}).encode())
    except StoreError as error:
        if error.kind not in (errors.READ_ONLY, errors.FULL):
            raise


def _compare(store: Store, file: Wanted, progress: Progress) -> None:
    key, path, expected = file
    if expected.algorithm not in digest.ALGORITHMS:
        raise StoreError(
            errors.INVALID,
            f"{store.uri(key)} has a checksum by {expected.algorithm}, which is not available here; this version of "
            f"trainjob knows {', '.join(digest.ALGORITHMS)}",
        )

    def read() -> Optional[Stored]:
        how = progress, expected.algorithm, expected.size
        return store.checksum(key, *how) if path is None else store.download(key, path, *how)

    found = read()
    if found is not None and found != expected:
        found = read()  # once more: it may have been changed on its way here, and a mark is for good
    if found is None or found.size != expected.size:
        raise _wrong_size(store, key, expected.size, None if found is None else found.size)
    if found.checksum != expected.checksum:
        raise DamagedError(
            f"{store.uri(key)} is damaged: expected {expected.algorithm} {expected.checksum} over {expected.size} "
            f"bytes, found {found.checksum}"
        )


def _wrong_size(store: Store, key: str, size: int, found: Optional[int]) -> DamagedError:
    what = "no such file" if found is None else f"{found} bytes"
    return DamagedError(f"{store.uri(key)} is damaged: expected {size} bytes, found {what}")


def _refuse_marked(store: Store, prefix: str) -> None:
    mark = store.read(join(prefix, f"{layout.RESERVED}/{layout.DAMAGED}"))
    if mark is not None:
        raise DamagedError(f"checkpoint {store.uri(prefix)} was found damaged before: {_why(mark)}")


def _no_checkpoint(store: Store, prefix: str) -> StoreError:
    return StoreError(
        errors.LOST,
        f"{store.uri(prefix)} holds no checkpoint: it has no {layout.RESERVED}/{layout.MANIFEST}; likely it was "
        "removed by retention.",
    )


def _why(mark: bytes) -> str:
    try:
        return str(json.loads(mark)["why"])[:500]
    except (ValueError, KeyError, TypeError):
        return "no reason noted"


def join(prefix: str, path: str) -> str:
    """The key of a checkpoint's file."""
    return f"{prefix}/{path}" if prefix else path
