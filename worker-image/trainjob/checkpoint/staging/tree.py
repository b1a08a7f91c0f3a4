"""What lies in a directory that a rank gave: every file that a checkpoint of it consists of, or why it cannot be one.

Symbolic links that stay inside, or lead to what is kept (a restored checkpoint's may), are followed (the checkpoint
gets copies of their targets); links that leave, sockets, pipes and devices are refused; empty folders vanish; the
reserved folder `.trainjob` at the top (left from an earlier checkpoint) is passed over. Used by staging; reads, never
writes.
"""

from __future__ import annotations

import os
import stat
from typing import Iterator, List, NamedTuple, Sequence, Tuple

from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StagingError
from trainjob.checkpoint.records.layout import RESERVED


class TreeFile(NamedTuple):
    """A file of the tree: its path in the checkpoint, where its bytes are, and how it looked."""

    path: str
    source: str
    size: int
    mtime_ns: int
    linked: bool
    """Reached through a symbolic link or under several names: it must be copied, never moved."""


def scan(directory: str, ours: Sequence[str]) -> List[TreeFile]:
    """All files below `directory`, sorted by path; links may lead into these (real) folders too. Raises StagingError,
    naming the entry that is in the way.
    """
    root = os.path.realpath(directory)
    if not os.path.lexists(directory):
        raise StagingError(
            errors.LOST,
            f"checkpoint directory {directory} does not exist. Pass the directory that was just saved to "
            "Checkpoint.from_directory().",
        )
    if not os.path.isdir(root):
        raise StagingError(
            errors.INVALID,
            f"checkpoint directory {directory} is not a directory. Checkpoint.from_directory() takes the folder, not "
            "the file in it.",
        )
    return sorted(_walk((root, *ours), root, "", False, ()))


def _walk(
    roots: Tuple[str, ...], folder: str, prefix: str, linked: bool, above: Tuple[Tuple[int, int], ...]
) -> Iterator[TreeFile]:
    try:
        here = os.stat(folder)
        entries = list(os.scandir(folder))
    except OSError as error:
        raise StagingError(*errors.explain(error, "list", folder, writing=False)) from error
    key = (here.st_dev, here.st_ino)
    if key in above:
        raise StagingError(
            errors.INVALID,
            f"{folder}: a symbolic link there leads back to a folder above it. Remove the link before report().",
        )
    for entry in entries:
        if not prefix and entry.name == RESERVED:
            continue
        path = prefix + entry.name
        try:
            yield from _entry(roots, entry, path, linked, (*above, key))
        except OSError as error:
            raise StagingError(*errors.explain(error, "read", entry.path, writing=False)) from error


def _entry(
    roots: Tuple[str, ...], entry: os.DirEntry[str], path: str, linked: bool, above: Tuple[Tuple[int, int], ...]
) -> Iterator[TreeFile]:
    target = entry.path
    if entry.is_symlink():
        linked = True
        target = os.path.realpath(entry.path)
        if not any(target.startswith(root + os.sep) for root in roots):
            raise StagingError(
                errors.INVALID,
                f"{entry.path} is a symbolic link to {target}, outside the checkpoint directory {roots[0]}: it would "
                "be dead after a restore. Copy the file instead.",
            )
        if not os.path.lexists(target):
            raise StagingError(
                errors.INVALID,
                f"{entry.path} is a symbolic link to {target}, which does not exist. Remove the link before report().",
            )
    found = os.stat(target)
    if stat.S_ISDIR(found.st_mode):
        yield from _walk(roots, target, path + "/", linked, above)
    elif stat.S_ISREG(found.st_mode):
        yield TreeFile(path, target, found.st_size, found.st_mtime_ns, linked or found.st_nlink > 1)
    else:
        raise StagingError(
            errors.INVALID,
            f"{entry.path} is a {_kind(found.st_mode)}: only files can be kept in a checkpoint. Remove it before "
            "report().",
        )


def _kind(mode: int) -> str:
    for test, name in (
        (stat.S_ISSOCK, "socket"),
        (stat.S_ISFIFO, "pipe"),
        (stat.S_ISCHR, "device"),
        (stat.S_ISBLK, "device"),
    ):
        if test(mode):
            return name
    return "special file"
