"""Whether a folder that went is to be made anew. One that was removed is; one whose volume was unmounted is not: what
is written then fills the disk under the mount point, and is hidden once the volume is back.

Used by the path store, in a process that lives as long as the job does, and by a launcher. Told by the device on which
the folder was when this process saw it last.
"""

from __future__ import annotations

import os
from typing import Dict

from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StoreError

_devices: Dict[str, int] = {}


def remember(folder: str) -> bool:
    """On which volume it is now; whether it is there."""
    try:
        _devices[folder] = os.stat(folder).st_dev
        return True
    except OSError:
        return False


def is_unmounted(folder: str) -> bool:
    """The folder is not there, and what lies in its place is another volume than the one it was on. One that was never
    seen has no volume to miss.
    """
    if remember(folder):
        return False
    known = _devices.get(folder)
    return known is not None and _device_above(folder) not in (None, known)


def check(folder: str) -> None:
    """Raises StoreError rather than have the folder of an unmounted volume made anew."""
    if is_unmounted(folder):
        raise StoreError(
            errors.UNREADABLE,
            f"the storage folder {folder} is gone, and its volume with it: it was unmounted. Mount it again; the "
            "folder is not made anew on the disk below",
        )


def _device_above(folder: str) -> object:
    """Of the nearest folder above that is there; None: it does not say."""
    while folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
        try:
            return os.stat(folder).st_dev
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:  # a mount that does not answer
            return None
    return None
