"""One Lease as an API server keeps it, for replicas in virtual time; each replica has its own way to it, which can
be cut or slow.
"""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from trainjob_operator.cluster import Conflict, Manifest, NotFound, Unavailable


class LeaseStore:
    """Holds at most one Lease; each write gets a new resourceVersion, and one that names an older version is
    refused.
    """

    def __init__(self) -> None:
        self.lease: Manifest | None = None
        self._version = 0

    def read(self) -> Manifest:
        if self.lease is None:
            raise NotFound("no such lease")
        return copy.deepcopy(self.lease)

    def write(self, body: Manifest, *, new: bool) -> Manifest:
        if new == (self.lease is not None):
            raise Conflict("it is there already") if new else NotFound("no such lease")
        if not new and body["metadata"].get("resourceVersion") != str(self._version):
            raise Conflict("the object has been modified")
        self._version += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(self._version)
        return self.read()

    @property
    def holder(self) -> str:
        return "" if self.lease is None else str(self.lease["spec"]["holderIdentity"])


class LeaseLink:
    """A replica's way to the store: the `LeaseApi` that `Leadership` is given."""

    def __init__(self, store: LeaseStore) -> None:
        self.down = False
        """Calls fail at once."""
        self.replies_lost = False
        """Calls take effect, and no answer comes."""
        self.delay_s = 0.0
        """Before a call takes effect, and again before its answer arrives."""
        self._store = store

    async def get(self, path: str, params: Any = None) -> Manifest:
        return await self._carry(self._store.read)

    async def create(self, path: str, body: Manifest) -> Manifest:
        return await self._carry(lambda: self._store.write(body, new=True))

    async def replace(self, path: str, body: Manifest) -> Manifest:
        return await self._carry(lambda: self._store.write(body, new=False))

    async def _carry(self, effect: Any) -> Manifest:
        await asyncio.sleep(self.delay_s)
        if self.down:
            raise Unavailable("no connection")
        answer: Manifest = effect()
        await asyncio.sleep(self.delay_s)
        if self.replies_lost:
            await asyncio.Event().wait()
        return answer
