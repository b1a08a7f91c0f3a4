"""The packed code in a job's folder: `tj submit` leaves it there where it is too large for a ConfigMap, the agent
brings it before ranks start.

Its key is `code/<SHA-256>.tar.gz`, so that the same code is stored once and what is unpacked is what was sent.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from typing import Any, Dict

from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import DamagedError, StoreError
from trainjob.checkpoint.stores.store import Store


def key_of(data: bytes) -> str:
    """Where it is put."""
    return f"code/{hashlib.sha256(data).hexdigest()}.tar.gz"


def leave(store: Store, data: bytes) -> bool:
    """Store it; False when it was there already. Raises StoreError."""
    key = key_of(data)
    if store.size(key) == len(data):
        return False
    store.put(key, data)
    return True


def unpack(store: Store, key: str, into: str) -> int:
    """Bring it into a folder, over what is there; the number of files. Raises StoreError, DamagedError."""
    data = store.read(key)
    if data is None:
        raise StoreError(errors.LOST, f"the code of this job is gone from {store.uri(key)}: submit the job again")
    if key_of(data) != key:
        raise DamagedError(f"the code of this job at {store.uri(key)} is not what was submitted: submit the job again")
    # Python 3.9.17, 3.10.12, 3.11.4 and later know it; what is unpacked was packed by the job's own user.
    safe: Dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(into, **safe)
        return len(archive.getmembers())
