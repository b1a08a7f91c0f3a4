"""The folder that an older torch (up to 2.9) makes in TMPDIR as it is imported, for modules that it writes, and takes
away at exit. The process that ranks are forks of has none: a fork has one of its own.

Taken away by `warm`, renewed by `rank`; nobody else's `sys.path` has it (`launch`).
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import tempfile
from typing import Any, Optional

_MODULE = "torch.distributed.nn.jit.instantiator"
_FOLDER, _PATH = "_TEMP_DIR", "INSTANTIATED_TEMPLATE_DIR_PATH"


def path() -> Optional[str]:
    """None: torch has none, or is not imported."""
    folder = _folder()
    return None if folder is None else folder.name


def take_away() -> None:
    """In a process that ranks will be forks of, once torch is imported: all that reads it has been imported too, and
    no exit of its own takes it away.
    """
    old = _folder()
    if old is not None:
        atexit.unregister(old.cleanup)
        with contextlib.suppress(OSError):
            old.cleanup()


def renew() -> None:
    """In a fork whose environment is its own."""
    module: Any = sys.modules.get(_MODULE)
    old: Any = _folder()
    if old is None:
        return
    with contextlib.suppress(OSError):  # a full disk: torch writes there only for who asks for a RemoteModule
        own = tempfile.TemporaryDirectory()
        atexit.register(own.cleanup)
        setattr(module, _FOLDER, own)
        setattr(module, _PATH, own.name)
        sys.path[:] = [own.name if each == old.name else each for each in sys.path]
    tempfile.tempdir = None  # which the script may still decide, as in a process of its own


def _folder() -> Optional[tempfile.TemporaryDirectory[str]]:
    folder = getattr(sys.modules.get(_MODULE), _FOLDER, None)
    return folder if isinstance(folder, tempfile.TemporaryDirectory) else None
