"""Events of jobs, not too many: a job that says much is cut to a steady trickle, and an event that cannot be written
harms nothing.

`recorded` puts a `Recorder` between `apply.py` and the cluster. An event's name follows from what it says
(`apply.event_manifest`), so that the cluster raises the count of one that is there: that is how the same words of one
job become one event.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, cast

from trainjob_operator.clock import Clock
from trainjob_operator.cluster import Cluster, ClusterError, Manifest

BURST = 20
"""Events of a job at once."""
EVERY_S = 10.0
"""One more after so long."""
JOBS_KEPT = 10_000
"""Jobs whose allowance is remembered; the one that was silent longest is forgotten first."""

_log = logging.getLogger(__name__)

Write = Callable[[str, Manifest], Awaitable[None]]
"""(namespace, event) -> written, or its count raised."""


class Recorder:
    """Writes events as long as their job has an allowance for them."""

    def __init__(self, write: Write, clock: Clock) -> None:
        self.written = 0
        self.withheld = 0
        """Events over a job's allowance."""
        self.failed = 0
        """Events that the API server did not take."""
        self._write = write
        self._clock = clock
        self._allowances: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """UID of a job -> (events left, as of when)."""

    async def record(self, namespace: str, event: Manifest) -> None:
        """Never raises ClusterError: what an event tells stands in the job's status too."""
        about = event["involvedObject"]
        if not self._may(str(about["uid"])):
            self.withheld += 1
            return
        try:
            await self._write(namespace, event)
        except ClusterError as error:
            self.failed += 1
            key = f"{namespace}/{about['name']}"
            _log.warning("%s: event %s was not written: %s", key, event.get("reason"), error, extra={"job": key})
        else:
            self.written += 1

    def _may(self, uid: str) -> bool:
        now = self._clock.monotonic()
        left, as_of = self._allowances.pop(uid, (float(BURST), now))
        left = min(float(BURST), left + (now - as_of) / EVERY_S)
        allowed = left >= 1.0
        self._allowances[uid] = (left - 1.0 if allowed else left, now)
        if len(self._allowances) > JOBS_KEPT:
            self._allowances.popitem(last=False)
        return allowed


def recorded(cluster: Cluster, recorder: Recorder) -> Cluster:
    """The cluster with its events gone through the recorder; every other verb is the cluster's own."""
    return cast(Cluster, _Recorded(cluster, recorder))


class _Recorded:
    def __init__(self, cluster: Cluster, recorder: Recorder) -> None:
        self._cluster = cluster
        self.create_event = recorder.record

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._cluster, verb)
