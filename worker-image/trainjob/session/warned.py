"""Warnings of the library in the user's program, each once."""

from __future__ import annotations

import warnings
from typing import Optional, Set

_warned: Set[str] = set()


def once(text: str, key: Optional[str] = None) -> None:
    """Said of the line that called what calls this. `key`: by which it is known that it was said; absent: its begin."""
    key = text[:40] if key is None else key
    if key not in _warned:
        _warned.add(key)
        warnings.warn(text, stacklevel=3)


def clear() -> None:
    """All may be said again."""
    _warned.clear()
