"""pyarrow filesystems, as Ray's users have them beside a path: read by their names alone, made where one is asked for.

Called by `checkpoint`, `context` and the launcher's configuration. Must not need pyarrow, which few images have.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

_S3 = "s3://"
STORES = "paths (pyarrow.fs.LocalFileSystem) and S3 (pyarrow.fs.S3FileSystem)"


def is_stored_elsewhere(place: str) -> bool:
    """Whether this names a service that we do not store at, or s3:// with a slip: a folder `./s3:/bucket` would be made
    of it.
    """
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/|s3:", place)
    return scheme is not None and not place.startswith(("file://", "s3://"))


def located(path: str, filesystem: Any) -> str:
    """The path as we name it: of S3 an s3:// URI. Raises ValueError for a filesystem of another kind."""
    kind = str(getattr(filesystem, "type_name", type(filesystem).__name__)).lower()
    if kind == "subtree":
        below = f"{str(filesystem.base_path).rstrip('/')}/{path.lstrip('/')}"
        return located(below, filesystem.base_fs)
    if kind == "s3":
        return path if path.startswith(_S3) else _S3 + path.lstrip("/")
    if kind == "local":
        return path
    raise ValueError(f"a filesystem of the kind {kind!r} is none of {STORES}")


def of(path: str) -> Any:
    """A pyarrow filesystem that reads what lies there. Raises ImportError without pyarrow."""
    try:
        fs: Any = import_module("pyarrow.fs")
    except ImportError:
        raise ImportError(
            "the attribute `filesystem` needs pyarrow: pip install pyarrow. Without it: `path`, as_directory() and "
            "open() read what a checkpoint holds"
        ) from None
    return fs.S3FileSystem() if path.startswith(_S3) else fs.LocalFileSystem()
