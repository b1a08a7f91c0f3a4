"""This agent's part in saving: stage its ranks' files, persist release notes, store its shares in the background, keep
the staging small.

Called by `member` (the live attempt's wishes) and `agent` (what to finish before the end). It outlives attempts: a
share that is being stored goes on while ranks are killed, held and started again. What belongs to the job (commit,
retention) is rank 0's agent's: `commits`.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple, TypeVar

from trainjob.agent.background import Background, OnFault
from trainjob.agent.storing.backoff import Backoff
from trainjob.agent.storing.storage import StorageChild, StorageError
from trainjob.agent.wire import packed
from trainjob.agent.wire.from_member import FromMember, Moved, Shared, ShareFailing, ShareLost
from trainjob.agent.wire.packed import Note
from trainjob.checkpoint.errors import CHANGED, CONFLICT, DAMAGED, INVALID, LOST, RETIRED, StagingError
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.manifest import ReleaseNote
from trainjob.checkpoint.staging.area import Held, Staging
from trainjob.checkpoint.staging.plan import Source

HOPELESS = (CHANGED, CONFLICT, INVALID, RETIRED)
"""Kinds of errors that trying again does not mend: this checkpoint cannot be stored, the next one can."""
_NO_STAMP = (-1, 0, 0, 0)
"""Of a file that is not as it was kept: never stored, unless it was before."""
T = TypeVar("T")


def _thread(name: str) -> Executor:
    return ThreadPoolExecutor(1, name)


class Saving:
    """One per agent."""

    def __init__(
        self,
        staging: Staging,
        storage: Optional[StorageChild],
        changed: Callable[[bool], None],
        on_fault: OnFault,
        thread: Callable[[str], Executor] = _thread,
    ) -> None:
        """`thread`: makes one by its name; what blocks is done there."""
        self._staging = staging
        self._staging.sweep()
        self._storage = storage
        self._changed = changed
        self._background = Background(on_fault)
        self._thread = thread("staging")
        self._looking = thread("held")
        self._unwanted = threading.Event()
        """Set: the attempt whose ranks' files are being staged is over."""
        self._queue: Dict[str, Tuple[ReleaseNote, Tuple[int, ...]]] = {}
        self._shared: Dict[str, ReleaseNote] = {}
        """Stored by us and not yet committed; told again to each new leader."""
        self._staged_ranks: Dict[str, Tuple[int, ...]] = {}
        self._work: Optional[asyncio.Task[None]] = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._newest: Optional[CheckpointId] = None
        self._protected: Optional[str] = None
        self._shown: Dict[str, ReleaseNote] = {}
        self._committed: Set[str] = set()
        self._adopted = False
        """A join has said what of the staging goes on to storage."""
        self.moved = 0
        """Bytes stored so far. What a try moves again that one before it had moved does not count: a full disk must
        not look like progress.
        """
        self._furthest: Tuple[Tuple[str, int], int] = (("", -1), 0)
        """The share (checkpoint, rank) that is being stored, and how far any try has come."""
        self.to_leader: Callable[[FromMember], None] = lambda word: None
        """Set by each attempt."""

    @property
    def waiting(self) -> int:
        """Shares that are staged here and not yet stored."""
        return len(self._queue)

    async def finished(self) -> None:
        """Until nothing waits."""
        await self._idle.wait()

    def close(self) -> None:
        """Stop storing; the storage child ends by itself."""
        if self._work is not None:
            self._work.cancel()
        self._thread.shutdown(wait=False)
        self._looking.shutdown(wait=False)

    # -- staging ------------------------------------------------------------------------------------------------------

    async def shown(self) -> Tuple[packed.Held, ...]:
        """What of released checkpoints lies here, newest first, as a join tells it. Whoever lacks a note asks for it by
        its hash.
        """

        def look() -> Dict[packed.Held, ReleaseNote]:
            return {packed.Held.of(one.note.to_json(), one.paths): one.note for one in self._staging.released()}

        # Not behind what is being copied for an attempt that is over: a restart waits for this.
        found = await asyncio.get_running_loop().run_in_executor(self._looking, look)
        self._shown = {held.sha: note for held, note in found.items()}
        return tuple(found)

    def shown_note(self, sha: str) -> Optional[bytes]:
        """A note that the last join told of, packed."""
        note = self._shown.get(sha)
        return None if note is None else packed.pack(note.to_json())

    async def stage(
        self, id_: str, sources: Sequence[Tuple[int, str, bool]], states: Mapping[int, bytes]
    ) -> Tuple[Dict[int, List[Tuple[str, int]]], List[str]]:
        """Files by rank, and warnings. Raises StagingError."""
        given = [Source(rank, path, may_move) for rank, path, may_move in sources]
        cancel = self._unwanted.is_set
        result = await self._in_thread(self._staging.stage, CheckpointId.parse(id_), given, states, cancel)
        self._staged_ranks[id_] = tuple(sorted(rank for rank, files in result.files.items() if files))
        return result.files, result.warnings

    def cancel_staging(self) -> None:
        """The attempt is over: what is being staged for it, or waits for its turn, is given up (StagingError, kind
        STOPPED). What is staged from now on is another's.
        """
        self._unwanted.set()
        self._unwanted = threading.Event()

    async def checksums(self, id_: str, paths: Sequence[str]) -> Dict[str, str]:
        """Of staged files of a report that is not released yet. Raises StagingError."""
        return await self._in_thread(self._staging.checksums, CheckpointId.parse(id_), paths)

    async def abandon(self, id_: str) -> None:
        """The report failed."""
        self._staged_ranks.pop(id_, None)
        await self._in_thread(self._staging.abandon, CheckpointId.parse(id_))

    async def persist(self, note: Note) -> None:
        """The release note onto disk. Raises StagingError."""
        await self._in_thread(self._staging.release, ReleaseNote.from_json(dict(note)))

    async def held_of(self, id_: str) -> Optional[Held]:
        """A released checkpoint, and what of it lies here as it was kept."""
        return await self._in_thread(self._staging.held, CheckpointId.parse(id_))

    def folder_of(self, id_: str) -> str:
        """Where the files of a staged checkpoint lie."""
        return self._staging.files_dir(CheckpointId.parse(id_))

    def is_committed(self, id_: str) -> bool:
        """Whether we were told that its manifest is on storage."""
        return id_ in self._committed

    def may_go(self, id_: str) -> bool:
        """Whether it stays in the staging area only until storage has it, since a newer one was released."""
        return id_ not in (str(self._newest), self._protected)

    # -- storing ------------------------------------------------------------------------------------------------------

    async def released(self, note_json: Note) -> None:
        """A report that carried a checkpoint was released: it is the newest; store our share of it."""
        note = ReleaseNote.from_json(dict(note_json))
        self._newest, self._protected = note.id, None
        self._enqueue(note, self._staged_ranks.pop(str(note.id), ()))
        await self._prune()

    async def adopt(self, notes: Sequence[Note], chosen: Optional[str]) -> None:
        """A new attempt: these uncommitted checkpoints are stored from here on, oldest first; all others are
        forgotten.
        """
        wanted = {str(note["id"]): ReleaseNote.from_json(dict(note)) for note in notes}
        self._queue = {id_: entry for id_, entry in self._queue.items() if id_ in wanted}
        self._shared = {id_: note for id_, note in self._shared.items() if id_ in wanted}
        self._adopted = True
        self._protected = chosen
        for id_, note in wanted.items():
            if id_ not in self._queue and id_ not in self._shared:
                held = await self.held_of(id_)
                self._enqueue(note, held.ranks if held is not None else (), repeat=True)
        self.tell_shared()
        self._newest = None if chosen is None else CheckpointId.parse(chosen)
        await self._prune(everything=True)

    async def commit_what_is_left(self) -> None:
        """No attempt may follow: store what is released here, and commit what then has all shares. Rank 0's agent may
        be gone, or have been started anew as we were: whoever stores the last share is who finds them all, and of
        several that try one succeeds. What lacks a share stays as it is.
        """
        if self._storage is None:
            return
        if not self._adopted:
            for held in reversed(await self._in_thread(self._staging.released)):
                self._enqueue(held.note, held.ranks, repeat=True)
        await self.finished()
        for note in [self._shared[id_] for id_ in sorted(self._shared, key=CheckpointId.parse)]:
            request = {"note": note.to_json(), "ranks": sorted({f.rank for f in note.files}), "nonce": _nonce()}
            backoff = Backoff()
            while str(note.id) in self._shared:
                try:
                    if (await self._storage.call("commit", request))["committed"]:
                        await self.committed(str(note.id))
                    break
                except StorageError as error:
                    if error.kind in (*HOPELESS, DAMAGED, LOST):
                        break
                await backoff.pause()

    def tell_shared(self) -> None:
        """To a new leader, or over a new connection."""
        for id_ in self._shared:
            self.to_leader(Shared(id_))

    async def committed(self, id_: str) -> None:
        """Its manifest is on storage."""
        self._committed.add(id_)
        self._forget(id_)
        await self._prune()

    async def dropped(self, id_: str) -> None:
        """It will not be stored."""
        self._forget(id_)
        await self._prune()

    async def share_again(self, id_: str) -> None:
        """Storage does not show our share."""
        held = await self.held_of(id_)
        if held is not None and self._shared.pop(id_, None) is not None:
            self._enqueue(held.note, held.ranks, repeat=True)

    def _enqueue(self, note: ReleaseNote, ranks: Tuple[int, ...], repeat: bool = False) -> None:
        if self._storage is None:
            return
        id_ = str(note.id)
        if not ranks:
            if repeat:
                self._tell_done(note)
            return
        # Copies of other ranks' paths are compared only by the attempt that staged them: they do not count as held.
        self._queue[id_] = (note._replace(duplicates=()) if repeat else note, ranks)
        self._idle.clear()
        self._changed(False)
        if self._work is None or self._work.done():
            self._work = self._background.task(self._store_all())

    def _forget(self, id_: str) -> None:
        self._shared.pop(id_, None)
        if self._queue.pop(id_, None) is not None:
            self._changed(not self._queue)

    def _tell_done(self, note: ReleaseNote) -> None:
        self._shared[str(note.id)] = note
        self.to_leader(Shared(str(note.id)))

    async def _store_all(self) -> None:
        try:
            await self._store_queue()
        finally:
            self._idle.set()  # whatever ends this: who waits for it must not wait for ever

    async def _store_queue(self) -> None:
        backoff = Backoff()
        while self._queue:
            id_, (note, ranks) = next(iter(self._queue.items()))
            try:
                await self._store(note, ranks)
            except StorageError as error:
                if error.kind in HOPELESS or (error.kind == LOST and not await self._is_whole(note, ranks)):
                    if self._queue.pop(id_, None) is not None:
                        self._changed(not self._queue)
                    self.to_leader(ShareLost(id_, str(error)))
                    continue
                self.to_leader(ShareFailing(id_, error.kind, str(error)))
                await backoff.pause()
                continue
            backoff.reset()
            if self._queue.pop(id_, None) is not None:
                self._tell_done(note)
                self._changed(not self._queue)

    async def _store(self, note: ReleaseNote, ranks: Tuple[int, ...]) -> None:
        assert self._storage is not None
        held = await self.held_of(str(note.id))
        stamps = {} if held is None else held.stamps
        for rank in ranks:
            mine = [[path, *stamps.get(path, _NO_STAMP)] for path, _ in note.share_of(rank)["files"]]
            folder = self._staging.files_dir(note.id)
            where = {"checkpoint": str(note.id), "rank": rank, "staged": folder, "stamps": mine}
            share = (str(note.id), rank)
            if self._furthest[0] != share:
                self._furthest = (share, 0)
            await self._storage.call(
                "share", {**where, **note.share_of(rank)}, functools.partial(self._moved, self._storage.moved)
            )

    def _moved(self, before: int, total: int) -> None:
        """The bytes that the storage child had moved before this try of a share, and now."""
        share, furthest = self._furthest
        if total - before > furthest:
            self._furthest = (share, total - before)
            self.moved += total - before - furthest
            self.to_leader(Moved(self.moved))

    async def _is_whole(self, note: ReleaseNote, ranks: Tuple[int, ...]) -> bool:
        """Whether what we are to store of it still lies here as it was released."""
        held = await self.held_of(str(note.id))
        return held is not None and set(held.paths) >= {f.path for f in note.files if f.rank in ranks}

    # -- the staging area's size --------------------------------------------------------------------------------------

    async def _prune(self, everything: bool = False) -> None:
        """Keep the newest released one, what waits to be stored or committed, and what this attempt resumed from (until
        its first release).

        What is newer than the newest release stays: its note may be on its way to the others. Only once a join has
        chosen, and before the next report, `everything` else may go.
        """
        keep = {*self._queue, *self._shared, str(self._newest), str(self._protected)}
        # As of now, like `keep`: until the thread gets to it a newer one may be released, which must not be taken for
        # an old one.
        limit = self._newest

        def drop_others() -> None:
            if everything:
                # What ranks of older attempts saved and nobody released, since a worker was lost meanwhile. Of this
                # one none has been started yet.
                self._staging.drop_unreleased()
            for held in self._staging.released():
                if str(held.note.id) not in keep and (everything or (limit is not None and held.note.id <= limit)):
                    self._staging.drop(held.note.id)

        try:
            await self._in_thread(drop_others)
        except StagingError:
            pass  # tried again at the next release; a full disk is told by the stage that fails

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


def _nonce() -> str:
    return os.urandom(8).hex()
