"""What an attempt begins with, found out once by rank 0's agent for all members: the run, the checkpoint, what of it
goes on to storage.

Called by `leader` when all members have asked to join. With storage the storage child decides (`checkpoint.settle`);
without, what the members hold.
"""

from __future__ import annotations

import asyncio
from typing import Any, Dict, List, Mapping, Optional, Tuple

from trainjob.agent.site import Site
from trainjob.agent.storing.storage import StorageChild, StorageError
from trainjob.checkpoint.errors import FULL, LOST, READ_ONLY, UNREADABLE

Candidates = List[Dict[str, Any]]
"""Staged checkpoints with what the members hold of them together: {note, held: [path]}."""
OUTAGE_S = 600.0
"""How long storage that refuses is tried again at the start of an attempt that is not the first: it worked before, and
an outage at the moment of a restart is no failure of the job. At the first one it is more likely a mistake.
"""
RETRY_S = 5.0
_PASSING = (UNREADABLE, READ_ONLY, FULL, LOST)
CHILD_TRIES = 3
"""How often it is asked again when the storage child dies of it."""


async def settle(site: Site, attempt: int, candidates: Candidates) -> Dict[str, Any]:
    """The storage child's `settle` reply, or the same made of what is staged. Raises StorageError."""
    if site.storage is None:
        return _of_staged(candidates)
    config = site.config
    request = {"job_uid": config.job_uid, "resume_from": config.spec.resume_from, "candidates": candidates}
    loop = asyncio.get_running_loop()
    deadline = loop.time() + (OUTAGE_S if attempt > 1 else 0)
    tries_left = CHILD_TRIES
    while True:
        tries_left -= 1
        try:
            settled = await _probe_and_settle(site.storage, request)
        except StorageError as error:
            # A child that was killed (out of memory) says nothing of the storage; what it had claimed is found again.
            if error.kind == "child" and tries_left:
                continue
            if error.kind not in _PASSING or loop.time() >= deadline:
                raise
            site.warn(f"Attempt {attempt} cannot begin yet, the job's storage is tried again: {error}")
            site.console.say(f"the job's storage is tried again: {error}")
            await asyncio.sleep(RETRY_S)
            tries_left = CHILD_TRIES
        else:
            site.warn(None)
            return settled


async def _probe_and_settle(storage: StorageChild, request: Mapping[str, Any]) -> Dict[str, Any]:
    await storage.call("probe", {})
    return await storage.call("settle", request)


def adopted(candidates: Candidates, chosen: Optional[Mapping[str, Any]], run: int) -> List[Mapping[str, Any]]:
    """Staged checkpoints of this run that go on to storage with this attempt, oldest first: complete, not newer than
    the chosen one.
    """
    if chosen is None or chosen["source"] != "staged":
        return []
    whole = [
        c["note"]
        for c in candidates
        if {f[0] for f in c["note"]["files"]}
        <= {*c["held"], *(chosen.get("stored") or () if c["note"]["id"] == chosen["id"] else ())}
    ]
    key = order(str(chosen["id"]))
    return sorted(
        (n for n in whole if order(str(n["id"])) <= key and order(str(n["id"]))[0] == run),
        key=lambda n: order(str(n["id"])),
    )


def order(id_: str) -> Tuple[int, ...]:
    """By which checkpoint identities compare."""
    return tuple(int(part) for part in id_.split("-"))


def _of_staged(candidates: Candidates) -> Dict[str, Any]:
    """Without storage: run 1, and the newest checkpoint that the members hold whole."""
    from trainjob.checkpoint.choice.choose import Candidate, choose_staged
    from trainjob.checkpoint.records.manifest import ReleaseNote

    choice = choose_staged([Candidate(ReleaseNote.from_json(c["note"]), frozenset(c["held"])) for c in candidates])
    if choice is None:
        return {"run": 1, "completed": False, "checkpoint": None}
    note = choice.note
    return {
        "run": 1,
        "completed": False,
        "checkpoint": {"id": str(note.id), "source": "staged", "uri": None, "note": note.to_json(), "stored": []},
    }
