"""The API server's clock beside ours: when a pod was made or got its node is told by its clock, and the rules hold that
against ours.

Kept by the look, and told at each what the API server's clock shows. A leader whose machine is an hour behind would
else give every pod an hour more, and one that is ahead would give it no time at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from trainjob_operator.core.model import PodView

APART_S = 5.0
"""The API server tells of whole seconds, and an answer takes its time: what is less counts as none."""


@dataclass
class ServerClock:
    """How far the two are apart."""

    _apart: timedelta = timedelta(0)
    """Ours minus its; it stays until it is another one, so that moments do not move to and fro."""

    def told(self, shows: datetime | None, ours: datetime) -> None:
        """What the API server's clock shows now; None: it has not told yet."""
        if shows is None:
            return
        apart = ours - shows
        if abs(apart - self._apart).total_seconds() >= APART_S:
            self._apart = apart if abs(apart).total_seconds() >= APART_S else timedelta(0)

    def by_ours(self, pods: tuple[PodView, ...]) -> tuple[PodView, ...]:
        """The pods, what the API server dated put by our clock."""
        return tuple(map(self._put, pods)) if self._apart else pods

    def _put(self, pod: PodView) -> PodView:
        moments = {name: getattr(pod, name) for name in ("created_at", "scheduled_at", "gone_by")}
        return replace(pod, **{name: moment and moment + self._apart for name, moment in moments.items()})
