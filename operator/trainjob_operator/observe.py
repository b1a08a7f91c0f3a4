"""Builds one consistent look at a job: the object, its pods, its Service, and what its agents last said.

Called by the reconciler at the start of each turn; reads only and decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.cluster import Cluster, Conflict, JobKey, Manifest, NotFound
from trainjob_operator.core.model import AgentView, Observed, ServiceView
from trainjob_operator.core.naming import parse_slots, pod_name
from trainjob_operator.manifests import owned_by, pod_view, read_job

Views = Callable[[JobKey], Mapping[str, AgentView]]
"""What a job's agents last said, by pod UID."""


async def observe(cluster: Cluster, key: JobKey, views: Views, listening_since: datetime | None) -> Observed:
    """Look at a job. Raises NotFound when it is gone, UnreadableJob, Conflict when it changed meanwhile, any ClusterError.

    The job is read before and after its pods and must not have changed between: then each listed pod was created before this
    status was written or under it, and one whose slot is missing is missing for good. Without that, a change of leadership
    (the old leader's last write still on its way) could have a fresh pod taken for a left-over.
    """
    job = read_job(await cluster.get_job(*key))
    manifests, service = await asyncio.gather(cluster.list_pods(*key), _service(cluster, job))
    manifests += await _unlabelled(cluster, job, manifests)
    again = await cluster.get_job(*key)
    if again["metadata"]["resourceVersion"] != job.metadata.resource_version:
        raise Conflict(f"TrainJob {key[0]}/{key[1]} changed while its pods were listed")
    pods = tuple(sorted((pod_view(manifest, job) for manifest in manifests), key=lambda pod: (pod.slot, pod.name)))
    agents = views(key)
    heard = {pod.slot: replace(agents[pod.uid], slot=pod.slot) for pod in pods if pod.owned and pod.uid in agents}
    return Observed(job=job, pods=pods, service=service, agents=heard, listening_since=listening_since)


async def _service(cluster: Cluster, job: TrainJob) -> ServiceView | None:
    try:
        manifest = await cluster.get_service(*job.key)
    except NotFound:
        return None
    return ServiceView(name=job.metadata.name, owned=owned_by(manifest, job.metadata.uid))


async def _unlabelled(cluster: Cluster, job: TrainJob, listed: Iterable[Manifest]) -> list[Manifest]:
    """Pods that hold the name of a listed slot without carrying the job's label: nobody's list shows them, yet they refuse our create."""
    names = {manifest["metadata"]["name"] for manifest in listed}
    wanted = [pod_name(job.metadata.name, slot) for slot in parse_slots(job.status.slots)]
    missing = [name for name in wanted if name not in names]
    found = await asyncio.gather(*(_pod(cluster, job.metadata.namespace, name) for name in missing))
    return [manifest for manifest in found if manifest is not None]


async def _pod(cluster: Cluster, namespace: str, name: str) -> Manifest | None:
    try:
        return await cluster.get_pod(namespace, name)
    except NotFound:
        return None
