"""The folder that an older torch (up to 2.9) makes in TMPDIR as it is imported, for modules that it writes, and takes
away at exit. A fork has one of its own, and nobody else's `sys.path` has it.

Renewed by `rank`. Asked by `warm`, which would call a process with it unfit to be forked, and by the launcher.
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


def renew() -> None:
    """In a fork whose environment is its own: its parent's stays with the parent."""
    module: Any = sys.modules.get(_MODULE)
    old: Any = _folder()
    if old is None:
        return
    atexit.unregister(old.cleanup)
    old._finalizer.detach()
    with contextlib.suppress(OSError):  # a full disk: torch writes there only for who asks for a RemoteModule
        own = tempfile.TemporaryDirectory()
        atexit.register(own.cleanup)
        setattr(module, _FOLDER, own)
        setattr(module, _PATH, own.name)
        sys.path[:] = [own.name if each == old.name else each for each in sys.path]


def _folder() -> Optional[tempfile.TemporaryDirectory[str]]:
    folder = getattr(sys.modules.get(_MODULE), _FOLDER, None)
    return folder if isinstance(folder, tempfile.TemporaryDirectory) else None
