"""A job's headless Service as it should be: workers find each other by the names that it gives them.

The watch tells of them where it may (`known_services.py`); else one is read with a job's pods, and before an attempt
begins. Made or put right by `apply.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.cluster import Cluster, Conflict, Manifest, NotFound
from trainjob_operator.core.model import Event, ServiceView
from trainjob_operator.core.pods.objects import headless_service
from trainjob_operator.manifests import owned_by, owner_of, serves

Tell = Callable[[Event], None]

_OURS = ("selector", "ports", "publishNotReadyAddresses")
"""What of its spec counts, and can be changed."""


async def read_service(cluster: Cluster, job: TrainJob) -> Manifest | None:
    """The Service of the job's name; None: there is none."""
    try:
        return await cluster.get_service(*job.key)
    except NotFound:
        return None


def service_view(manifest: Manifest | None, job: TrainJob) -> ServiceView | None:
    """What counts of the Service of the job's name; None: there is none, or it is the job's and somebody has changed
    it.
    """
    name, uid = job.metadata.name, job.metadata.uid
    if manifest is None or (owned_by(manifest, uid) and _changed(manifest, job)):
        return None
    return ServiceView(name=name, owned=serves(manifest, name, uid))


def are_alike(one: Manifest | None, other: Manifest | None) -> bool:
    """Whether nothing that counts of a Service differs between two states."""
    return _what_counts(one) == _what_counts(other)


async def ensure_service(cluster: Cluster, job: TrainJob, tell: Tell) -> Manifest:
    """Make it, or put it right; as the API server answered. What others did to it is told. Raises any ClusterError but
    that it is there.
    """
    namespace, name = job.metadata.namespace, job.metadata.name
    try:
        made = await cluster.create_service(namespace, headless_service(job))
    except Conflict:
        return await _put_right(cluster, job, tell)
    if job.status.attempt is not None:
        tell(_restored(f"the Service {name} was deleted and is made again: workers find each other by it"))
    return made


async def _put_right(cluster: Cluster, job: TrainJob, tell: Tell) -> Manifest:
    """Ours alone: of somebody else's the next turn tells. As it is then."""
    namespace, name = job.metadata.namespace, job.metadata.name
    manifest = await cluster.get_service(namespace, name)
    changed = _changed(manifest, job)
    if not changed or not owned_by(manifest, job.metadata.uid):
        return manifest
    version = {"resourceVersion": manifest["metadata"]["resourceVersion"]}
    right = await cluster.patch_service(namespace, name, {"metadata": version, "spec": changed})
    fields = " and ".join(f"spec.{field}" for field in changed)
    tell(_restored(f"{fields} of the Service {name} was changed and is put right: workers find each other by it"))
    return right


def _what_counts(manifest: Manifest | None) -> object:
    if manifest is None:
        return None
    metadata, spec = manifest["metadata"], manifest.get("spec") or {}
    labels = metadata.get("labels") or {}
    return (
        metadata["uid"],
        owner_of(manifest),
        bool(metadata.get("ownerReferences")),
        [labels.get(name) for name in (contract.LABEL_JOB, contract.LABEL_MANAGED_BY)],
        [spec.get(field) for field in (*_OURS, "clusterIP")],
    )


def _changed(manifest: Manifest, job: TrainJob) -> Manifest:
    """The merge patch of its spec that makes it right; empty: it is."""
    spec, wanted = manifest.get("spec") or {}, headless_service(job)["spec"]
    patch: Manifest = {}
    for field in _OURS:
        now, right = spec.get(field), wanted.get(field)
        if isinstance(now, dict) and isinstance(right, dict) and now != right:
            patch[field] = {**dict.fromkeys(now.keys() - right.keys()), **right}
        elif (now or None) != (right or None):
            patch[field] = right
    return patch


def _restored(message: str) -> Event:
    return Event("Warning", contract.REASON_SERVICE_RESTORED, message)
