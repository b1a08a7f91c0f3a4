"""What leaves `fit()` and ends the caller's script is printed with the caller's own frames: where Python prints it, by
`sys.excepthook`. Whoever catches it gets it as it was raised.

`trainer.py` calls `prepare` when something leaves `fit()`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from types import TracebackType

_OURS = frozenset(("trainjob", "trainjob_api", "trainjob_operator"))
_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
_CHAIN_LIMIT = 10


def prepare() -> None:
    """From now on what ends this process is printed so, by the hook that is there: Python's, torch's, or the
    caller's.
    """
    if not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook(sys.excepthook)


class _Hook:
    """Leaves our frames out of what a hook gets."""

    def __init__(self, shown: Callable[[type[BaseException], BaseException, TracebackType | None], object]) -> None:
        self._shown = shown

    def __call__(self, kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
        current: BaseException | None = error.with_traceback(tb)
        for _ in range(_CHAIN_LIMIT):
            if current is None:
                break
            current.__traceback__ = frames(current.__traceback__) or current.__traceback__
            current = current.__cause__ or current.__context__
        self._shown(kind, error, error.__traceback__)


def frames(tb: TracebackType | None, *, below: bool = False) -> TracebackType | None:
    """The traceback without our frames, and without those of libraries that we called (`below`: it is called by one
    that is left out).
    """
    if tb is None:
        return None
    frame = tb.tb_frame
    ours = str(frame.f_globals.get("__name__")).partition(".")[0] in _OURS
    out = ours or (below and _is_library(os.path.abspath(frame.f_code.co_filename)))
    rest = frames(tb.tb_next, below=out)
    return rest if out else TracebackType(rest, frame, tb.tb_lasti, tb.tb_lineno)


def _is_library(name: str) -> bool:
    return name.startswith(_STDLIB) or _INSTALLED.search(name) is not None
