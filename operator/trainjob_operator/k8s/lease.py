"""Who leads: a Lease that one replica holds and renews, timed by clocks alone that nobody sets.

Kept by `leading.py` in a thread of its own. A follower takes a Lease that has not changed for its whole duration *by
the follower's own clock*; a holder gives up RENEW_WITHIN_S after it *sent* its last good renewal, which is earlier.
Wall clocks are written for readers and never compared; the time of a
suspended machine counts, since others may lead meanwhile. What the leader does with its time is not this module's
business; on LeadershipLost the process must end.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol

from trainjob_operator.clock import Clock
from trainjob_operator.cluster import ClusterError, Conflict, Manifest, NotFound

DURATION_S = 15
"""A Lease that nobody renewed for so long may be taken."""
RENEW_WITHIN_S = 10.0
"""A holder whose last good renewal was sent so long ago leads no more."""
EVERY_S = 2.0
"""Between two renewals, and between a follower's looks (those with jitter)."""
AGAIN_S = 1.0
"""After a renewal that failed."""
CALL_S = 4.0
"""Longest wait for one call."""

_log = logging.getLogger(__name__)


class LeadershipLost(Exception):
    """Another replica leads or may lead soon: this process must end at once."""


class LeaseApi(Protocol):
    """What is needed of `kubeapi.Api`."""

    async def get(self, path: str) -> Manifest: ...
    async def create(self, path: str, body: Manifest) -> Manifest: ...
    async def replace(self, path: str, body: Manifest) -> Manifest: ...


class Leadership:
    """`await acquire()`, then `await hold()` beside the work, and `await release()` when the work is over."""

    def __init__(
        self, api: LeaseApi, namespace: str, name: str, identity: str, clock: Clock, rng: random.Random | None = None
    ) -> None:
        self._api = api
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._folder}/{name}"
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._clock = clock
        self._rng = rng or random.Random()
        self._lease: Manifest | None = None
        """The Lease as we wrote it last; None: we do not hold it."""
        self._renewed_at = 0.0
        self._seen: tuple[str, float] | None = None
        """Another's Lease: its version, and when we first saw it."""

    async def acquire(self) -> int:
        """Wait until the Lease is ours; the transition number, which only grows (see `first_transition`). An API
        that does not answer is waited for."""
        said = ""
        while True:
            try:
                async with asyncio.timeout(CALL_S):
                    why_not = await self._try_to_take()
                if why_not is None:
                    return self.transition
            except (ClusterError, TimeoutError) as error:
                why_not = f"the Lease cannot be read or taken: {error or 'no answer'}"
            if why_not != said:
                said = why_not
                _log.info("following: %s", why_not)
            await self._clock.sleep_until(self._clock.monotonic() + EVERY_S * self._rng.uniform(0.5, 1.0))

    async def hold(self, look: Callable[[], object] = lambda: None) -> None:
        """Renew until that fails for good. `look` is called before each renewal, and raises LeadershipLost when the
        Lease is of no use to this process. Raises LeadershipLost, and returns never.
        """
        trouble = "no renewal was tried"
        next_try = self._renewed_at + EVERY_S
        while True:
            ends = self._renewed_at + RENEW_WITHIN_S
            await self._clock.sleep_until(min(next_try, ends))
            now = self._clock.monotonic()
            self.check(trouble)
            look()
            next_try = now + EVERY_S
            try:
                async with asyncio.timeout(min(CALL_S, ends - now)):
                    await self._renew(now)
            except (ClusterError, TimeoutError) as error:
                next_try = self._clock.monotonic() + AGAIN_S
                trouble = str(error) or f"no answer within {CALL_S:.0f} s"
                _log.warning("the Lease was not renewed, trying again: %s", trouble)

    def check(self, trouble: str = "this process did not run") -> None:
        """The Lease is ours, and nobody may take it yet. Called in any thread. Raises LeadershipLost."""
        name, now = f"{self._namespace}/{self._name}", self._clock.monotonic()
        if self._lease is None:
            raise LeadershipLost(f"the Lease {name} is not held")
        if now >= self._renewed_at + RENEW_WITHIN_S:
            raise LeadershipLost(f"the Lease {name} was not renewed for {now - self._renewed_at:.0f} s: {trouble}")

    async def release(self) -> None:
        """Let another replica lead at once. Trouble is logged: then the others wait until the Lease has run out."""
        if self._lease is None:
            return
        lease, self._lease = self._lease, None
        released = {
            **lease,
            "spec": {
                **lease["spec"],
                "holderIdentity": "",
                "leaseDurationSeconds": 1,
                "renewTime": micro_time(self._clock.now()),
            },
        }
        try:
            async with asyncio.timeout(CALL_S):
                await self._api.replace(self._path, released)
        except (ClusterError, TimeoutError) as error:
            _log.warning("the Lease was not released, others wait %d s: %s", DURATION_S, error or "no answer")

    @property
    def transition(self) -> int:
        """The number of this leadership; 0: none."""
        return 0 if self._lease is None else int(self._lease["spec"]["leaseTransitions"])

    # --- Inside -------------------------------------------------------------------------------------------------------

    async def _try_to_take(self) -> str | None:
        """None when the Lease is ours now, else who is in the way."""
        sent_at = self._clock.monotonic()
        try:
            lease = await self._api.get(self._path)
        except NotFound:
            return await self._write(sent_at, self._create)
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder and holder != self._identity and not self._has_run_out(lease, spec):
            return f"{holder} leads"
        # Our own name: the process that this container ran before. It is over, so its Lease is taken at once, as a new
        # leadership.
        return await self._write(sent_at, lambda: self._take(lease, spec))

    def _has_run_out(self, lease: Manifest, spec: Manifest) -> bool:
        version, now = str(lease["metadata"]["resourceVersion"]), self._clock.monotonic()
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, now)
        return now - self._seen[1] >= max(1, int(spec.get("leaseDurationSeconds") or DURATION_S))

    async def _write(self, sent_at: float, write: Any) -> str | None:
        try:
            lease: Manifest = await write()
        except Conflict:
            return "another replica was faster"
        # Counted from before the request was sent: the others count from when they see the write.
        self._lease, self._renewed_at, self._seen = lease, sent_at, None
        return None

    async def _create(self) -> Manifest:
        now = self._clock.now()
        metadata = {"name": self._name, "namespace": self._namespace}
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": self._held(now, first_transition(now), now),
        }
        return await self._api.create(self._folder, body)

    async def _take(self, lease: Manifest, spec: Manifest) -> Manifest:
        now = self._clock.now()
        transition = int(spec.get("leaseTransitions") or 0) + 1
        return await self._api.replace(self._path, {**lease, "spec": self._held(now, transition, now)})

    def _held(self, now: datetime, transition: int, since: datetime) -> Manifest:
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": DURATION_S,
            "acquireTime": micro_time(since),
            "renewTime": micro_time(now),
            "leaseTransitions": transition,
        }

    async def _renew(self, sent_at: float) -> None:
        """Raises LeadershipLost when the Lease is another's, ClusterError when that is not known."""
        assert self._lease is not None, "hold() comes after acquire()"
        spec = {**self._lease["spec"], "renewTime": micro_time(self._clock.now())}
        try:
            self._lease = await self._api.replace(self._path, {**self._lease, "spec": spec})
        except NotFound:
            raise LeadershipLost(f"the Lease {self._namespace}/{self._name} was deleted") from None
        except Conflict:
            await self._adopt()
            return
        self._renewed_at = sent_at

    async def _adopt(self) -> None:
        """Somebody wrote the Lease: a reply of ours that was lost, an edit of its labels, or another leader."""
        try:
            lease = await self._api.get(self._path)
        except NotFound:
            raise LeadershipLost(f"the Lease {self._namespace}/{self._name} was deleted") from None
        spec = lease.get("spec") or {}
        if spec.get("holderIdentity") != self._identity or spec.get("leaseTransitions") != self.transition:
            raise LeadershipLost(
                f"the Lease {self._namespace}/{self._name} is held by {spec.get('holderIdentity') or 'nobody'} now"
            )
        # Not counted as a renewal: the next one goes out with this version.
        self._lease = lease


def first_transition(now: datetime) -> int:
    """The number that a new Lease begins with: minutes since 1970. Agents ignore words of a lower transition than
    they have heard, so a Lease that was deleted and made anew must not begin below the old one; an int32 holds it
    for 4000 years."""
    return max(1, int(now.timestamp() // 60))


def micro_time(moment: datetime) -> str:
    """metav1.MicroTime."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
