"""Bringing a checkpoint into a folder of the user's: verified, gone on with where it was cut off, never over files of
somebody else.

Called by the command line (`tj checkpoints download`, `tj model get`). A note in the folder says, while it is
incomplete, which checkpoint it is to become. Nothing is marked on storage here. Raises StoreError.
"""

from __future__ import annotations

import json
import os
import shutil
from fnmatch import fnmatchcase
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.reading import stored
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.manifest import FileEntry, Manifest
from trainjob.checkpoint.stores import transfer
from trainjob.checkpoint.stores.path_store import PathStore
from trainjob.checkpoint.stores.store import Store, Stored
from trainjob.checkpoint.stores.transfer import Progress

NOTE = ".trainjob-download.json"
"""In a folder whose download has not ended."""


class Export(NamedTuple):
    """What is brought where."""

    store: Store
    prefix: str
    manifest: Manifest
    entries: Sequence[FileEntry]
    """The files that are wanted."""
    target: str
    """An absolute path."""
    whole: bool
    """A committed checkpoint in its own right at the end: with the library's own files and, last, the manifest."""


def select(manifest: Manifest, patterns: Sequence[str], whole: bool) -> List[FileEntry]:
    """The user's files whose path or name matches one of the patterns (none: all of them, and with `whole` the
    library's own).
    """
    entries = [e for e in manifest.entries if whole or not layout.is_own(e.path)]
    return [e for e in entries if matches(e.path, patterns)]


def matches(path: str, patterns: Sequence[str]) -> bool:
    """Whether a path or its name matches one of the patterns; without patterns each does."""
    return not patterns or any(fnmatchcase(path, one) or fnmatchcase(os.path.basename(path), one) for one in patterns)


def prepare(export: Export, progress: Progress = transfer.nothing) -> List[FileEntry]:
    """Make the folder ready; the files that it lacks. What a download that was cut off has brought stays, as far as
    it compares.
    """
    target = export.target
    try:
        there = sorted(os.listdir(target)) if os.path.lexists(target) else []
    except OSError as error:
        raise StoreError(*errors.explain(error, "use the folder", target, writing=True)) from error
    note = _read_note(target)
    lacking = list(export.entries)
    if there:
        if note is not None and note != _note(export):
            raise StoreError(
                errors.CONFLICT,
                f"{target} holds a part of checkpoint {note.get('id')} ({note.get('uri')}), whose download was cut "
                "off. Name another folder, or remove that one.",
            )
        lacking = _lacking(export, progress)
        if note is None and lacking:
            shown = ", ".join(there[:3]) + (f" and {len(there) - 3} more" if len(there) > 3 else "")
            raise StoreError(
                errors.CONFLICT,
                f"{target} is not empty ({shown}) and no download of this checkpoint. Name a folder that is new or "
                "empty.",
            )
    if lacking:
        _room(export, lacking)
        _write_note(export)
    return lacking


def download(export: Export, lacking: Sequence[FileEntry], progress: Progress) -> None:
    """Download and compare these files; the manifest last. Raises DamagedError naming the file."""
    stored.compare(export.store, export.prefix, lacking, export.target, progress)
    here = PathStore(export.target)
    manifest_key = f"{layout.RESERVED}/{layout.MANIFEST}"
    if export.whole and here.size(manifest_key) is None:
        here.put(manifest_key, export.manifest.dumps())
    here.delete(NOTE)


def _lacking(export: Export, progress: Progress) -> List[FileEntry]:
    here = PathStore(export.target)
    lacking: List[FileEntry] = []

    def look(entry: FileEntry) -> None:
        same = here.size(entry.path) == entry.size and here.checksum(entry.path, progress, entry.algorithm) == Stored(
            *entry[1:4]
        )
        if not same:
            lacking.append(entry)

    transfer.each(export.entries, look, here.at_once)
    return sorted(lacking)


def _room(export: Export, lacking: Sequence[FileEntry]) -> None:
    """Refuse at once what cannot fit. What lies there incomplete is written anew, so its blocks count as free."""
    try:
        os.makedirs(export.target, exist_ok=True)
        free = shutil.disk_usage(export.target).free
    except OSError as error:
        raise StoreError(*errors.explain(error, "make the folder", export.target, writing=True)) from error
    here = PathStore(export.target)
    needed = sum(e.size - min(e.size, here.size(e.path) or 0) for e in lacking)
    if needed > free:
        raise StoreError(
            errors.FULL,
            f"{export.target} has {free / 2**30:.1f} GiB free and the checkpoint needs {needed / 2**30:.1f} GiB. "
            "Free space there, or name a folder elsewhere.",
        )


def _note(export: Export) -> Dict[str, Any]:
    return {"id": str(export.manifest.id), "nonce": export.manifest.nonce, "uri": export.store.uri(export.prefix)}


def _read_note(target: str) -> Optional[Dict[str, Any]]:
    try:
        with open(os.path.join(target, NOTE), "rb") as file:
            found = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_note(export: Export) -> None:
    PathStore(export.target).put(NOTE, json.dumps(_note(export)).encode())
