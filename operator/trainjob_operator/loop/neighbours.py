"""What the loop needs of those beside it: the coordinator, and who says which namespaces are ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Protocol

from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.cluster import JobKey
from trainjob_operator.core.model import AgentView, PodView


class Agents(Protocol):
    """What the loop needs of the coordinator."""

    listening_since: datetime

    def listen(
        self,
        enqueue: Callable[[JobKey, float], None],
        show_progress: Callable[[JobKey], None],
        hurry: Callable[[JobKey], None],
    ) -> None:
        """Ask for turns here, for progress to be shown, and for turns that somebody waits for."""
        ...

    def views(self, key: JobKey) -> Mapping[str, AgentView]:
        """What the job's agents last said, by pod UID."""
        ...

    def commit(self, job: TrainJob, pods: Iterable[PodView]) -> None:
        """Answer agents from this job."""
        ...

    def forget(self, key: JobKey) -> None:
        """There is no such job."""
        ...

    def leave(self, key: JobKey) -> None:
        """The job is another's to look after: its agents hear nothing from us but to go on."""
        ...


class Claimed(Protocol):
    """What the loop needs of `k8s.claims.Claims`."""

    def holds(self, namespace: str) -> bool:
        """Whether the namespace is ours without asking anybody."""
        ...

    async def served_by(self, namespace: str) -> str | None:
        """None: by us; else why its jobs are left alone. Raises ClusterError when that is not known."""
        ...
