"""For tests that read checkpoints: one committed checkpoint with files of the test's choice, and a way to damage it
behind the store's back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support import s3
from support.checkpoint import note_of, write_tree
from trainjob.checkpoint.publishing.shares import Share, commit, share
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.manifest import ReleaseNote
from trainjob.checkpoint.stores.store import Store


def committed(
    store: Store, staged: Path, files: Mapping[str, tuple[bytes, int]], id_: str = "1-1-1", **fields: Any
) -> str:
    """Commit files {path: (bytes, rank)}; the checkpoint's URI. `staged` is a folder that may be filled."""
    note = note_of(id_, {path: (len(data), rank) for path, (data, rank) in files.items()}, **fields)
    write_tree(staged, {path: data for path, (data, _) in files.items()})
    store_shares(store, staged, note)
    assert commit(store, note, f"nonce-{id_}").manifest is not None
    return store.uri(layout.folder(CheckpointId.parse(id_)))


def store_shares(store: Store, staged: Path, note: ReleaseNote) -> None:
    """Every rank's share, as the agents store them before the commit."""
    for rank in note.ranks:
        share(store, Share(note.id, rank, str(staged), note.share_of(rank)["files"]))


def overwrite(uri: str, path: str, data: bytes | None) -> None:
    """Something else changes (or removes) a stored file."""
    if not uri.startswith("s3://"):
        target = Path(uri, path)
        target.unlink()
        if data is not None:
            target.write_bytes(data)
        return
    bucket, _, prefix = uri[len("s3://") :].partition("/")
    names = {"Bucket": bucket, "Key": f"{prefix}/{path}"}
    client = s3.client(os.environ["AWS_ENDPOINT_URL_S3"])
    if data is None:
        client.delete_object(**names)
    else:
        client.put_object(**names, Body=data)
