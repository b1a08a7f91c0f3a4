"""Which file names a checkpoint can keep where it is going, told when it is staged: by then the user can still do
something about it.

Called by staging, for each file. Pure.
"""

from __future__ import annotations

from typing import Callable, Iterable, Optional

from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId

UNFINISHED = ".trainjob-tmp-"
"""How stores call what is being written: removed at each commit."""
KEY_LIMIT = 1024
"""Bytes of an S3 key."""
LISTING_LIMIT = 16 * 1024 * 1024
"""Bytes of a checkpoint's file names and sizes as JSON: some 200,000 files. Agents tell each other of them in one
message.
"""
NameProblem = Callable[[CheckpointId, str], Optional[str]]


def rule_for(storage: Optional[str]) -> NameProblem:
    """What is wrong with a path for a job that stores there (None: nowhere); the answer is the second half of a
    sentence, None when it is fine.
    """
    if storage is None or not storage.startswith("s3://"):
        return lambda _id, path: _everywhere(path)
    prefix = "/".join(storage.rstrip("/").split("/")[3:])
    return lambda id_, path: _everywhere(path) or _in_a_bucket(prefix, id_, path)


def listing_size(paths: Iterable[str]) -> int:
    """About the bytes of such a list."""
    return sum(len(path) + 16 for path in paths)


def too_many(count: int, size: int) -> str:
    """The sentence about a listing that is above LISTING_LIMIT."""
    return (
        f"the checkpoint has {count} files, whose names take {size / 2**20:.0f} MiB, more than the "
        f"{LISTING_LIMIT >> 20} MiB that a checkpoint's list may have. "
        "Save fewer, larger files (torch.save of one dict, a tar, sharded files of some 100 MiB)."
    )


def _everywhere(path: str) -> Optional[str]:
    if any(part.startswith(UNFINISHED) for part in path.split("/")):
        return (
            f"has a name that begins with {UNFINISHED}, by which storage knows unfinished files and removes them. "
            "Rename it."
        )
    return None


def _in_a_bucket(prefix: str, id_: CheckpointId, path: str) -> Optional[str]:
    try:
        length = len(f"{prefix}/{layout.file_key(id_, path)}".encode())
    except UnicodeEncodeError:
        return "has a name that is not UTF-8, which object stores do not know. Rename it."
    if length > KEY_LIMIT:
        return (
            f"would be stored under a key of {length} bytes; S3 allows {KEY_LIMIT}. Shorten its path, or the "
            "job's storage path."
        )
    return None
