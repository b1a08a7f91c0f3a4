"""What an attempt begins with, found out once by rank 0's agent for all members: the run, the checkpoint, what of it
goes on to storage.

Called by `leader` when all members have asked to join. With storage the storage child decides (`checkpoint.settle`);
without, what the members hold.
"""

from __future__ import annotations

import asyncio
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from trainjob.agent.site import Site
from trainjob.agent.storing.storage import StorageChild, StorageError, ask
from trainjob.agent.wire.from_leader import Chosen
from trainjob.agent.wire.packed import Note
from trainjob.checkpoint.errors import FULL, LOST, READ_ONLY, UNREADABLE
from trainjob.checkpoint.records.identity import CheckpointId

Candidates = List[Dict[str, Any]]
"""Staged checkpoints with what the members hold of them together: {note, held: [path]}."""
OUTAGE_S = 600.0
"""How long storage that refuses is tried again at a start after one at which it worked: an outage at the moment of a
restart is no failure of the job.
"""
FIRST_OUTAGE_S = 300.0
"""The same before any rank has run, for storage that does not answer; what it refuses is more likely a mistake."""
RETRY_S = 5.0
_PASSING = (UNREADABLE, READ_ONLY, FULL, LOST)
_PASSING_AT_FIRST = (UNREADABLE,)


class StartPoint(NamedTuple):
    """The run, and what it resumes from."""

    run: int
    completed: bool
    checkpoint: Optional[Chosen]
    claim: Optional[Mapping[str, Any]] = None
    """{run, nonce} in the storage path, for workers on other hosts to see."""
    words: Tuple[str, ...] = ()
    """Why this one, and what people should know of it."""
    shown: Optional[Mapping[str, Any]] = None
    """Of a complete run (`last_word.SHOWN`)."""


async def settle(site: Site, attempt: int, candidates: Candidates) -> StartPoint:
    """What the storage child settles, or the same made of what is staged. Raises StorageError."""
    if site.storage is None:
        return _of_staged(candidates)
    config = site.config
    request = {
        "job_uid": config.job_uid,
        "resume_from": config.spec.resume_from,
        "attempt": attempt,
        "candidates": candidates,
    }
    loop = asyncio.get_running_loop()
    worked = attempt > 1 and not site.storage.refused_at_first
    passing, outage_s = (_PASSING, OUTAGE_S) if worked else (_PASSING_AT_FIRST, FIRST_OUTAGE_S)
    deadline = loop.time() + outage_s
    while True:
        try:
            settled = _settled(await _probe_and_settle(site.storage, request))
        except StorageError as error:
            if error.kind not in passing or loop.time() >= deadline:
                site.storage.refused_at_first = not worked
                raise
            site.warn(f"Attempt {attempt} cannot begin yet, the job's storage is tried again: {error}")
            site.console.say(f"the job's storage is tried again: {error}")
            await asyncio.sleep(RETRY_S)
        else:
            site.storage.refused_at_first = False
            site.warn(None)
            return settled


async def _probe_and_settle(storage: StorageChild, request: Mapping[str, Any]) -> Dict[str, Any]:
    """Side by side, since ranks wait. What a child that was killed over it had claimed is found again."""
    probing = asyncio.ensure_future(_probe(storage))
    settling = asyncio.ensure_future(ask(storage, "settle", request))
    try:
        await probing  # of two complaints its own is the one that says what to do
        return await settling
    finally:
        for task in (probing, settling):
            task.cancel()
        await asyncio.gather(probing, settling, return_exceptions=True)


async def _probe(storage: StorageChild) -> None:
    """Once for this agent: what storage could do an attempt ago it can do now, or the first upload says so."""
    if not storage.probed:
        await ask(storage, "probe", {})
        storage.probed = True


def _settled(reply: Mapping[str, Any]) -> StartPoint:
    run, completed, chosen = int(reply["run"]), bool(reply["completed"]), reply["checkpoint"]
    why = f"run {run} is complete: no rank is started" if completed else reply.get("why")
    words = (why, *(reply.get("warnings") or ()))
    return StartPoint(
        run,
        completed,
        None if chosen is None else Chosen.of(chosen),
        reply.get("claim"),
        tuple(str(text) for text in words if text),
        reply.get("shown"),
    )


def adopted(candidates: Candidates, chosen: Optional[Chosen], run: int) -> Tuple[Note, ...]:
    """Staged checkpoints of this run that go on to storage with this attempt, oldest first: complete, not newer than
    the chosen one.
    """
    if chosen is None or chosen.source != "staged":
        return ()
    newest = CheckpointId.parse(chosen.id)
    found: Dict[CheckpointId, Note] = {}
    for candidate in candidates:
        note, id_ = candidate["note"], CheckpointId.parse(candidate["note"]["id"])
        there = {*candidate["held"], *(chosen.stored if id_ == newest else ())}
        if id_ <= newest and id_.run == run and there.issuperset(f[0] for f in note["files"]):
            found[id_] = note
    return tuple(found[id_] for id_ in sorted(found))


def _of_staged(candidates: Candidates) -> StartPoint:
    """Without storage: run 1, and the newest checkpoint that the members hold whole."""
    from trainjob.checkpoint.choice.choose import Candidate, choose_staged
    from trainjob.checkpoint.records.manifest import ReleaseNote

    choice = choose_staged([Candidate(ReleaseNote.from_json(c["note"]), frozenset(c["held"])) for c in candidates])
    if choice is None:
        return StartPoint(1, False, None)
    return StartPoint(1, False, Chosen(str(choice.note.id), "staged", None, choice.note.to_json()))
