"""How many requests one pod may make: a token bucket each. Used by the coordinator; pure, the caller brings the time.

A pod that asks too often waits; nobody else does, not even of its own job: what a large job may ask in all is no one
pod's to use up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

RATE_PER_POD = 5.0
"""Requests a second: at rest an agent makes one in 20 s, with much progress one or two a second."""
BURST_PER_POD = 50.0
"""At once: a start or a restart takes about ten."""
ROUNDING = 1e-6
"""Of a token: who waits for as long as it was told must not be told to wait for no time at all."""
KEPT = 50_000
"""Buckets that are remembered; a forgotten one is full again."""

K = TypeVar("K", bound=Hashable)


class RateLimit(Generic[K]):
    """One bucket for each key."""

    def __init__(self, rate: float = RATE_PER_POD, burst: float = BURST_PER_POD) -> None:
        self._rate = rate
        self._burst = burst
        self._buckets: OrderedDict[K, tuple[float, float]] = OrderedDict()
        """(tokens, as of when), the one that was not seen for longest first."""

    def admit(self, key: K, now: float) -> float:
        """0.0 if a request may pass, else the seconds until one may."""
        tokens, filled_at = self._buckets.pop(key, (self._burst, now))
        tokens = min(self._burst, tokens + (now - filled_at) * self._rate)
        admitted = tokens >= 1.0 - ROUNDING
        self._buckets[key] = (tokens - 1.0 if admitted else tokens, now)
        if len(self._buckets) > KEPT:
            self._buckets.popitem(last=False)
        return 0.0 if admitted else (1.0 - tokens) / self._rate

    def give_back(self, key: K) -> None:
        """The request that was admitted last was not made."""
        tokens, filled_at = self._buckets[key]
        self._buckets[key] = (min(self._burst, tokens + 1.0), filled_at)
