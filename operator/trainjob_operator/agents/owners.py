"""Whether the cluster still holds the job that an agent speaks of: one read for all who ask at the same moment.

Used by the coordinator. After a change of leadership all agents of a job come at once, before any turn has seen it.
What a read finds, and that it fails, is told to all who wait for it; nothing of it is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from trainjob_operator.cluster import Cluster, JobKey, NotFound

FindOwner = Callable[[JobKey], Awaitable[str | None]]
"""A fresh read: the UID of the job of that name, None when there is none. May raise ClusterError."""
WITHIN_S = 10.0


def owner_in(cluster: Cluster) -> FindOwner:
    """Looks the job up in the cluster."""

    async def find(key: JobKey) -> str | None:
        try:
            manifest = await cluster.get_job(*key)
        except NotFound:
            return None
        return str(manifest["metadata"]["uid"])

    return find


@dataclass(eq=False)
class _Read:
    """One under way."""

    task: asyncio.Task[str | None]
    waiting: int = 0


class Owners:
    """`find` is the read."""

    def __init__(self, find: FindOwner) -> None:
        self._find = find
        self._reads: dict[tuple[JobKey, str], _Read] = {}
        """By the UID that is asked for too: who begins a read for a UID proves that a job had it before, so what the
        read does not find is gone, for all who ask for that UID meanwhile. Who asks for another one may speak of a job
        that was made after the read.
        """

    async def find(self, key: JobKey, uid: str) -> str | None:
        """The UID of the job of that name, None when there is none; `uid`: that of the job which the asker knows.
        Raises ClusterError, TimeoutError.
        """
        read = self._reads.get((key, uid))
        if read is None:
            task = asyncio.create_task(self._read(key), name=f"owner of {key[0]}/{key[1]}")
            read = self._reads[key, uid] = _Read(task)
        read.waiting += 1
        try:
            # An agent that hangs up takes the answer from nobody else.
            return await asyncio.shield(read.task)
        finally:
            read.waiting -= 1
            if (read.task.done() or not read.waiting) and self._reads.get((key, uid)) is read:
                del self._reads[key, uid]
                read.task.cancel()

    async def _read(self, key: JobKey) -> str | None:
        async with asyncio.timeout(WITHIN_S):
            return await self._find(key)
