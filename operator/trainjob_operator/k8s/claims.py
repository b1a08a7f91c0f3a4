"""Which namespaces this installation serves: a Lease in each, held in the installation's name.

Two installations may have the same namespace in view (one of the whole cluster, one for some namespaces). Both would
make pods of one job, each with its own coordinator. So nothing is done for a job of a namespace before its Lease is
held; who comes second stands back and says so. Called by the reconciler at each turn, kept by `__main__.py` on the
replica that leads: which replica that is, is another Lease's business (`lease.py`). Clocks are monotonic, as there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

from trainjob_api import contract
from trainjob_operator.clock import Clock
from trainjob_operator.cluster import ClusterError, Conflict, Manifest, NotFound
from trainjob_operator.k8s.kubeapi import segment
from trainjob_operator.k8s.lease import LeaseApi, micro_time

DURATION_S = 600
"""A Lease that nobody renewed for so long may be taken."""
RELY_S = 480.0
"""A holder whose last good renewal was sent so long ago does nothing more in the namespace."""
EVERY_S = 120.0
"""Between two renewals."""
AGAIN_S = 10.0
"""After one that failed."""
LOOK_S = 30.0
"""Another's Lease is looked at so often."""

_log = logging.getLogger(__name__)


@dataclass
class _Claim:
    """One namespace."""

    lease: Manifest | None = None
    """As we wrote it last; None: we do not hold it."""
    renewed_at: float = 0.0
    looked_at: float = 0.0
    holder: str = ""
    """Of another's."""
    seen: tuple[str, float] = ("", 0.0)
    """The version of another's, and when it was seen first."""


class Claims:
    """All namespaces. `installation` is `namespace/lease` of the replicas' own Lease: no other has the same."""

    def __init__(self, api: LeaseApi, installation: str, clock: Clock) -> None:
        self._api = api
        self._installation = installation
        self._clock = clock
        self._claims: dict[str, _Claim] = {}
        self._asking: dict[str, asyncio.Lock] = {}

    def holds(self, namespace: str) -> bool:
        """Whether the namespace is ours without asking anybody."""
        claim = self._claims.get(namespace)
        return claim is not None and claim.lease is not None and self._clock.monotonic() < claim.renewed_at + RELY_S

    async def served_by(self, namespace: str) -> str | None:
        """None: by us; else why not. Takes the Lease if it is free. Raises ClusterError when that is not known."""
        async with self._asking.setdefault(namespace, asyncio.Lock()):
            claim = self._claims.setdefault(namespace, _Claim())
            if self.holds(namespace):
                return None
            now = self._clock.monotonic()
            if not claim.holder or now >= claim.looked_at + LOOK_S:
                await self._take(namespace, claim, now)
        return self._told(namespace, claim)

    async def keep(self, wanted: Callable[[], Collection[str]]) -> None:
        """Renew what is held of the wanted namespaces, and give the others back. Returns never."""
        pause_s = EVERY_S
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + pause_s)
            there = set(wanted())
            good = [await self._renew(name, there) for name, claim in list(self._claims.items()) if claim.lease]
            pause_s = EVERY_S if all(good) else AGAIN_S

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _told(self, namespace: str, claim: _Claim) -> str | None:
        if claim.lease is not None:
            return None
        return (
            f"namespace {namespace} is served by the operator installation {claim.holder}, so {self._installation} "
            f"leaves its TrainJobs alone: let only one of them serve it. If the other is gone, delete Lease "
            f"{contract.CLAIM_LEASE} there, or wait {DURATION_S // 60} minutes"
        )

    async def _take(self, namespace: str, claim: _Claim, sent_at: float) -> None:
        folder, path = _paths(namespace)
        claim.looked_at, claim.lease = sent_at, None
        try:
            lease = await self._api.get(path)
        except NotFound:
            metadata = {"name": contract.CLAIM_LEASE, "namespace": namespace}
            new = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": metadata,
                "spec": self._spec({}),
            }
            self._hold(claim, await self._api.create(folder, new), sent_at)
            return
        spec = lease.get("spec") or {}
        holder = str(spec.get("holderIdentity") or "")
        version = str(lease["metadata"]["resourceVersion"])
        if claim.seen[0] != version:
            claim.seen = (version, sent_at)
        lasts_s = max(1, int(spec.get("leaseDurationSeconds") or DURATION_S))
        if holder not in ("", self._installation) and sent_at < claim.seen[1] + lasts_s:
            claim.holder = holder
            return
        self._hold(claim, await self._api.replace(path, {**lease, "spec": self._spec(spec)}), sent_at)

    def _hold(self, claim: _Claim, lease: Manifest, sent_at: float) -> None:
        # Counted from before the request was sent: others count from when they see the write.
        claim.lease, claim.renewed_at, claim.holder = lease, sent_at, ""

    async def _renew(self, namespace: str, wanted: Collection[str]) -> bool:
        """Whether the next renewal may wait its turn."""
        claim = self._claims[namespace]
        async with self._asking.setdefault(namespace, asyncio.Lock()):
            sent_at, lease = self._clock.monotonic(), claim.lease
            if lease is None:
                return True
            spec = self._spec(lease["spec"]) if namespace in wanted else {**lease["spec"], "holderIdentity": ""}
            try:
                written = await self._api.replace(_paths(namespace)[1], {**lease, "spec": spec})
            except (Conflict, NotFound):
                claim.lease = None  # deleted, or somebody else's: the next turn finds out
                return True
            except ClusterError as error:
                _log.warning("the Lease of namespace %s was not renewed, trying again: %s", namespace, error)
                return False
            if namespace in wanted:
                self._hold(claim, written, sent_at)
            else:
                del self._claims[namespace]
            return True

    def _spec(self, before: Manifest) -> Manifest:
        now = micro_time(self._clock.now())
        ours = before.get("holderIdentity") == self._installation
        return {
            "holderIdentity": self._installation,
            "leaseDurationSeconds": DURATION_S,
            "acquireTime": before.get("acquireTime", now) if ours else now,
            "renewTime": now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (0 if ours else 1),
        }


def _paths(namespace: str) -> tuple[str, str]:
    folder = f"/apis/coordination.k8s.io/v1/namespaces/{segment(namespace)}/leases"
    return folder, f"{folder}/{contract.CLAIM_LEASE}"
