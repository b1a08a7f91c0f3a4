"""Which checkpoint a rank is given, and where its files are: in the own staging, or brought to this worker by
`gathering`.

Called by `member` for OP_RESTORE and OP_FETCH. What an attempt resumes from is brought only as far as ranks ask for it,
once for all of them; a checkpoint that was released meanwhile, and everything of a job without storage, at once. Damage
is an error of its own kind, which ends the attempt uncounted, so that all ranks always load the same checkpoint.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from trainjob.agent import rank_places
from trainjob.agent.restoring.fetching import Peer
from trainjob.agent.restoring.gathering import GONE, Damaged, Gathering
from trainjob.agent.restoring.sources import Sources
from trainjob.agent.storing.saving import Saving
from trainjob.agent.storing.storage import StorageChild, StorageError, ask
from trainjob.agent.wire.from_leader import Chosen
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.layout import state_path
from trainjob.checkpoint.records.manifest import ReleaseNote
from trainjob.checkpoint.staging.stamp import Stamp

__all__ = ["Damaged", "NotHere", "Origin", "Restore"]

THREADS = 16
"""Connections to peers at a time. Threads of their own: those of the loop serve peers that fetch from us."""


class NotHere(Exception):
    """The files of a checkpoint that was given out have left this worker since, and nobody else has them."""


class Origin(NamedTuple):
    """What the join said about the checkpoint that the attempt resumes from, and where its members are."""

    checkpoint: Optional[Chosen]
    """None: start from nothing."""
    holders: Mapping[str, List[str]]
    """Addresses of agents that hold files of it, with the paths."""
    members: Tuple[str, ...]
    """Addresses of the attempt's agents, by index."""
    processes: int
    secret: str
    attempt: int


class _Found(NamedTuple):
    """A checkpoint that ranks may read."""

    gathering: Gathering
    lazy: bool
    """Else all of it was brought at once."""


class Restore:
    """One per attempt."""

    def __init__(
        self,
        saving: Saving,
        storage: Optional[StorageChild],
        folder: str,
        origin: Origin,
        uri: Callable[[CheckpointId], Optional[str]],
    ) -> None:
        self._saving = saving
        self._storage = storage
        self._folder = folder
        self._origin = origin
        self._uri = uri
        self._found: Dict[str, asyncio.Future[_Found]] = {}
        self._gatherings: List[Gathering] = []
        self._threads = ThreadPoolExecutor(THREADS, "fetch")

    def prepare(self) -> None:
        """Look what is in the checkpoint that is resumed while the ranks start: the storage child takes a second to
        be ready. Trouble is told to who asks.
        """
        if self._origin.checkpoint is not None and self._storage is not None:
            self._begin(self._origin.checkpoint.id).add_done_callback(
                lambda found: found.cancelled() or found.exception()
            )

    async def given(self, id_: Optional[str], rank: int) -> Optional[Dict[str, Any]]:
        """The `restored` reply's checkpoint for a rank, its own state brought. Raises Damaged, StorageError."""
        chosen = self._origin.checkpoint
        if id_ is None:
            if chosen is None:
                return None
            id_ = chosen.id
        found = await self._find(id_)
        return self._reply(id_, found.gathering, await self._state(found.gathering, rank))

    async def fetch(self, id_: str, paths: Optional[Sequence[str]], apart: bool = False) -> str:
        """The folder in which these files of a checkpoint that was given out are now (None: all of them); `apart`: so
        that nothing is lost by writing to them. Raises Damaged, StorageError, KeyError, NotHere.
        """
        found = await self._find(id_)
        try:
            await found.gathering.gather(found.gathering.paths if paths is None else paths, apart)
        except Damaged as error:
            if found.lazy:
                raise
            # It came whole once: that it left the staging for newer ones is no damage.
            raise NotHere(
                f"checkpoint {id_} is no longer held: {error}. Only the newest one is kept; copy what you need of an "
                "older one with to_directory()."
            ) from error
        return found.gathering.folder

    def close(self) -> None:
        """The attempt is over: what was brought may go."""
        for task in self._found.values():
            task.cancel()
        for gathering in self._gatherings:
            gathering.close()
        self._threads.shutdown(wait=False)
        # Of a hundred thousand files this takes seconds, and the next attempt is waiting. Its own folder is another.
        asyncio.get_running_loop().run_in_executor(None, lambda: shutil.rmtree(self._folder, ignore_errors=True))

    async def _find(self, id_: str) -> _Found:
        return await asyncio.shield(self._begin(id_))

    def _begin(self, id_: str) -> asyncio.Future[_Found]:
        if id_ not in self._found:
            self._found[id_] = asyncio.ensure_future(self._look(id_))
        return self._found[id_]

    async def _look(self, id_: str) -> _Found:
        chosen = (
            self._origin.checkpoint
            if self._origin.checkpoint is not None and self._origin.checkpoint.id == id_
            else None
        )
        held = await self._saving.held_of(id_)
        note = None if held is None else held.note
        if note is None and chosen is not None:
            note = ReleaseNote.from_json(dict(chosen.note))
        gathering = Gathering(
            await self._sources(id_, chosen, note, {} if held is None else held.stamps),
            self._storage,
            os.path.join(self._folder, id_),
            self._threads,
        )
        self._gatherings.append(gathering)
        lazy = chosen is not None and self._storage is not None
        if not lazy:
            await gathering.gather(gathering.paths)
        await asyncio.get_running_loop().run_in_executor(None, self._list, gathering)
        return _Found(gathering, lazy)

    async def _sources(
        self, id_: str, chosen: Optional[Chosen], note: Optional[ReleaseNote], own: Mapping[str, Stamp]
    ) -> Sources:
        staged = self._saving.folder_of(id_)
        is_stored = functools.partial(self._saving.is_committed, id_)
        may_go = functools.partial(self._saving.may_go, id_)
        if note is not None and set(own) >= {f.path for f in note.files}:
            # Nobody is asked: a storage that hangs does not hold up what lies here.
            return Sources(note, staged, own, {}, is_stored=is_stored, may_go=may_go)
        stored = chosen is not None and chosen.source == "stored"
        where = {"uri": chosen.uri} if chosen is not None and stored and chosen.uri else {"checkpoint": id_}
        manifest = await self._manifest(id_, where, needed=stored or note is None)
        if manifest is None:
            if note is None:
                raise Damaged(id_, "it is neither staged here nor is it what this attempt resumes from")
            return Sources(note, staged, own, self._holders(note, chosen), is_stored=is_stored, may_go=may_go)
        note = ReleaseNote.from_json(manifest["note"])
        if manifest["path"] is not None and stored:
            return Sources(note, staged, {}, {}, where)
        sums = {str(path): (str(checksum), str(algorithm)) for path, checksum, algorithm in manifest["sums"]}
        return Sources(note, staged, own, self._holders(note, chosen), where, sums, lambda: True, may_go)

    async def _manifest(self, id_: str, where: Mapping[str, Any], needed: bool) -> Optional[Dict[str, Any]]:
        """What storage knows of it. None: it is not committed (yet), or storage does not say and it is to be had
        without.
        """
        if self._storage is None:
            return None
        try:
            return await ask(self._storage, "manifest", where)
        except StorageError as error:
            if not needed:
                return None
            if error.kind in GONE:
                raise Damaged(id_, str(error)) from error
            raise

    def _holders(self, note: ReleaseNote, chosen: Optional[Chosen]) -> Dict[str, Peer]:
        """Who has which file in its staging: as the join said, or the agent of the rank that saved it."""
        secret, attempt, members = self._origin.secret, self._origin.attempt, self._origin.members
        if chosen is not None:
            return {
                path: Peer(address, secret, attempt)
                for address, paths in self._origin.holders.items()
                for path in paths
            }
        indices = {f.path: rank_places.worker_of(f.rank, self._origin.processes) for f in note.files}
        return {path: Peer(members[index], secret, attempt) for path, index in indices.items() if index < len(members)}

    async def _state(self, gathering: Gathering, rank: int) -> Optional[str]:
        """Path of what the library saved for a rank, inside the folder; that of rank 0 for one that was not there."""
        known = set(gathering.paths)
        path = next((path for path in (state_path(rank), state_path(0)) if path in known), None)
        if path is not None:
            await gathering.gather([path])
        return path

    def _listing(self, id_: str) -> str:
        return os.path.join(self._folder, f"{id_}.files.json")

    def _list(self, gathering: Gathering) -> None:
        """The names of all files, for ranks that ask for few of them. Whole at once: another rank may be reading it."""
        os.makedirs(self._folder, exist_ok=True)
        listing = self._listing(gathering.id)
        with open(f"{listing}.new", "w", encoding="utf-8", errors="surrogateescape") as file:
            json.dump(gathering.paths, file)
        os.replace(f"{listing}.new", listing)

    def _reply(self, id_: str, gathering: Gathering, state: Optional[str]) -> Dict[str, Any]:
        note = gathering.note
        return {
            "id": id_,
            "listing": self._listing(id_),
            "state": None if state is None else os.path.join(gathering.folder, state),
            "uri": self._uri(note.id),
            "step": note.step,
            "epoch": note.epoch,
            "metrics": dict(note.metrics),
            "world_size": note.world_size,
            "position": note.position,
            "metadata": dict(note.metadata),
        }
