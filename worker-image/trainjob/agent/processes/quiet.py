"""Whose traceback a user reads first: that of the rank that broke, not those of the ranks that lost it. Pure.

Fed by `output` with the lines that a rank prints, by `crew` with what the rank and others say. A traceback is held
until it is known what it speaks of, or a short time is over; a lost peer is no cause if another rank has one to offer.
It is then left to the rank's log file. Whatever else there is to say is shown: in doubt, all of it.
"""

from __future__ import annotations

import re
from typing import List, Optional

HOLD_S = 1.0
"""How long a traceback waits for the rank's own word about it."""
LOST_S = 5.0
"""How long one of a lost peer waits for the word of who was lost."""
HELD_LINES = 400
"""More are shown at once."""
_BEGINS = re.compile(rb"(\[rank\d+\]:\s?)?Traceback \(most recent call last\):")


class Quiet:
    """One rank's lines on their way to the console."""

    def __init__(self) -> None:
        self._held: List[bytes] = []
        self._silent = False
        self._speaks_of_a_peer: Optional[bool] = None
        self._lost: Optional[str] = None

    @property
    def holds(self) -> bool:
        """Whether lines wait here."""
        return bool(self._held)

    def take(self, lines: List[bytes]) -> List[bytes]:
        """The rank printed these; what is to be shown now."""
        if self._silent:
            return []
        if self._held:
            self._held += lines
            return self.release() if len(self._held) > HELD_LINES else []
        at = next((at for at, line in enumerate(lines) if _BEGINS.match(line)), None)
        if at is None or self._speaks_of_a_peer is False:
            return lines
        self._held = lines[at:]
        return lines[:at] + self._judge()

    def told(self, speaks_of_a_peer: bool) -> List[bytes]:
        """The rank's own word about the exception that ends it."""
        self._speaks_of_a_peer = speaks_of_a_peer
        return self._judge() if speaks_of_a_peer else self.release()

    def lost(self, whom: str) -> List[bytes]:
        """`rank 1`, another, broke, and not because it lost somebody."""
        self._lost = self._lost or whom
        return self._judge()

    def due(self, after_s: float) -> List[bytes]:
        """So long after lines began to be held."""
        return [] if self._speaks_of_a_peer and after_s < LOST_S else self.release()

    def ended(self) -> List[bytes]:
        """The rank prints no more."""
        return [] if self._speaks_of_a_peer else self.release()

    def release(self) -> List[bytes]:
        """All that is held."""
        held, self._held = self._held, []
        return held

    def _judge(self) -> List[bytes]:
        if not (self._held and self._speaks_of_a_peer and self._lost):
            return []
        self._held, self._silent = [], True
        return [f"stopped: it lost {self._lost}".encode()]
