"""How many requests one job may make: token buckets by job. Used by the coordinator; pure, the caller brings the time.

A job that asks too often waits; nothing of another job does. A bucket grows with the pods that were seen, which must be
authenticated.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

RATE_PER_POD = 5.0
"""Requests a second: at rest an agent makes one in 20 s, with much progress one or two a second."""
BURST_PER_POD = 50.0
"""At once: a start or a restart takes about ten."""
SEEN_S = 60.0
"""A pod that was not seen for so long no longer counts; three long polls."""
KEPT = 10_000
"""Buckets that are remembered; a forgotten one is full again."""

K = TypeVar("K", bound=Hashable)


@dataclass
class _Bucket:
    filled_at: float
    tokens: float = 0.0
    pods: dict[str, float] = field(default_factory=dict)
    """When each was last seen."""

    def see(self, pod: str, now: float) -> None:
        """A new pod brings its share along."""
        if pod not in self.pods:
            self.pods = {name: seen for name, seen in self.pods.items() if now - seen <= SEEN_S}
            self.tokens += BURST_PER_POD
        self.pods[pod] = now

    def take(self, now: float) -> float:
        """0.0 and one token less, or the seconds until there is one."""
        rate = RATE_PER_POD * len(self.pods)
        self.tokens = min(BURST_PER_POD * len(self.pods), self.tokens + (now - self.filled_at) * rate)
        self.filled_at = now
        if self.tokens < 1.0:
            return (1.0 - self.tokens) / rate
        self.tokens -= 1.0
        return 0.0


class RateLimit(Generic[K]):
    """One bucket for each key."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[K, _Bucket] = OrderedDict()

    def admit(self, key: K, pod: str, now: float) -> float:
        """0.0 if a request of this pod may pass, else the seconds until one may."""
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(now)
            if len(self._buckets) > KEPT:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(key)
        bucket.see(pod, now)
        return bucket.take(now)
