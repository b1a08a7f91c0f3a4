"""Jobs of a namespace that another installation serves: nothing of them is touched, and whoever looks is told once.

Called by the reconciler.
"""

from __future__ import annotations

from collections.abc import Callable

from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.cluster import JobKey
from trainjob_operator.core.model import Event
from trainjob_operator.loop.apply import event_manifest
from trainjob_operator.loop.means import Means
from trainjob_operator.loop.remembered import Remembered
from trainjob_operator.manifests import UnreadableJob, read_job

LOOK_S = 30.0
"""So often it is asked whether a namespace is still another installation's."""


class Elsewhere:
    """`say`: logs why, once."""

    def __init__(self, means: Means, remembered: Remembered, say: Callable[[JobKey, str], None]) -> None:
        self._cluster, self._coordinator = means.cluster, means.agents
        self._remembered, self._say = remembered, say

    async def stand_back(self, key: JobKey, why: str) -> None:
        """Another installation looks after the job: nothing of it is touched, and whoever looks at it is told once.
        Raises NotFound.
        """
        self._coordinator.leave(key)
        self._remembered.leave(key)
        if self._remembered.said.get(key) != why or not self._remembered.known.has(key):
            job = await self._theirs(key)
            if self._remembered.said.get(key) != why:
                if job is not None and not job.status.finished:
                    event = Event("Warning", contract.REASON_SERVED_ELSEWHERE, why)
                    await self._cluster.create_event(key[0], event_manifest(job, event))
                self._say(key, why)
            self._remembered.known.rest(key)

    async def _theirs(self, key: JobKey) -> TrainJob | None:
        """A job that another installation looks after; None: nobody can read it, and the other one says so. It is read
        from the API server once, and known from then on. Raises NotFound.
        """
        try:
            if self._remembered.known.has(key):
                return self._remembered.known.job(key)
            with self._remembered.known.reading(key) as reading:
                manifest = await self._cluster.get_job(*key)
                reading.take_job(manifest)
            return read_job(manifest)
        except UnreadableJob:
            return None
