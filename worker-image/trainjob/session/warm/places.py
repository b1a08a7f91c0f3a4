"""Modules that read a rank's place (RANK, LOCAL_RANK, ...) while they are imported: in a warm parent, which has none,
they would keep what is true of no rank.

Called by `preload` and `learned` around each import, and by `becoming` for those of which it is known what they keep.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import types
from collections.abc import KeysView
from typing import Any, Iterator, List, Mapping, Optional

from trainjob_api import contract

NAMES = frozenset(
    (
        contract.ENV_RANK,
        contract.ENV_LOCAL_RANK,
        contract.ENV_WORLD_SIZE,
        contract.ENV_LOCAL_WORLD_SIZE,
        contract.ENV_NODE_RANK,
        contract.ENV_MASTER_ADDR,
        contract.ENV_MASTER_PORT,
    )
)
KNOWN = {
    "lightning_fabric.utilities.rank_zero": contract.ENV_RANK,
    "lightning.fabric.utilities.rank_zero": contract.ENV_RANK,
    "torchmetrics.utilities.prints": contract.ENV_LOCAL_RANK,
}
"""Modules that keep this variable as `rank_zero_only.rank`, and nothing else of the kind."""
_IN_TMPDIR = ("TORCHINDUCTOR_CACHE_DIR",)
"""Variables that torch sets as it is imported, to a folder of TMPDIR that it makes when it is used. A process that is
kept for the next job has another TMPDIR than the ranks.
"""
_LOOKS_AT_ALL = frozenset(("fsspec.config", "git.cmd"))
"""Modules that go through the whole environment, for names of their own or for what they start at once, and keep none
of these.
"""
ALL = "all variables"
"""Read by who copies them, in which it would miss these: a parent has none."""
_BETWEEN = ("os", "_collections_abc", "collections.abc", __name__)


@contextlib.contextmanager
def watched(*, defaults: bool = True) -> Iterator[List[str]]:
    """Which of these are looked for meanwhile, but by those that may, through os.environ: get(), `in` and the rest end
    there. `defaults`: also by who sets what is missing, and may keep what is there.
    """
    read: List[str] = []
    plain = type(os.environ)

    class Keys(KeysView):  # type: ignore[type-arg]
        # What copies goes through them: dict(), `|`, copy(). Who looks for names of its own goes through items().
        def __iter__(self) -> Any:
            if not _may_read(_reader()):
                read.append(ALL)
            return super().__iter__()

    class Watched(plain):  # type: ignore[misc, valid-type]
        def keys(self) -> Any:
            return Keys(self)

        def __getitem__(self, name: Any) -> Any:
            if name in NAMES and not _may_read(_reader()):
                read.append(name)
            return super().__getitem__(name)

        def setdefault(self, name: Any, value: Any) -> Any:
            noted = len(read)
            found = super().setdefault(name, value)
            if not defaults:
                del read[noted:]
            return found

    os.environ.__class__ = Watched
    try:
        yield read
    finally:
        os.environ.__class__ = plain


def renew(environ: Mapping[str, str]) -> None:
    """In a rank with this environment: what KNOWN keep is its own, and what lies in TMPDIR is in its own."""
    for name in _IN_TMPDIR:
        folder, last = os.path.split(os.environ.get(name, ""))
        # The process that has imported it remembers its TMPDIR.
        if "TMPDIR" in environ and name not in environ and folder and folder == tempfile.tempdir:
            os.environ[name] = os.path.join(environ["TMPDIR"], last)
    for name, variable in KNOWN.items():
        only = getattr(sys.modules.get(name), "rank_zero_only", None)
        own = environ.get(variable, "")
        if only is not None and own.isdigit():
            only.rank = int(own)


def _may_read(module: str) -> bool:
    return module in KNOWN or module in _LOOKS_AT_ALL


def _reader() -> str:
    """The module that has asked."""
    frame: Optional[types.FrameType] = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__"))
