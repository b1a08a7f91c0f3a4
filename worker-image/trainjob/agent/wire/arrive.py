"""What every member says in every collective: that its ranks wait. Mostly in a form of its own.

Rank 0's agent reads hundreds of these while all ranks of the job stand still. One that has more to say than a few
numbers (rank 0's row, metadata, ranks that called differently) travels as JSON, like all other messages.
"""

from __future__ import annotations

import math
import struct
from typing import Mapping, NamedTuple, Optional, Tuple

from trainjob_api import contract
from trainjob_api.typed import BadMessage, Object

TAG = b"A"
_FORM = struct.Struct(">cIBBBIHddq")
"""Tag, n, kind, mode, flags, first rank, how many, waited, time-out, step."""
_KINDS = tuple(contract.KINDS)
_MODES = (None, *contract.UPLOAD_MODES)
_STOP, _TIMEOUT, _STEP = 1, 2, 4


class Callers(NamedTuple):
    """Ranks of one agent that have called alike, in ascending order."""

    ranks: Tuple[int, ...]
    timeout_s: Optional[float] = None
    mode: Optional[str] = None
    """Upload mode of the checkpoints that they bring; None: they bring none."""
    stop: bool = False
    step: Optional[int] = None
    """Of a report(): the one that they give."""

    def check(self) -> None:
        """Raises ValueError."""
        if not self.ranks or min(self.ranks) < 0:
            raise ValueError("callers without ranks")
        if self.mode not in (None, *contract.UPLOAD_MODES):
            raise ValueError(f"no upload mode: {self.mode!r:.40}")


class Arrive(NamedTuple):
    """Ranks of one agent wait in collective `n`: all of them in one message, unless one of them keeps the others
    waiting. The blob of a broadcast.
    """

    n: int
    kind: str
    callers: Tuple[Callers, ...]
    waited_s: float
    """How long the first of them has waited for the others here."""
    row: Optional[Object] = None
    """What rank 0 reported, if it is among them: {metrics, step, total_steps, epoch}."""
    metadata: Mapping[int, Object] = {}
    """Of the checkpoint of the lowest rank that brings one with metadata: no other counts."""
    world_size: Optional[int] = None
    """Under a launcher: as its ranks were told."""
    blob: bytes = b""
    wanted: Mapping[int, Object] = {}
    """The metrics of each rank that reports, where somebody follows those of all ranks."""

    def check(self) -> None:
        """Raises ValueError."""
        if self.kind not in contract.KINDS:
            raise ValueError(f"no collective: {self.kind!r:.40}")


def packed(word: Arrive) -> Optional[bytes]:
    """As it is sent, if it is one of these."""
    if len(word.callers) != 1 or word.row is not None or word.world_size is not None:
        return None
    if word.metadata or word.blob or word.wanted:
        return None
    ranks, timeout_s, mode, stop, step = word.callers[0]
    if word.kind not in _KINDS or mode not in _MODES or ranks != tuple(range(ranks[0], ranks[0] + len(ranks))):
        return None
    flags = stop * _STOP | (timeout_s is not None) * _TIMEOUT | (step is not None) * _STEP
    kind, mode_number = _KINDS.index(word.kind), _MODES.index(mode)
    try:
        return _FORM.pack(
            TAG, word.n, kind, mode_number, flags, ranks[0], len(ranks), word.waited_s, timeout_s or 0.0, step or 0
        )
    except struct.error:  # a number that has no room here
        return None


def parsed(blob: bytes) -> Arrive:
    """The reverse. Raises BadMessage."""
    if len(blob) != _FORM.size:
        raise BadMessage(f"an arrival of {len(blob)} bytes, where {_FORM.size} make one")
    _, n, kind, mode, flags, first, count, waited_s, timeout_s, step = _FORM.unpack(blob)
    if kind >= len(_KINDS) or mode >= len(_MODES) or not count or not math.isfinite(waited_s + timeout_s):
        raise BadMessage("an arrival of an unknown kind, without ranks, or with a time that is no number")
    callers = Callers(
        tuple(range(first, first + count)),
        timeout_s if flags & _TIMEOUT else None,
        _MODES[mode],
        flags & _STOP != 0,
        step if flags & _STEP else None,
    )
    return Arrive(n, _KINDS[kind], (callers,), waited_s)
