"""Where a rank stands, as it tells its agent itself: asked for by `tj stack`, and where a job hangs.

Said by `trainjob.session.answering`, read by the agent. Standard library only, Python 3.9.
"""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple

from trainjob_api.recorded_calls import Call
from trainjob_api.typed import Vocabulary


class Standing(NamedTuple):
    """One rank's, of one moment."""

    pid: int
    stacks: str
    """Of all its threads, the main one last; as faulthandler writes them."""
    calls: Optional[Tuple[Call, ...]] = None
    """Its last collectives, the oldest of each group first; None: it has no process group, or no record."""


STANDING: Vocabulary[Standing] = Vocabulary({"standing": Standing}, arrays=(Call,))
