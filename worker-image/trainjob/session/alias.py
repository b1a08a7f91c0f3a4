"""`report(checkpoint_dir_name=...)`: a checkpoint's folder by a name of the user's, as Ray Train has it.

The folder itself is named by run, attempt and number, so that none is ever overwritten; the name is a link to it in the
job's folder. Made by rank 0, on a path alone: a bucket has no links. Called by `calls`.
"""

from __future__ import annotations

import os
from typing import List, Optional

_FOLDER = "checkpoints"
_TAKEN = (_FOLDER, "runs", "history", "output", "uploads")
_AHEAD = 4
"""A link may be that many checkpoints ahead of what is stored; older ones without a folder are of removed ones."""


def refusal(name: object) -> Optional[str]:
    """Why this is no name; None: it is one."""
    if not isinstance(name, str) or not name or name in (".", "..") or os.sep in name:
        return f"checkpoint_dir_name={name!r} must be the name of a folder, without {os.sep}"
    if name in _TAKEN or name.startswith("."):
        return f"checkpoint_dir_name={name!r} is a name of the job's own folder: take another one"
    return None


def possible(storage: Optional[str]) -> bool:
    """Whether the job's storage has links."""
    return storage is not None and "://" not in storage


def link(storage: str, name: str, id_: str) -> None:
    """Make it, or let it be of the newer checkpoint; links whose checkpoints were removed go. Raises OSError, and
    FileExistsError for a name that something else has.
    """
    path = os.path.join(storage, name)
    if os.path.lexists(path) and not os.path.islink(path):
        raise FileExistsError(f"{path} is there already and is no name of a checkpoint")
    part = f"{path}.{os.getpid()}.part"
    os.symlink(os.path.join(_FOLDER, id_), part)
    os.replace(part, path)
    for entry in os.scandir(storage):
        if entry.is_symlink() and not os.path.exists(entry.path):
            folder, _, of = os.readlink(entry.path).rpartition(os.sep)
            if folder == _FOLDER and not _may_come(of, id_):
                os.unlink(entry.path)


def _may_come(id_: str, newest: str) -> bool:
    """Whether it may be that it is only not stored yet. What an attempt before has left is stored by this one."""
    one, other = _place(id_), _place(newest)
    if one is None or other is None or one[0] != other[0] or one[1] > other[1]:
        return False
    return other[2] - (one[2] if one[1] == other[1] else 0) < _AHEAD


def _place(id_: str) -> Optional[List[int]]:
    parts = id_.split("-")
    return [int(part) for part in parts] if len(parts) == 3 and all(part.isdigit() for part in parts) else None
