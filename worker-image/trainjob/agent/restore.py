"""Brings a checkpoint to this worker for its ranks: from the own staging, from peers' agents, from storage, in this order.

Called by `member` for OP_RESTORE. One fetch per checkpoint, however many ranks ask. What travels is verified; damage is an error of its own kind,
which ends the attempt uncounted, so that all ranks always load the same checkpoint.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from trainjob.agent.files import Fetcher, FetchError, NotThere
from trainjob.agent.saving import Saving
from trainjob.agent.storage import StorageChild, StorageError
from trainjob.checkpoint.manifest import NoteFile, ReleaseNote

FETCH_TRIES = 3
FETCH_PAUSE_S = 0.5


class Damaged(Exception):
    """The checkpoint does not verify, or its files are gone. The next join sees it too and chooses another: what is damaged on storage is
    marked there, and of what is staged only files of full size count."""

    def __init__(self, id_: str, message: str) -> None:
        super().__init__(message)
        self.id = id_


class Origin(NamedTuple):
    """What the join said about the checkpoint that the attempt resumes from, and where its members are."""

    checkpoint: Optional[Mapping[str, Any]]
    """{id, source, uri, note, stored}; None: start from nothing."""
    holders: Mapping[str, List[str]]
    """Addresses of agents that hold files of it, with the paths."""
    members: Tuple[str, ...]
    """Addresses of the attempt's agents, by index."""
    processes: int
    secret: str
    attempt: int


class Restore:
    """One per attempt."""

    def __init__(self, saving: Saving, storage: Optional[StorageChild], folder: str, origin: Origin, uri: Callable[[str], Optional[str]]) -> None:
        self._saving = saving
        self._storage = storage
        self._folder = folder
        self._origin = origin
        self._uri = uri
        self._found: Dict[str, asyncio.Future[Dict[str, Any]]] = {}

    async def bring(self, id_: Optional[str]) -> Optional[Dict[str, Any]]:
        """The `restored` reply's checkpoint. Raises Damaged, StorageError."""
        chosen = self._origin.checkpoint
        if id_ is None:
            if chosen is None:
                return None
            id_ = str(chosen["id"])
        if id_ not in self._found:
            self._found[id_] = asyncio.ensure_future(self._bring(id_))
        return await asyncio.shield(self._found[id_])

    def close(self) -> None:
        """The attempt is over: what was brought may go."""
        for task in self._found.values():
            task.cancel()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _bring(self, id_: str) -> Dict[str, Any]:
        chosen = self._origin.checkpoint
        is_chosen = chosen is not None and chosen["id"] == id_
        note, staged, paths = await self._saving.path_of(id_)
        if note is None and is_chosen and chosen is not None and chosen.get("note"):
            note = ReleaseNote.from_json(dict(chosen["note"]))
        if note is not None and staged and set(paths) >= {f.path for f in note.files}:
            return self._reply(id_, note, staged)
        if is_chosen and chosen is not None and chosen["source"] == "stored":
            return await self._from_storage(id_, chosen)
        if note is None:
            if self._storage is not None:
                return await self._from_storage(id_, {})
            raise Damaged(id_, "it is neither staged here nor is it what this attempt resumes from")
        try:
            return self._reply(id_, note, await self._assemble(id_, note, staged, paths))
        except NotThere as error:
            # Its agent told otherwise at the join: the file changed since. The next join sees that.
            raise Damaged(id_, str(error)) from error
        except FetchError as error:
            return await self._instead(id_, error)

    async def _instead(self, id_: str, error: FetchError) -> Dict[str, Any]:
        """Peers do not give it. What they hold is as good as before: whatever storage says now is no verdict on the checkpoint."""
        text = f"checkpoint {id_} cannot be brought to this worker: {error}"
        if self._storage is None:
            raise StorageError("unreadable", text) from error
        try:
            return await self._from_storage(id_, {"uri": self._uri(id_)})
        except (StorageError, Damaged) as trouble:
            raise StorageError("unreadable", f"{text}; nor is it to be had from storage: {trouble}") from trouble

    async def _from_storage(self, id_: str, chosen: Mapping[str, Any]) -> Dict[str, Any]:
        assert self._storage is not None
        where = {"uri": chosen["uri"]} if chosen.get("uri") else {"checkpoint": id_}
        into = os.path.join(self._folder, id_)
        # What was put together there from other places, and came to nothing.
        await asyncio.get_running_loop().run_in_executor(None, lambda: shutil.rmtree(into, ignore_errors=True))
        try:
            found = await self._storage.call("verify", {**where, "into": into})
        except StorageError as error:
            if error.kind in ("damaged", "lost"):
                raise Damaged(id_, str(error)) from error
            raise
        return self._reply(id_, ReleaseNote.from_json(found["note"]), str(found["path"]))

    async def _assemble(self, id_: str, note: ReleaseNote, staged: str, own: Tuple[str, ...]) -> str:
        """A folder with every file: links to our own, fetched copies of the others. Raises FetchError, NotThere."""
        target = os.path.join(self._folder, id_)
        chosen = self._origin.checkpoint if self._origin.checkpoint is not None and self._origin.checkpoint["id"] == id_ else None
        stored = set(chosen.get("stored") or ()) if chosen is not None else set()
        lacking = [f for f in note.files if f.path not in own]
        by_peer: Dict[str, List[NoteFile]] = {}
        for file in lacking:
            if file.path not in stored:
                by_peer.setdefault(self._holder(file, id_, chosen is not None), []).append(file)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, _link, staged, own, target)
        if stored:
            await self._fetch_stored(note, sorted(stored.intersection(f.path for f in lacking)), target)
        for attempt in range(FETCH_TRIES):
            try:
                await self._fetch_all(id_, by_peer, target)
                break
            except FetchError:
                if attempt == FETCH_TRIES - 1:
                    raise
                await asyncio.sleep(FETCH_PAUSE_S)
        return target

    async def _fetch_stored(self, note: ReleaseNote, paths: List[str], target: str) -> None:
        """Files of a checkpoint without manifest that only storage has."""
        assert self._storage is not None
        try:
            await self._storage.call("fetch", {"note": note.to_json(), "paths": paths, "into": target})
        except StorageError as error:
            if error.kind in ("damaged", "lost"):
                raise NotThere(str(error)) from error
            raise FetchError(f"from storage: {error}") from error

    async def _fetch_all(self, id_: str, by_peer: Mapping[str, List[NoteFile]], target: str) -> None:
        loop = asyncio.get_running_loop()
        secret, attempt = self._origin.secret, self._origin.attempt
        await asyncio.gather(*(loop.run_in_executor(None, _fetch, (peer, secret, attempt), id_, files, target) for peer, files in by_peer.items()))

    def _holder(self, file: NoteFile, id_: str, chosen: bool) -> str:
        if chosen:
            for address, paths in self._origin.holders.items():
                if file.path in paths:
                    return address
            raise NotThere(f"no member holds {file.path}")
        index = file.rank // self._origin.processes
        if index >= len(self._origin.members):
            raise NotThere(f"rank {file.rank}, which saved {file.path}, is no rank of this attempt")
        return self._origin.members[index]

    def _reply(self, id_: str, note: ReleaseNote, path: str) -> Dict[str, Any]:
        return {
            "id": id_,
            "path": path,
            "uri": self._uri(id_),
            "step": note.step,
            "epoch": note.epoch,
            "metrics": dict(note.metrics),
            "world_size": note.world_size,
            "position": note.position,
            "metadata": dict(note.metadata),
        }


def _link(staged: str, paths: Tuple[str, ...], target: str) -> None:
    shutil.rmtree(target, ignore_errors=True)
    try:
        _link_all(staged, paths, target)
    except OSError as error:
        raise FetchError(f"{target}: {error.strerror or error}") from error


def _link_all(staged: str, paths: Tuple[str, ...], target: str) -> None:
    os.makedirs(target)
    for path in paths:
        link = os.path.join(target, path)
        os.makedirs(os.path.dirname(link), exist_ok=True)
        # A symbolic link: nothing is copied, and torch.save over it is refused by nobody, as in any folder that is only to be read.
        os.symlink(os.path.join(staged, path), link)


def _fetch(peer: Tuple[str, str, int], id_: str, files: List[NoteFile], target: str) -> None:
    with Fetcher(*peer) as fetcher:
        for file in files:
            fetcher.fetch(id_, file.path, file.size, os.path.join(target, file.path))
