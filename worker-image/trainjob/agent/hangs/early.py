"""When ranks are looked at before the limit, and what of the looks' proof is told. Pure.

Made by `watch`. A first look comes APART_S before a proof may be told; each further one is compared with the one
before it, and they become rarer: a look interrupts every rank for a moment.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from trainjob.agent.hangs.evidence import APART_S, Proof, proof
from trainjob.agent.hangs.inquiry import Answers
from trainjob.agent.hangs.silence import FLOOR_S, Silence

RARER = 1.4
"""Of the silence so far, to the next look."""
ACTS_S = 60.0
"""Ranks that all wait for each other for so long, and twice as long as it takes to say so, do not come back: this may
end the attempt. A network that stands still for a while does come back."""


class _Look(NamedTuple):
    since: float
    silent_s: float
    found: Answers


class Early:
    """One attempt's."""

    def __init__(self, silence: Silence) -> None:
        self._silence = silence
        self._last: Optional[_Look] = None

    def is_due(self, silent_s: float) -> bool:
        """Whether ranks are to be looked at now."""
        limit = self._silence.early
        if limit is None:
            return False
        last = self._last
        if last is None or last.since != self._silence.since:
            return silent_s >= limit - APART_S
        soonest = last.silent_s + APART_S
        if last.silent_s < limit:
            return silent_s >= max(limit, soonest)
        acts = self._acts_s(limit)
        return silent_s >= max(soonest, min(last.silent_s * RARER, acts if last.silent_s < acts else float("inf")))

    def looked(self, silent_s: float, found: Answers) -> Optional[Proof]:
        """What is to be told. `silent_s`: as it was when ranks were asked."""
        last, self._last = self._last, _Look(self._silence.since, silent_s, found)
        limit, alone = self._silence.early, self._silence.alone
        if last is None or last.since != self._silence.since or limit is None or alone is None or silent_s < limit:
            return None
        seen = proof(last.found, found)
        if seen is None or (seen.asleep and silent_s < max(alone, FLOOR_S if seen.sleeps else 0.0)):
            return None
        # A first step compiles, in autograd's thread too.
        return seen if seen.asleep or seen.rests or self._silence.has_pace else None

    def acts(self, seen: Proof, silent_s: float) -> bool:
        """Whether it may end the attempt where that is wished."""
        limit = self._silence.early
        return limit is not None and not seen.asleep and seen.rests and silent_s >= self._acts_s(limit)

    def _acts_s(self, limit: float) -> float:
        return max(ACTS_S, 2 * limit, self._silence.alone or 0.0)
