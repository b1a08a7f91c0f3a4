"""The look that a turn acts on: what the watch has told, read from the API server where that may not be all, and what
is decided by it.

Called by the reconciler, once a turn. A turn that finds nothing to do reads nothing. What the watch has told whole is
enough to list a new slot, and to create its pod: whoever else has written the job has that write refused, and no pod of
that slot was made before it. Before something is made again that was listed earlier everything is read, and before
workers look each other up a Service that the watch does not tell of.
"""

from __future__ import annotations

from dataclasses import replace

from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.cluster import JobKey
from trainjob_operator.core.children import is_finished
from trainjob_operator.core.decide import decide
from trainjob_operator.core.model import CreatePod, Decision, EnsureService, Observed
from trainjob_operator.core.pods.naming import parse_slots
from trainjob_operator.loop.authority import authority_lost, strangers
from trainjob_operator.loop.known_job import READ_AGAIN_S, SERVICE_FRESH_S
from trainjob_operator.loop.means import Means
from trainjob_operator.loop.observe import Served, Sight, complete, confirm, read
from trainjob_operator.loop.remembered import Remembered
from trainjob_operator.loop.server_clock import ServerClock
from trainjob_operator.loop.services import read_service, service_view
from trainjob_operator.loop.status_writes import status_patch
from trainjob_operator.manifests import read_job


class Look:
    """One for all jobs."""

    def __init__(self, means: Means, remembered: Remembered) -> None:
        self._cluster, self._coordinator, self._clock = means.cluster, means.agents, means.clock
        self._remembered = remembered
        self._server_clock = ServerClock()

    async def decided(self, key: JobKey, ca: str | None) -> tuple[Observed, Decision]:
        """The look that the turn acts on, and what it decides. `ca`: the authority that agents are to trust.

        Raises NotFound, UnreadableJob, any ClusterError.
        """
        sight = self._remembered.known.sight(key, self._clock.monotonic()) or await self._read(key)
        if sight.service_age_s >= READ_AGAIN_S:
            sight = await self._with_service(sight)
        observed, decision = await self._decide(key, sight, ca)
        if sight.service_age_s >= SERVICE_FRESH_S and _begins(observed, decision):
            # The workers are about to look each other up by name.
            sight = await self._with_service(sight)
            observed, decision = await self._decide(key, sight, ca)
        if not sight.read and (_makes_again(observed, decision) or _blames_a_pod_that_stands(observed, decision)):
            sight = await self._read(key)
            observed, decision = await self._decide(key, sight, ca)
        if (decision.actions or decision.events) and not status_patch(observed.job, decision):
            await confirm(self._cluster, observed.job)
        return observed, decision

    async def _decide(self, key: JobKey, sight: Sight, ca: str | None) -> tuple[Observed, Decision]:
        now = self._clock.steady()
        self._remembered.meet(key, sight.job.metadata.uid)
        self._server_clock.told(self._cluster.shows(), now)
        pods = self._remembered.authority.with_strangers(key, self._server_clock.by_ours(sight.pods), ca)
        pods = self._remembered.leaving.with_notices(pods)
        sight = replace(sight, pods=pods)
        views, listening_since = self._coordinator.views, self._coordinator.listening_since
        seen = await complete(self._cluster, sight, views, listening_since, now)
        observed = self._remembered.creates[key].seen(seen, self._clock.monotonic(), self._clock.steady())
        self._remembered.suspects.look(observed.job, now)
        observed = replace(observed, marks=self._remembered.suspects.told(key[0], now))
        if _has_unlisted(observed):
            # Their agents are about to be told to end: not if another leader has listed them a moment ago.
            await confirm(self._cluster, observed.job)
        # What was seen is committed too: after a restart agents hear of the running attempt without a write.
        self._coordinator.commit(observed.job, observed.pods)
        observed = replace(observed, neighbours=self._remembered.neighbourhood.of(key))
        decision = decide(observed, self._clock.steady())
        strange = strangers(observed)
        if not {pod.uid for pod in strange} <= self._remembered.strangers.get(key, frozenset()):
            decision = replace(decision, events=(*decision.events, authority_lost(observed, strange)))
        return observed, decision

    async def _read(self, key: JobKey) -> Sight:
        """Everything as it is now."""
        with self._remembered.known.reading(key) as reading:
            job = self._remembered.known.job(key) if self._remembered.known.is_listed(key) else None
            job = job or read_job(await self._cluster.get_job(*key))
            taken, went = self._remembered.creates[key].taken, self._remembered.known.went(key)
            sight, listed = await read(self._cluster, job, self._served(job), taken, went)
            if listed is not None:
                reading.take(sight, listed, self._clock.monotonic())
            sight = reading.with_told(sight)
        return self._remembered.known.with_departed(sight)

    async def _served(self, job: TrainJob) -> Served:
        known = self._remembered.known.service(job, self._clock.monotonic())
        return known if known is not None else await self._served_now(job)

    async def _served_now(self, job: TrainJob) -> Served:
        service = await read_service(self._cluster, job)
        self._remembered.known.served(job.key, service, self._clock.monotonic())
        return Served(service_view(service, job))

    async def _with_service(self, sight: Sight) -> Sight:
        found = await self._served_now(sight.job)
        return replace(sight, service=found.service, service_age_s=found.age_s)


def _has_unlisted(observed: Observed) -> bool:
    listed = frozenset(parse_slots(observed.job.status.slots))
    return any(
        pod.owned and pod.slot not in listed and not pod.deleting and not is_finished(pod) for pod in observed.pods
    )


def _begins(observed: Observed, decision: Decision) -> bool:
    old, new = observed.job.status.attempt, decision.status.attempt
    return new is not None and new.state == "Running" and (old is None or old.number != new.number)


def _makes_again(observed: Observed, decision: Decision) -> bool:
    """Whether something is made that may be there and was not told of. A pod of a slot that the same write lists for
    the first time is not: nobody has made one before, and of two who take that slot one is refused.
    """
    listed = parse_slots(observed.job.status.slots)
    return any(
        isinstance(action, EnsureService) or (isinstance(action, CreatePod) and action.slot in listed)
        for action in decision.actions
    )


def _blames_a_pod_that_stands(observed: Observed, decision: Decision) -> bool:
    """Whether a failure is counted for a pod that is to go, as its agent told before the watch did: the pod itself may
    say that it is taken away.
    """
    failure, counted = decision.status.last_failure, decision.status.failures.counted
    if failure is None or failure.reason != contract.REASON_POD_LOST:
        return False
    stands = any(pod.name == failure.pod and not pod.deleting for pod in observed.pods)
    return stands and counted > observed.job.status.failures.counted
