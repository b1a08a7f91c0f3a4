"""Manifests and small stand-ins that tests of the operator's shell share."""

from __future__ import annotations

from typing import Any

from support.simulation import NAMESPACE, manifest
from trainjob_api.v1alpha1 import TrainJob, TrainJobStatus
from trainjob_operator.cluster import Manifest
from trainjob_operator.core.model import Decision, Installation, Observed
from trainjob_operator.memory import Call, MemoryCluster, Moment

INSTALLATION = Installation(coordinator_url="http://coordinator:8080")


def plain_pod(name: str, *, job: str = "digits", owner: Manifest | None = None, slot: int = 0) -> Manifest:
    """A pod with the operator's labels, owned by a stored job."""
    references = (
        []
        if owner is None
        else [
            {
                "apiVersion": "trainjob.dev/v1alpha1",
                "kind": "TrainJob",
                "name": job,
                "uid": owner["metadata"]["uid"],
                "controller": True,
            }
        ]
    )
    labels = {"trainjob.dev/job": job, "trainjob.dev/slot": str(slot)}
    container = {"name": "trainer", "image": "none"}
    return {
        "metadata": {"name": name, "labels": labels, "ownerReferences": references},
        "spec": {"containers": [container]},
    }


def stored_job(cluster: MemoryCluster, **spec: Any) -> TrainJob:
    """Create a job and read it."""
    return TrainJob.model_validate(cluster.create_job(manifest(**spec)))


def observed(job: TrainJob) -> Observed:
    return Observed(job=job)


def decision(job: TrainJob, *actions: Any, events: tuple[Any, ...] = (), **status: Any) -> Decision:
    """The job's status with these fields changed, and these actions."""
    changed: TrainJobStatus = job.status.model_copy(update=status)
    return Decision(status=changed, actions=tuple(actions), events=events)


class Recorder:
    """A fault hook that notes the calls, and raises what a test wants at one verb."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._planned: dict[tuple[str, Moment], list[Exception]] = {}

    def fail(self, verb: str, error: Exception, *, moment: Moment = Moment.BEFORE, times: int = 1) -> None:
        self._planned.setdefault((verb, moment), []).extend([error] * times)

    @property
    def verbs(self) -> list[str]:
        return [call.verb for call in self.calls]

    async def __call__(self, call: Call, moment: Moment) -> None:
        if moment is Moment.BEFORE:
            self.calls.append(call)
        planned = self._planned.get((call.verb, moment))
        if planned:
            raise planned.pop(0)


__all__ = ["INSTALLATION", "NAMESPACE", "Recorder", "decision", "manifest", "observed", "plain_pod", "stored_job"]
