"""How a URI becomes a store. What an object store needs is imported with the first one."""

from __future__ import annotations

import os
from typing import Mapping, Optional

from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.stores.path_store import PathStore
from trainjob.checkpoint.stores.store import Store


def open_store(uri: str, retry_s: Optional[float] = None, environ: Optional[Mapping[str, str]] = None) -> Store:
    """The store of a job's folder: s3://bucket/folder, an absolute path, or file:// and one. Touches nothing. Raises
    StoreError for anything else.

    `retry_s`: how long an object store is tried, for callers that do not want to wait for it. `environ`: where its
    settings are read instead of this process's environment.
    """
    scheme = uri.split("://", 1)[0].lower() if "://" in uri else ""
    if scheme == "file":
        from urllib.parse import unquote, urlsplit  # here: it would be a tenth of the storage child's start

        return PathStore(unquote(urlsplit(uri).path))
    if scheme == "s3":
        from trainjob.checkpoint.stores.s3.store import S3Store

        return S3Store(uri, retry_s, environ)
    if scheme:
        raise StoreError(
            errors.INVALID,
            f"storage {uri!r}: {scheme}:// is not supported by this version. Give the absolute path of a folder that "
            "all workers mount, or s3://bucket/folder.",
        )
    if not os.path.isabs(uri):
        raise StoreError(
            errors.INVALID,
            f"storage {uri!r} is not an absolute path. Give one, for example {os.path.abspath(uri or 'checkpoints')}.",
        )
    return PathStore(uri)
