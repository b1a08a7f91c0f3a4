"""Whether every worker sees what rank 0's worker wrote to a storage path: a volume that each node has for itself is
told at the start, not when the first checkpoint cannot be committed.

Rank 0's agent has written the claim of the run before anybody is answered; each member on another host reads it through
its own storage child before it starts its ranks (`look`), which takes a millisecond, and says what it found.
`Witnesses` collects the answers. In buckets, and on one host, there is nothing to find out.
"""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from trainjob.agent.background import Background
from trainjob.agent.site import Site
from trainjob.agent.storing.storage import CHILD_DIED, StorageChild, StorageError
from trainjob.agent.wire.addresses import split_address
from trainjob.agent.wire.from_leader import Joined
from trainjob.agent.wire.from_member import Seen

PATIENCE_S = 2.0
"""A storage that does not even answer is no verdict: the ranks start, and the answer comes when it comes."""
LATE_S = 6.0
"""Some network file systems show a new file late."""
PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0)
OTHERS_S = 1.0
"""After the first worker that sees nothing: for the others' words, so that one sentence names all."""


def is_needed(storage: Optional[str], addresses: Sequence[str], index: int) -> bool:
    """Whether this member has to look: the storage is a path, and rank 0's worker is on another host."""
    if storage is None or ("://" in storage and not storage.startswith("file://")):
        return False
    return split_address(addresses[index])[0] != split_address(addresses[0])[0]


async def look(storage: StorageChild, claim: Mapping[str, Any], answered: asyncio.Future[None]) -> Tuple[bool, str]:
    """(whether the claim is seen here, what lies under the path). Trouble of another kind counts as seen: it is told
    when it matters.

    `answered` is done as soon as the storage has said anything.
    """
    loop = asyncio.get_running_loop()
    deadline, tries = loop.time() + LATE_S, 0
    while True:
        try:
            found = await storage.call("see", {"claim": dict(claim)})
        except StorageError as error:
            if error.kind != CHILD_DIED:
                return True, ""
            found = {"seen": False, "where": ""}
        if not answered.done():
            answered.set_result(None)
        if found["seen"] or loop.time() >= deadline:
            return bool(found["seen"]), str(found["where"])
        await asyncio.sleep(PAUSES_S[min(tries, len(PAUSES_S) - 1)])
        tries += 1


async def sees(site: Site, background: Background, answer: Joined, index: int, tell: Callable[[Seen], None]) -> bool:
    """Whether the storage path is here what it is for rank 0's agent; if not, the word of that agent ends the
    attempt.
    """
    storage, claim = site.storage, answer.claim
    if claim is None or storage is None or not is_needed(site.config.spec.storage, answer.members, index):
        return True
    answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def look_and_tell(storage: StorageChild) -> bool:
        seen, where = await look(storage, claim, answered)
        tell(Seen(site.config.pod, seen, where))
        return seen

    looking = background.task(look_and_tell(storage))
    either: List[asyncio.Future[Any]] = [looking, answered]
    await asyncio.wait(either, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
    return await looking if answered.done() else not looking.done() or looking.result()


class Witnesses:
    """Rank 0's agent: what the members have said."""

    def __init__(self) -> None:
        self._seen: Dict[int, str] = {}
        self._blind: Dict[int, Tuple[str, str]] = {}

    def said(self, index: int, word: Seen) -> bool:
        """A member's word; whether it is the first that sees nothing."""
        if word.seen:
            self._seen[index] = word.pod
            return False
        self._blind[index] = (word.pod, word.where)
        return len(self._blind) == 1

    def verdict(self, storage: str, own: str) -> str:
        """The sentence that ends the job."""
        blind = [self._blind[index] for index in sorted(self._blind)]
        sees = [own, *(self._seen[index] for index in sorted(self._seen))]
        where = "; ".join(sorted({words for _, words in blind if words}))
        return (
            f"The storage path {storage} is not the same folder in all pods: what {own} wrote there is seen by "
            f"{_named(sees)} and not by "
            f"{_named([pod for pod, _ in blind])}{f', where it is {where}' if where else ''}. Likely an emptyDir, a "
            "hostPath or a local PersistentVolume, which each "
            "pod or node has for itself. Mount a volume that all workers share (ReadWriteMany, for example NFS), or "
            "use s3://bucket/folder as spec.checkpoint.storage."
        )


def _named(pods: Sequence[str]) -> str:
    return ", ".join(pods[:8]) + (f" and {len(pods) - 8} more" if len(pods) > 8 else "")
