"""Storage that is away for a while: a file lies where the folder was. Each in one step of the kernel's: between two, whoever
stores there would make the folder anew.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def take_away(store: Path) -> None:
    """Nothing can be stored there; `bring_back` follows."""
    _aside(store).write_text("in the way")
    _exchange(store, _aside(store))


def bring_back(store: Path) -> None:
    """The folder, as it was taken away."""
    _exchange(store, _aside(store))
    _aside(store).unlink()


def _aside(store: Path) -> Path:
    return store.with_name(f"{store.name}-away")


def _exchange(one: Path, other: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one))
