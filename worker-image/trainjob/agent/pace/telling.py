"""A member: what its ranks say of their pace goes to rank 0's agent, with what the kernel says of them, in one message
for all that tell within a second.

Made by `member`. What is lost with a connection is told by the next window.
"""

from __future__ import annotations

import asyncio
from math import hypot
from typing import Callable, Dict, Optional

from trainjob.agent.pace.held import Held
from trainjob.agent.wire.from_member import PaceOf, PacesAre
from trainjob_api.rank_messages import Paced

TOGETHER_S = 1.0


class Telling:
    """One per attempt."""

    def __init__(self, place: Callable[[], str], send: Callable[[PacesAre], None]) -> None:
        """`place`: the node of this worker, or its pod."""
        self.held = Held()
        self._place = place
        self._send = send
        self._waiting: Dict[int, PaceOf] = {}
        self._timer: Optional[asyncio.TimerHandle] = None

    def came(self, rank: int, word: Paced) -> None:
        """From one of our ranks."""
        loop = asyncio.get_running_loop()
        kept = self.held.take(loop.time(), rank)
        noise_s = hypot(word.noise_s, kept.noise * word.step_s)
        shares = (round(each, 4) for each in (kept.queued, kept.stopped, kept.disk))
        self._waiting[rank] = PaceOf(*word._replace(noise_s=noise_s), *shares)
        if self._timer is None:
            self._timer = loop.call_later(TOGETHER_S, self._tell)

    def close(self) -> None:
        """The attempt is over here."""
        if self._timer is not None:
            self._timer.cancel()

    def _tell(self) -> None:
        self._timer = None
        told, self._waiting = self._waiting, {}
        self._send(PacesAre(told, self._place()))
