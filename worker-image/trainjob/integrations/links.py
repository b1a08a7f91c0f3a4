"""The same file at another place."""

from __future__ import annotations

import os
import shutil


def link_or_copy(source: str, target: str) -> str:
    """A hard link where both are on one file system, else a copy; gives `target`, as `shutil.copytree` wants it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target
