"""What is written into a job's status, and how: a merge patch of what differs, bound to the version that was looked at.

Called by `apply` and the progress writer, and by the reconciler for a job that nobody can read.
"""

from __future__ import annotations

from datetime import datetime

from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.cluster import Cluster, Manifest
from trainjob_operator.core.model import Decision
from trainjob_operator.manifests import UnreadableJob, read_job


async def write_status(cluster: Cluster, job: TrainJob, decision: Decision) -> TrainJob:
    """Write the status if it differs; the job as committed. Raises Conflict when somebody wrote it since."""
    patch = status_patch(job, decision)
    if not patch:
        return job
    return read_job(await cluster.patch_job_status(*job.key, job.metadata.resource_version, patch))


def status_patch(job: TrainJob, decision: Decision) -> Manifest:
    """What is to be written; empty: nothing."""
    if decision.status == job.status:
        return {}
    # The first write carries the zeros too: what `kubectl get` shows of a healthy job is a 0, not an empty column.
    before = job.status.to_json() if job.status.conditions else {}
    return merge_patch(before, decision.status.to_json())


def merge_patch(old: Manifest, new: Manifest) -> Manifest:
    """The JSON merge patch (RFC 7386) that makes `new` of `old`; empty when they are equal."""
    patch: Manifest = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            inner = merge_patch(before, value)
            if inner:
                patch[name] = inner
        elif name not in old or before != value:
            patch[name] = value
    return patch


async def report_unreadable(cluster: Cluster, error: UnreadableJob, now: datetime) -> None:
    """Tell on a stored job that does not fit the models what is wrong with it, and touch nothing else of it.

    Its pods and agents are left as they are: what it is to be nobody can say. Raises what the cluster raises.
    """
    metadata, status = error.manifest["metadata"], error.manifest.get("status")
    kept = status.get("conditions") if isinstance(status, dict) else None
    conditions = (
        [dict(condition) for condition in kept if isinstance(condition, dict)] if isinstance(kept, list) else []
    )
    if any(
        condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True"
        for condition in conditions
    ):
        return
    old = next((condition for condition in conditions if condition.get("type") == "ResourcesCreated"), {})
    told = {
        "status": "False",
        "reason": contract.REASON_INVALID_SPEC,
        "message": error.problem[: contract.MESSAGE_LIMIT],
    }
    if all(old.get(field) == value for field, value in told.items()):
        return
    since = old.get("lastTransitionTime") if old.get("status") == "False" else None
    new = {
        "type": "ResourcesCreated",
        **told,
        "lastTransitionTime": since or now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "observedGeneration": metadata.get("generation", 1),
    }
    conditions = [condition for condition in conditions if condition.get("type") != "ResourcesCreated"] + [new]
    await cluster.patch_job_status(
        metadata["namespace"], metadata["name"], metadata["resourceVersion"], {"conditions": conditions}
    )
