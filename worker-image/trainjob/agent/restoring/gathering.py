"""One checkpoint on its way to this worker, file by file: from the own staging, from peers' agents, from storage, in
this order.

Made by `restore`. Each file is brought once, however many ranks ask for it, and what travelled is compared: with the
manifest where there is one, else by a checksum taken on the way. A peer that does not give a file is no verdict on the
checkpoint as long as storage has it.

For who reads a file it may be a link to where it is kept. For who gets the folder into its hands it is set apart: user
code writes into folders that it is given, and must not reach what is the only copy of anything.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Executor
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Set

from trainjob.agent.restoring.fetching import FetchError, NotThere, Stop
from trainjob.agent.restoring.from_peers import FromPeers
from trainjob.agent.restoring.sources import Sources
from trainjob.agent.storing.storage import StorageChild, StorageError, ask
from trainjob.checkpoint import errors
from trainjob.checkpoint.records.manifest import NoteFile
from trainjob.checkpoint.staging import cloning
from trainjob.checkpoint.staging.stamp import Stamp

GONE = (errors.DAMAGED, errors.LOST)


class Damaged(Exception):
    """The checkpoint does not verify, or its files are gone. The next join sees it too and chooses another: what is
    damaged on storage is marked there, and of what is staged only files of full size count."""

    def __init__(self, id_: str, message: str) -> None:
        super().__init__(message)
        self.id = id_


class Gathering:
    """`gather` files into `folder`."""

    def __init__(self, sources: Sources, storage: Optional[StorageChild], folder: str, threads: Executor) -> None:
        self.note = sources.note
        self.folder = folder
        self._sources = sources
        self._storage = storage
        self._threads = threads
        self._sizes = {f.path: f for f in sources.note.files}
        self._begun: Dict[str, asyncio.Future[None]] = {}
        self._brought: Dict[str, Optional[Stamp]] = {}
        """How what was brought looked then; None: a link to storage, which is not looked at here, as it may hang."""
        self._apart: Set[str] = set()
        self._setting_apart = asyncio.Lock()
        self._stop = Stop()
        self._peers = FromPeers(sources, storage, folder, threads, self._stop)

    @property
    def id(self) -> str:
        """The checkpoint's."""
        return str(self.note.id)

    @property
    def paths(self) -> List[str]:
        """All of its files, the library's own among them."""
        return sorted(self._sizes)

    def close(self) -> None:
        """Nobody wants it any more."""
        self._stop.set()
        for work in self._begun.values():
            work.cancel()

    async def gather(self, paths: Iterable[str], apart: bool = False) -> None:
        """Until these are in the folder, to be read or (`apart`) for whatever is done to them. Raises Damaged,
        StorageError; KeyError for a path that the checkpoint does not have.
        """
        wanted = list(paths)
        mine = [self._sizes[path] for path in wanted if path not in self._begun or self._is_gone(path)]
        if mine:
            self._apart.difference_update(f.path for f in mine)
            work = asyncio.ensure_future(self._gather(mine, apart))
            self._begun.update(dict.fromkeys((f.path for f in mine), work))
            work.add_done_callback(lambda done: self._settle(done, mine))
        for begun in {self._begun[path] for path in wanted}:
            await asyncio.shield(begun)
        leaves = self._sources.may_go()
        if apart or leaves:
            async with self._setting_apart:
                left = [path for path in wanted if leaves or path not in self._apart]
                await asyncio.get_running_loop().run_in_executor(self._threads, self._set_apart, left, apart)
                if apart:
                    self._apart.update(left)
        if leaves and (lost := [path for path in wanted if self._is_gone(path)]):
            await self.gather(lost, apart)  # it left sooner, and storage has it

    def _is_gone(self, path: str) -> bool:
        """What was brought was a link into the staging, which keeps no checkpoint longer than until the next one; or
        somebody wrote to it since.
        """
        if not self._begun[path].done():
            return False
        here, brought = os.path.join(self.folder, path), self._brought.get(path)
        return not os.path.lexists(here) if brought is None else Stamp.at(here) != brought

    def _settle(self, work: asyncio.Future[None], files: List[NoteFile]) -> None:
        if work.cancelled() or work.exception() is not None:
            for file in files:  # the next who asks tries anew
                self._begun.pop(file.path, None)

    async def _gather(self, files: List[NoteFile], apart: bool) -> None:
        loop = asyncio.get_running_loop()
        wanted = sorted({f.path for f in files}.intersection(self._sources.own))
        own = set(await loop.run_in_executor(self._threads, self._link_own, wanted) if wanted else ())
        lacking = [f for f in files if f.path not in own]
        held = [f for f in lacking if f.path in self._sources.holders]
        stored = [f.path for f in lacking if f.path not in self._sources.holders]
        refused, _ = await asyncio.gather(self._peers.bring(held), self._from_storage(stored, {}, apart))
        if refused:
            await self._from_storage(sorted(refused), refused, apart)
        await loop.run_in_executor(self._threads, self._note, [f.path for f in files])

    # -- storage -------------------------------------------------------------------------------------------------------

    async def _from_storage(self, paths: Sequence[str], refused: Mapping[str, Exception], apart: bool) -> None:
        """`refused`: why peers did not give them."""
        if not paths:
            return
        because = next((error for error in refused.values() if isinstance(error, FetchError)), None) or next(
            iter(refused.values()), None
        )
        if self._storage is None:
            if because is None:
                raise Damaged(self.id, f"{paths[0]} of checkpoint {self.id} is not in the staging area any more")
            raise self._verdict(because, "")
        try:
            await self._read(self._storage, paths, apart)
        except StorageError as error:
            if because is not None:
                raise self._verdict(because, f"; nor is it to be had from storage: {error}") from error
            if error.kind in GONE:
                raise Damaged(self.id, str(error)) from error
            raise

    async def _read(self, storage: StorageChild, paths: Sequence[str], apart: bool) -> None:
        if self._sources.committed is None:  # or nobody asked: finished shares stay when it is committed
            await ask(storage, "fetch", {"note": self.note.to_json(), "paths": list(paths), "into": self.folder})
        else:
            await self._verified(storage, self._sources.committed, paths, apart)

    async def _verified(
        self, storage: StorageChild, where: Mapping[str, Any], paths: Sequence[str], apart: bool
    ) -> None:
        request = {**where, "paths": list(paths), "into": self.folder, "copy": apart}
        try:
            found = await ask(storage, "verify", request)
        except StorageError as error:
            if error.kind != errors.FULL or not apart:
                raise
            # No room here for what storage has: as good as it gets is to read it there, where it is read-only.
            found = await ask(storage, "verify", {**request, "copy": False})
        if found["path"] != self.folder:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._link, str(found["path"]), paths)

    def _verdict(self, because: Optional[Exception], more: str) -> Exception:
        """Peers do not give it, and storage does not either. What a peer that cannot be reached holds is as good as
        before.
        """
        text = f"checkpoint {self.id} cannot be brought to this worker: {because}{more}"
        if isinstance(because, NotThere):
            # Its agent told otherwise at the join: the file changed since. The next join sees that.
            return Damaged(self.id, text)
        return StorageError(errors.UNREADABLE, text)

    # -- the folder ----------------------------------------------------------------------------------------------------

    def _link_own(self, paths: Sequence[str]) -> Sequence[str]:
        """Those of them that lie in the own staging as they were kept."""
        kept = self._sources
        there = [path for path in paths if Stamp.at(os.path.join(kept.staged, path)) == kept.own[path]]
        self._link(kept.staged, there)
        return there

    def _link(self, source: str, paths: Sequence[str]) -> None:
        try:
            for path in paths:
                link = os.path.join(self.folder, path)
                os.makedirs(os.path.dirname(link), exist_ok=True)
                if os.path.lexists(link):
                    os.unlink(link)
                os.symlink(os.path.join(source, path), link)
        except OSError as error:
            raise StorageError(errors.UNREADABLE, f"{self.folder}: {error.strerror or error}") from error

    def _note(self, paths: Sequence[str]) -> None:
        for path in paths:
            here = os.path.join(self.folder, path)
            self._brought[path] = None if self._leads_to_storage(here) else Stamp.at(here)

    def _leads_to_storage(self, here: str) -> bool:
        return os.path.islink(here) and not os.readlink(here).startswith(self._sources.staged + os.sep)

    def _set_apart(self, paths: Sequence[str], apart: bool) -> None:
        """Put copies (reflinks where that is possible) in the place of links to what leaves the staging area, and
        (`apart`) to what writing would destroy.
        """
        copied = []
        for path in paths:
            here = os.path.join(self.folder, path)
            if os.path.islink(here) and self._must_be_copied(here, apart):
                aside = f"{here}.{os.urandom(4).hex()}"
                try:
                    with open(here, "rb", buffering=0) as kept, open(aside, "xb", buffering=0) as copy:
                        cloning.clone(kept.fileno(), copy.fileno())
                    os.replace(aside, here)
                    copied.append(path)
                except OSError:
                    # No room for a second one. It stays a link to a read-only file; who writes all the same is found
                    # out by its stamp.
                    _remove(aside)
        self._note(copied)

    def _must_be_copied(self, here: str, apart: bool) -> bool:
        if self._leads_to_storage(here):
            return apart
        return self._sources.may_go() or (apart and self._could_be_lost(here))

    def _could_be_lost(self, here: str) -> bool:
        """A staged file whose rights stop nobody (we are root, as its writers are), and which storage does not have."""
        return os.access(here, os.W_OK) and not self._sources.is_stored()


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
