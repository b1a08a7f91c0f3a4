"""The errors of this package: one sentence each that says what happened, where, the likely cause and the next command.

`kind` is what callers act upon (and what the storage child sends); the text is for people.
"""

from __future__ import annotations

import errno
import os
from typing import Dict, Tuple

from trainjob.checkpoint.records import removable

UNREADABLE = "unreadable"
"""Storage cannot be read, or does not answer."""
READ_ONLY = "readonly"
"""Storage cannot be written: permissions, a read-only mount, no link()."""
FULL = "full"
DAMAGED = "damaged"
"""What is stored is not what was committed."""
LOST = "lost"
"""What was there is gone: a staged file, the storage folder."""
CONFLICT = "conflict"
"""Another file is stored under that name already."""
INVALID = "invalid"
"""The request cannot be met as it stands: resumeFrom names no checkpoint, an unknown scheme, a malformed request."""
CHANGED = "changed"
"""A file changed while it was staged."""
STOPPED = "stopped"
"""Nobody wants any more what was being staged."""
RETIRED = "retired"
"""Retention has removed, or is removing, the checkpoint."""
INTERNAL = "internal"


class CheckpointError(Exception):
    """Base: `kind` for code, the text for people."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class StoreError(CheckpointError):
    """Storage could not do what was asked."""


class StagingError(CheckpointError):
    """A rank's directory cannot be staged as it is."""


class DamagedError(StoreError):
    """A stored checkpoint does not verify; the text names the file, what was expected and what was found."""

    def __init__(self, message: str) -> None:
        super().__init__(DAMAGED, message)


_NEXT_SPACE = "Free space there (df -h {mount}){removable}; keep fewer checkpoints of this run (checkpoint.keep)."
_NEXT_RIGHTS = "Look at the rights (ls -ld {folder}), or name another folder."
_NEXT_MOUNT = "Look at the mount (findmnt -T {folder})."
_WRITING: Dict[int, Tuple[str, str, str]] = {
    errno.ENOSPC: (FULL, "the file system is full", _NEXT_SPACE),
    errno.EDQUOT: (FULL, "the quota is used up", _NEXT_SPACE),
    errno.EFBIG: (
        FULL,
        "the file is larger than this process or file system may write",
        "Look at the limit (ulimit -f).",
    ),
    errno.EROFS: (
        READ_ONLY,
        "the file system is mounted read-only",
        "Mount it writable, or name another folder (findmnt -T {folder}).",
    ),
    errno.EACCES: (READ_ONLY, "user {uid} may not write there", _NEXT_RIGHTS),
    errno.EPERM: (READ_ONLY, "user {uid} may not write there, or the file system cannot do this", _NEXT_RIGHTS),
    errno.ENOTDIR: (READ_ONLY, "a file is in the way of a folder", "Move it away (ls -ld {folder})."),
    errno.EISDIR: (READ_ONLY, "a folder is in the way of a file", "Move it away (ls -ld {path})."),
    errno.ENAMETOOLONG: (INVALID, "the name is longer than the file system allows", "Use a shorter name."),
    errno.EOPNOTSUPP: (READ_ONLY, "the file system cannot do this", "Name a folder on another file system."),
}
_READING: Dict[int, Tuple[str, str, str]] = {
    errno.EACCES: (UNREADABLE, "user {uid} may not read it", _NEXT_RIGHTS),
    errno.EPERM: (UNREADABLE, "user {uid} may not read it", _NEXT_RIGHTS),
}
_ALWAYS: Dict[int, Tuple[str, str, str]] = {
    errno.ENOENT: (LOST, "it was removed by something else", "Look at what is left (ls -la {folder})."),
    errno.ESTALE: (UNREADABLE, "the network file system no longer knows it", _NEXT_MOUNT),
    errno.EIO: (UNREADABLE, "the disk or the network file system fails", _NEXT_MOUNT),
}
_UNKNOWN = (UNREADABLE, "the file system refused", _NEXT_MOUNT)


def explain(error: OSError, doing: str, path: str, *, writing: bool, room: str = _NEXT_SPACE) -> Tuple[str, str]:
    """(kind, sentence) for a failed file operation. `doing` is an infinitive: "write", "read", "list". `room`: how more
    of it is made there, with {folder} or {mount}.
    """
    code = error.errno or 0
    folder = path if os.path.isdir(path) else os.path.dirname(path) or "/"
    while folder != os.path.dirname(folder) and not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    kind, cause, then = (_WRITING if writing else _READING).get(code) or _ALWAYS.get(code) or _UNKNOWN
    then = room if then is _NEXT_SPACE else then
    fields = {
        "folder": _quoted(folder),
        "mount": _quoted(_mount(folder)),
        "path": _quoted(path),
        "uid": os.geteuid(),
        "removable": removable.advice(path) if then is _NEXT_SPACE else "",
    }
    return (
        kind,
        f"cannot {doing} {path}: {error.strerror or error}; likely {cause.format(**fields)}. {then.format(**fields)}",
    )


def _mount(folder: str) -> str:
    """The file system that it is on: short, whatever lies deep below."""
    folder = os.path.realpath(folder)
    while not os.path.ismount(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder


def _quoted(path: str) -> str:
    return (
        path
        if path.replace("/", "").replace("-", "").replace("_", "").replace(".", "").isalnum()
        else "'" + path.replace("'", "'\\''") + "'"
    )
