"""The narrow boundary to the cluster: the verbs that the shell needs, and the errors they raise.

Implemented by `memory.py` (in-process, for tests and the local backend) and by `kube.py` (a real API server). Objects
are plain dicts as the API serves them; nothing else in the package knows HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Protocol

from trainjob_api.v1alpha1 import TrainJob

Manifest = dict[str, Any]
JobKey = tuple[str, str]
"""(namespace, name)"""


class ClusterError(Exception):
    """The API refused or could not be reached."""

    retry_after_s = 0.0
    """The API server asks not to be asked again before then; 0: it says nothing of it."""


class NotFound(ClusterError):
    """404 in the API's words: the object is not there."""


class Conflict(ClusterError):
    """409: another write came first, the object exists already, or a precondition does not hold."""


class Rejected(ClusterError):
    """400, 403, 422: the same call will be refused again; the message is the API's."""


class Unavailable(ClusterError):
    """429, 5xx, time-out, no connection: the call may or may not have taken effect."""

    def __init__(self, text: str, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class NotServed(Unavailable):
    """404 that names no object: the API server does not serve the kind (yet), or something in front of it answers. It
    says of no object that it is gone.
    """


def is_older(job: TrainJob, than: TrainJob) -> bool:
    """Whether it is an earlier state of the same object, or of one that bore the name before. Versions of one kind are
    ordered: Kubernetes promises it since 1.35, and etcd's revisions always were.
    """
    return int(job.metadata.resource_version) < int(than.metadata.resource_version)


@dataclass(frozen=True)
class Seen:
    """A TrainJob, or a pod or Service that bears a job's label, as it is now or, if it is `gone`, as it was last."""

    kind: str
    key: JobKey
    """The job's."""
    manifest: Manifest
    gone: bool = False


@dataclass(frozen=True)
class NodeSeen:
    """What is to become of a node: who says that it is about to be taken away; None: nobody does, or it is gone."""

    name: str
    leaving: str | None
    made_at: datetime | None = None
    """When the cluster got the node that bears this name now; None: it is gone, or does not say."""


class Mark(Enum):
    """Where the watch stands."""

    BEGIN = "begin"
    """It begins, or something may have been missed: what was told before is void. All that is watched follows."""
    COMPLETE = "complete"
    """All of them were told, as they were at one moment after BEGIN or later; from now on changes follow."""


News = Mark | Seen | NodeSeen | JobKey
"""What the watch tells; a key alone: something about this job may have changed. Nodes come between any
others, and only where they may be watched; those that are known come at once after BEGIN.
"""


class Cluster(Protocol):
    """Every verb may raise any ClusterError. None retries by itself: the work queue does."""

    def shows(self) -> datetime | None:
        """What the clock shows by which objects are dated; None: it was not told yet."""
        ...

    async def get_job(self, namespace: str, name: str) -> Manifest:
        """The TrainJob as it is now. Raises NotFound."""
        ...

    async def list_jobs(self) -> list[Manifest]:
        """All TrainJobs in scope."""
        ...

    async def patch_job_status(self, namespace: str, name: str, resource_version: str, status: Manifest) -> Manifest:
        """JSON merge patch of the status subresource, refused with Conflict unless resource_version is the current one.

        `status` is a merge patch: a field to be removed is there as None. Returns the new object.
        """
        ...

    async def delete_job(self, namespace: str, name: str, uid: str) -> None:
        """Delete with a UID precondition (Conflict when it does not hold); children go by their owner references."""
        ...

    async def list_pods(self, namespace: str, job: str) -> list[Manifest]:
        """A consistent read of all pods that carry the job's name label."""
        ...

    async def create_pod(self, namespace: str, pod: Manifest, *, strict: bool = False) -> Manifest:
        """Raises Conflict when a pod of that name exists, Rejected when quota or admission says no; `strict`: also when
        the pod has fields that the cluster does not know, which it would drop in silence.
        """
        ...

    async def get_pod(self, namespace: str, name: str) -> Manifest:
        """Raises NotFound."""
        ...

    async def patch_pod(self, namespace: str, name: str, uid: str, patch: Manifest) -> Manifest:
        """JSON merge patch of exactly this pod: Conflict or Rejected when another has its name. Raises NotFound."""
        ...

    async def delete_pod(self, namespace: str, name: str, uid: str, grace_s: int | None = None) -> None:
        """Delete with a UID precondition; NotFound and a failing precondition (Conflict) are raised."""
        ...

    async def get_service(self, namespace: str, name: str) -> Manifest:
        """Raises NotFound."""
        ...

    async def create_service(self, namespace: str, service: Manifest) -> Manifest:
        """Raises Conflict when a Service of that name exists."""
        ...

    async def patch_service(self, namespace: str, name: str, patch: Manifest) -> Manifest:
        """JSON merge patch; with `metadata.resourceVersion` in it only of that version, else Conflict."""
        ...

    async def create_event(self, namespace: str, event: Manifest) -> None:
        """Create an event, or raise its count if one of that name is there."""
        ...

    async def list_pod_events(self, namespace: str, name: str, warnings_of: str | None = None) -> list[Manifest]:
        """Events about pods of this name, those that are gone and earlier ones of that name included, at most some
        dozens.

        `warnings_of`: of type Warning alone, and about the pod with this UID alone. Rejected where events may not be
        read.
        """
        ...

    async def get_node(self, name: str) -> Manifest:
        """The node. Raises NotFound, and Rejected where nodes may not be read (an installation for some namespaces
        only).
        """
        ...

    def watch(self) -> AsyncIterator[News]:
        """All jobs and their pods, and what changes of them; each object's states in order, but for lists between
        BEGIN and COMPLETE, which may be older or newer than what follows. Their Services too, where those may be
        watched: a Service that is told of once is told of as long as it bears the label.

        Nothing is left out unless a BEGIN follows; what is told may come late, twice, or for nothing. Ends never;
        raises ClusterError when the source fails.
        """
        ...


Enqueue = Callable[[JobKey], None]
