"""Builds one consistent look at a job: the object, its pods, its Service, and what its agents last said.

Called by the reconciler, which knows by itself what the watch has told (`known.py`) and reads the rest here. Reads only
and decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.agents.last_words import with_last_words
from trainjob_operator.cluster import Cluster, Conflict, JobKey, Manifest, NotFound, Rejected, Unavailable
from trainjob_operator.core import make
from trainjob_operator.core.children import is_finished
from trainjob_operator.core.ends.silence import is_silent
from trainjob_operator.core.model import AgentView, Observed, PodView, ServiceView
from trainjob_operator.core.moments import aware
from trainjob_operator.core.obstacles import is_untold
from trainjob_operator.core.pods.naming import parse_slots, pod_name
from trainjob_operator.loop.services import read_service, service_view
from trainjob_operator.loop.side_by_side import side_by_side
from trainjob_operator.manifests import pod_view, read_job
from trainjob_operator.nodes import on_node, on_silent_node, why_taken
from trainjob_operator.pod_events import disruption_in, node_in, with_warnings

EVENTS_OF_PODS = 3
"""Pods whose events one look reads: what holds one up mostly holds up all."""
NODES = 8
"""Nodes that one look reads."""
UNKNOWN: Manifest = {}
"""Of a node nothing could be read."""

Views = Callable[[JobKey], Mapping[str, AgentView]]
"""What a job's agents last said, by pod UID."""


@dataclass(frozen=True)
class Served:
    """A job's Service, and how long ago it was read."""

    service: ServiceView | None
    age_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Sight:
    """A job and its children, before agents, events and nodes are asked about them."""

    job: TrainJob
    pods: tuple[PodView, ...]
    """In order."""
    service: ServiceView | None
    service_age_s: float = 0.0
    """How long ago `service` was read."""
    read: bool = False
    """Read from the API server just now, not as the watch told it."""
    went: Mapping[int, PodView] = field(default_factory=dict)
    """By slot: members' pods that are gone, as they were last."""


def in_order(pods: Iterable[PodView]) -> tuple[PodView, ...]:
    """As `Observed.pods` has them."""
    return tuple(sorted(pods, key=lambda pod: (pod.slot, pod.name)))


async def observe(
    cluster: Cluster,
    key: JobKey,
    views: Views,
    listening_since: datetime | None,
    now: datetime | None = None,
    taken: Collection[str] = (),
) -> Observed:
    """Read a job whole; see `read` and `complete`. Raises Conflict when it changed meanwhile."""
    job = read_job(await cluster.get_job(*key))
    sight, _ = await read(cluster, job, served_now(cluster, job), taken)
    await confirm(cluster, job)
    return await complete(cluster, sight, views, listening_since, now)


async def read(
    cluster: Cluster,
    job: TrainJob,
    served: Awaitable[Served],
    taken: Collection[str] = (),
    went: Collection[str] = (),
) -> tuple[Sight, list[Manifest] | None]:
    """The job's pods and its Service; and the pods as the list has them, None: there are others too, which no watch
    tells of. `taken`: names that creates found taken; `went`: names of pods that were deleted. Raises any ClusterError.

    If the job is the same after this (`confirm`, or a write that is bound to its resourceVersion), each of these pods
    was created before this status was written or under it, and one whose slot is missing is missing for good. Without
    that, a change of leadership (the old leader's last write still on its way) could have a fresh pod taken for a
    left-over.
    """
    manifests, found = await asyncio.gather(cluster.list_pods(*job.key), served)
    others = await _unlabelled(cluster, job, manifests, taken, went)
    pods = in_order(pod_view(manifest, job) for manifest in (*manifests, *others))
    sight = Sight(job=job, pods=pods, service=found.service, service_age_s=found.age_s, read=True)
    return sight, None if others else manifests


async def served_now(cluster: Cluster, job: TrainJob) -> Served:
    """The job's Service, read."""
    return Served(service_view(await read_service(cluster, job), job))


async def confirm(cluster: Cluster, job: TrainJob) -> None:
    """The job is still the one that was looked at. Raises Conflict, NotFound, any ClusterError."""
    again = await cluster.get_job(*job.key)
    if again["metadata"]["resourceVersion"] != job.metadata.resource_version:
        raise Conflict(f"TrainJob {job.key[0]}/{job.key[1]} changed while it was looked at")


async def complete(
    cluster: Cluster, sight: Sight, views: Views, listening_since: datetime | None, now: datetime | None = None
) -> Observed:
    """The look, with what agents said. With `now`, also with the events of pods that do not start, and the nodes of
    workers that are lost or silent.
    """
    job, pods, agents = sight.job, sight.pods, views(sight.job.key)
    if now is not None:
        pods = await _with_warnings(cluster, job, pods, now)
        silent = _silent(job, pods, agents, listening_since, now)
        ending = frozenset(uid for uid, view in agents.items() if view.draining)
        pods = await _on_their_nodes(cluster, job, pods, silent, ending)
    there = {pod.slot for pod in pods if pod.owned}
    went = {slot: pod for slot, pod in sight.went.items() if slot not in there}
    disruptions = await _disruptions(cluster, job, there, went) if now is not None else {}
    words = _words(pods, agents)
    return Observed(
        job=job,
        pods=pods,
        service=sight.service,
        agents=words,
        parted=_parted(job, pods, agents, went),
        went=went,
        disruptions=disruptions,
        listening_since=listening_since,
    )


def heard_since(seen: Observed, views: Views) -> Observed:
    """The same look, with what its agents say now."""
    heard = views(seen.job.key)
    return replace(seen, agents=_words(seen.pods, heard), parted=_parted(seen.job, seen.pods, heard, seen.went))


def _words(pods: tuple[PodView, ...], agents: Mapping[str, AgentView]) -> dict[int, AgentView]:
    heard = {pod.slot: _of_slot(agents[pod.uid], pod.slot) for pod in pods if pod.owned and pod.uid in agents}
    return with_last_words(heard, pods)


def _of_slot(view: AgentView, slot: int) -> AgentView:
    """Its pod says which slot it has. Mostly its agent says the same: of thousands no second view is made."""
    return view if view.slot == slot else replace(view, slot=slot)


def _parted(
    job: TrainJob, pods: Iterable[PodView], agents: Mapping[str, AgentView], went: Mapping[int, PodView]
) -> dict[int, AgentView]:
    """What members of the running attempt said before their pods were gone: that was between two looks."""
    attempt = job.status.attempt
    if attempt is None or attempt.state != "Running" or make.is_plain(attempt.make or make.of(job.spec)):
        return {}
    there = {pod.uid for pod in pods}
    gone = set(parse_slots(attempt.members)) - {pod.slot for pod in pods if pod.owned}
    heard = {
        view.slot: view
        for uid, view in agents.items()
        if view.slot in gone and uid not in there and view.attempt == attempt.number
    }
    said = with_last_words(heard, went.values())
    return {slot: view for slot, view in said.items() if view.attempt == attempt.number}


async def _unlabelled(
    cluster: Cluster, job: TrainJob, listed: Iterable[Manifest], taken: Collection[str], went: Collection[str]
) -> list[Manifest]:
    """Pods that hold the name of a listed slot without carrying the job's label: nobody's list shows them.

    Only two kinds are worth a call: one that refused our create, and that of a member of the running attempt,
    which may have lost its label. A pod that is missing because it could not be created yet, or that was deleted, is
    not asked for.
    """
    names = {manifest["metadata"]["name"] for manifest in listed}
    attempt = job.status.attempt
    members = parse_slots(attempt.members) if attempt is not None and attempt.state == "Running" else ()
    wanted = {pod_name(job.metadata.name, slot): slot in members for slot in parse_slots(job.status.slots)}
    suspects = {name for name, member in wanted.items() if (member and name not in went) or name in taken}
    missing = [name for name in wanted if name in suspects and name not in names]
    found = await side_by_side([_pod(cluster, job.metadata.namespace, name) for name in missing])
    return [manifest for manifest in found if manifest is not None]


def _pod(cluster: Cluster, namespace: str, name: str) -> Callable[[], Awaitable[Manifest | None]]:
    async def read() -> Manifest | None:
        try:
            return await cluster.get_pod(namespace, name)
        except NotFound:
            return None

    return read


async def _with_warnings(
    cluster: Cluster, job: TrainJob, pods: tuple[PodView, ...], now: datetime
) -> tuple[PodView, ...]:
    """The first few pods that have a node and tell nothing of why they do not start, with what their events tell."""
    listed = parse_slots(job.status.slots)
    untold = [pod for pod in pods if pod.slot in listed and is_untold(pod, now)][:EVENTS_OF_PODS]

    async def told(pod: PodView) -> PodView:
        try:
            return with_warnings(
                pod, await cluster.list_pod_events(job.metadata.namespace, pod.name, warnings_of=pod.uid)
            )
        except (Rejected, Unavailable):  # told less, decided the same
            return pod

    found = {pod.uid: pod for pod in await asyncio.gather(*(told(pod) for pod in untold))}
    return tuple(found.get(pod.uid, pod) for pod in pods)


def _silent(
    job: TrainJob,
    pods: Iterable[PodView],
    agents: Mapping[str, AgentView],
    listening_since: datetime | None,
    now: datetime,
) -> frozenset[str]:
    """UIDs of pods that should be heard and are not: their nodes may tell why."""
    if job.status.finished or job.spec.suspend:
        return frozenset()
    attempt = job.status.attempt
    running = attempt.make if attempt is not None and attempt.state == "Running" else None
    if make.is_plain(running or make.of_job(job)):
        # Nobody is heard there; but what should be gone and is not holds the next group, unless its node is dead.
        return frozenset(
            pod.uid for pod in pods if pod.owned and pod.node and pod.gone_by and pod.gone_by <= aware(now)
        )
    listed = parse_slots(job.status.slots)
    up = [
        pod
        for pod in pods
        if pod.owned and pod.slot in listed and pod.node and not pod.deleting and not is_finished(pod)
    ]
    return frozenset(pod.uid for pod in up if is_silent(pod, agents.get(pod.uid), listening_since, now))


async def _on_their_nodes(
    cluster: Cluster, job: TrainJob, pods: tuple[PodView, ...], silent: Collection[str], ending: Collection[str]
) -> tuple[PodView, ...]:
    """With what their nodes tell: members of the running attempt that were lost, or told to end (was that a
    preemption?), and pods that are silent.
    """
    attempt = job.status.attempt
    members = parse_slots(attempt.members) if attempt is not None and attempt.state == "Running" else ()
    theirs = [pod for pod in pods if pod.owned and pod.slot in members and pod.node and not pod.disrupted]
    lost = {pod.uid for pod in theirs if pod.deleting or is_finished(pod) or pod.uid in ending}
    names = sorted({pod.node for pod in pods if pod.node and pod.uid in (lost | set(silent))})[:NODES]
    nodes = dict(zip(names, await asyncio.gather(*(_node(cluster, name) for name in names)), strict=True))

    def told(pod: PodView) -> PodView:
        node = nodes.get(pod.node or "", UNKNOWN)
        if node is UNKNOWN:
            return pod
        if pod.uid in silent:
            return on_silent_node(pod, node)
        return on_node(pod, node) if pod.uid in lost and node is not None else pod

    return tuple(told(pod) for pod in pods)


async def _disruptions(
    cluster: Cluster, job: TrainJob, there: Collection[int], went: Mapping[int, PodView]
) -> dict[int, str]:
    """Of members of the running attempt whose pods are gone: what they told last, else what their nodes still tell,
    and of those whose last state nobody has seen, events.
    """
    attempt = job.status.attempt
    if attempt is None or attempt.state != "Running":
        return {}
    words = {slot: pod.disruption or "disruption" for slot, pod in went.items() if pod.disrupted}
    gone = [slot for slot in parse_slots(attempt.members) if slot not in there and slot not in words]

    async def told(slot: int) -> str | None:
        if slot in went:
            # Who takes a pod away marks it; a drain that deletes it instead has cordoned its node.
            return await taken_from(went[slot].node)
        try:
            events = await cluster.list_pod_events(job.metadata.namespace, pod_name(job.metadata.name, slot))
        except (Rejected, Unavailable):
            return None
        taken, name = disruption_in(events, attempt.started_at), node_in(events)
        # An API eviction leaves no event of its own; who drains a node has cordoned it.
        return taken if taken is not None else await taken_from(name)

    async def taken_from(name: str | None) -> str | None:
        node = UNKNOWN if name is None else await _node(cluster, name)
        return None if name is None or node is UNKNOWN else why_taken(name, node)

    asked = gone[:EVENTS_OF_PODS]
    texts = zip(asked, await asyncio.gather(*(told(slot) for slot in asked)), strict=True)
    return words | {slot: text for slot, text in texts if text is not None}


async def _node(cluster: Cluster, name: str) -> Manifest | None:
    """None: there is no such node."""
    try:
        return await cluster.get_node(name)
    except NotFound:
        return None
    except (
        Rejected,
        Unavailable,
    ):  # nodes may not be readable: then a lost pod is a lost pod, and a silent one is silent
        return UNKNOWN
