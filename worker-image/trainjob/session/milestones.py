"""When this rank had its process group, had read its checkpoint, and made its first step: told to the agent when the
checkpoint was asked for, and with the first report() or log().

Called by the library's own functions, on their way: the clock is read a few times per attempt, and nothing of torch is
imported for it. A group that the script brings up itself is noticed by the next of these calls.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Optional

from trainjob.session import flight_recorder, imported
from trainjob_api.rank_messages import Begun

if TYPE_CHECKING:
    from trainjob.session.line import Line


class _Milestones:
    def __init__(self) -> None:
        self.group: Optional[float] = None
        self.restored: Optional[float] = None
        self.asked = False
        self.stepped = False


_mine = _Milestones()


def look() -> None:
    """Is there a process group by now?"""
    if _mine.group is not None or _mine.stepped:
        return
    distributed = sys.modules.get("torch.distributed")
    ready = getattr(distributed, "is_initialized", None)
    if ready is not None and ready():
        _mine.group = time.monotonic()
        flight_recorder.begin()


def restored() -> None:
    """A checkpoint was asked for, or a part of it read; the last one before the first step counts."""
    look()
    if not _mine.stepped:
        _mine.restored = time.monotonic()


def asked(line: Line) -> None:
    """The first get_checkpoint() is answered. Raises AgentLostError."""
    restored()
    if not _mine.stepped and not _mine.asked:
        _mine.asked = True
        line.post(Begun(None, _mine.group, _mine.restored))


def step(line: Line) -> None:
    """The first report() or log() of this rank. Raises AgentLostError."""
    if _mine.stepped:
        return
    look()
    _mine.stepped = True
    imported.tell()
    line.post(Begun(time.monotonic(), _mine.group, _mine.restored))


def reset() -> None:
    """For processes that are many ranks in a row."""
    global _mine
    _mine = _Milestones()
