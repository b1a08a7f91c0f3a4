"""Tries what a commit needs of an object store, before training starts: write, read back, refuse a second writer,
refuse a wrong checksum, list.

Called by `S3Store.probe`. Each failure is one sentence; what the requests themselves cannot do is worded by `errors`.
"""

from __future__ import annotations

import os
from typing import Callable

from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.records import names
from trainjob.checkpoint.stores import digest
from trainjob.checkpoint.stores.store import Store
from trainjob_api import contract

Refuses = Callable[[str, bytes, int], bool]
"""Of (key, data, a checksum that is not theirs): whether the store refuses to write it."""


def probe(store: Store, endpoint: str, refuses: Refuses) -> None:
    """Leaves nothing behind. Raises StoreError."""
    # A folder of its own: what is listed must not grow with what the job has stored.
    folder = f"{names.UNFINISHED}probe-{os.urandom(6).hex()}"
    key = f"{folder}/probe"
    data = b"probe " + key.encode()
    where = f"the store at {endpoint}"
    made = False
    try:
        made = store.create(key, data)
        if not made:
            raise StoreError(
                errors.READ_ONLY,
                f"{where} said that {store.uri(key)}, a random name, is taken: it cannot be relied upon",
            )
        if store.create(key, data + b"!"):
            raise StoreError(
                errors.READ_ONLY,
                f"{where} overwrites objects in spite of If-None-Match: two writers would destroy each other's "
                "checkpoints. Use a store (or a newer version of "
                "it) that knows conditional writes.",
            )
        if store.read(key) != data:
            raise StoreError(errors.UNREADABLE, f"{where} did not give back what was just written to {store.uri(key)}")
        if key not in store.sizes(folder):
            raise StoreError(
                errors.UNREADABLE,
                f"{where} does not list {store.uri(key)}, which was just written: it must list consistently",
            )
        store.unfinished(folder)
        if not refuses(f"{key}-wrong", data, digest.update(store.algorithm, data) ^ 1):
            store.delete(f"{key}-wrong")
            raise _unchecked(store.algorithm, where)
    finally:
        if made:
            store.delete(key)


def _unchecked(algorithm: str, where: str) -> StoreError:
    other = next(name for name in digest.ALGORITHMS if name != algorithm)
    return StoreError(
        errors.READ_ONLY,
        f"{where} took an object whose {algorithm} checksum is wrong: what is damaged on its way would be stored. "
        f"Try {contract.ENV_S3_CHECKSUM}={other}, or use a store that checks.",
    )
