"""Rank 0's agent: what makes released checkpoints durable, and a run complete. The upload queue, the commit, the end
record.

Made by `leader` when the join is answered. The queue's rules are `uploads` (pure); this carries them out. What storage
keeps is `keeping`'s.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Set

from trainjob.agent.background import Background, within
from trainjob.agent.committing import uploads
from trainjob.agent.committing.keeping import Keeping
from trainjob.agent.committing.uploads import Uploads
from trainjob.agent.site import Site
from trainjob.agent.storing.backoff import Backoff
from trainjob.agent.storing.storage import StorageError
from trainjob.agent.wire.from_leader import Committed, Drop, ShareAgain, Tell
from trainjob.agent.wire.packed import Note
from trainjob.checkpoint import errors
from trainjob.checkpoint.records import shown
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob_api import contract

REFUSALS = (errors.READ_ONLY, errors.FULL, errors.UNREADABLE)
"""Kinds of storage errors that a rank which waits for the commit (SYNC) is told of; others are tried again first."""
HOPELESS = (errors.CONFLICT, errors.INVALID, errors.DAMAGED, errors.LOST)
"""Kinds that trying again does not mend: what is stored is not what was shared. A few tries, as some file systems
show things late.
"""
HOPELESS_TRIES = 4


class Commits:
    """Jobs without storage have one too: nothing waits there, everything is admitted."""

    def __init__(self, site: Site, tell: Tell, run: int, attempt: int, protected: Iterable[str]) -> None:
        self._site = site
        self._tell = tell
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._uploads = Uploads(self._loop.time())
        self._background = Background(site.on_fault)
        self._timer: Optional[asyncio.TimerHandle] = None
        self._committing: Set[str] = set()
        self._keeping = Keeping(
            site, run, attempt, protected, lambda: self._uploads.queue, self._kept, self._tell_drained
        )
        self._drained = asyncio.Event()
        self._stored = asyncio.Event()
        """A checkpoint is on its way no more."""
        self._newest_metrics: Mapping[str, Any] = {}
        self._on_admitted: Callable[[], None] = lambda: None
        self._troubles: Set[str] = set()
        self._refusal: Optional[str] = None
        """What storage said last; it stands until it takes a checkpoint."""
        self._said: Set[str] = set()
        """Warnings about checkpoints, of which a loop gets the same with each."""
        self.on_committed: Callable[[str], None] = lambda id_: None
        self.on_trouble: Callable[[str, str], None] = lambda id_, message: None
        """A checkpoint cannot be stored for now (id, why)."""
        self.on_drained: Callable[[], None] = lambda: None
        self.on_failed: Callable[[str], None] = lambda why: None
        """onUploadFailure is Fail, and a checkpoint cannot be stored for good."""
        self.trouble: Optional[str] = None
        """Why checkpoints do not reach storage."""
        self.failed: Optional[str] = None
        """The job is to fail because of it."""
        self.latest: Optional[contract.CheckpointReport] = None
        self.best: Optional[contract.CheckpointReport] = None
        self.count = 0

    @property
    def drained(self) -> bool:
        """Nothing is on its way, and retention has been seen to."""
        return not self._uploads.queue and not self._keeping.at_work

    @property
    def on_their_way(self) -> List[str]:
        """Ids of the checkpoints that storage does not have yet, oldest first."""
        return self._uploads.queue

    @property
    def moved_at(self) -> float:
        """When a byte of any worker was stored last."""
        return self._uploads.moved_at

    async def until_drained(self, timeout_s: float) -> None:
        """Wait for that, no longer than this."""
        self._drained.clear()
        try:
            await within(self._drained.wait(), timeout_s)
        except asyncio.TimeoutError:
            pass

    async def reported(self, timeout_s: Optional[float]) -> List[Dict[str, Any]]:
        """The run's checkpoints on storage, oldest first, once those that are on their way are there (or the time is
        over). Raises StorageError.
        """
        if self._site.storage is None:
            return (
                []
                if self.latest is None
                else [{"id": self.latest["id"], "path": None, "metrics": self._newest_metrics}]
            )
        ids, deadline = set(self._uploads.queue), None if timeout_s is None else self._loop.time() + timeout_s
        while ids.intersection(self._uploads.queue) and (deadline is None or self._loop.time() < deadline):
            self._stored.clear()
            try:
                await within(self._stored.wait(), None if deadline is None else deadline - self._loop.time())
            except asyncio.TimeoutError:
                break
        wanted = {"run": self._run, "over": self._keeping.validated_ones}
        return list((await self._site.storage.call("reported", wanted))["checkpoints"])

    def waits_only_for(self, lost: Set[int]) -> bool:
        """Whatever is on its way lacks the share of one of these members."""
        return not self._keeping.at_work and all(self._uploads.waiting_for(id_) & lost for id_ in self._uploads.queue)

    def close(self) -> None:
        """Another attempt begins; what is unfinished is adopted by it."""
        if self._timer is not None:
            self._timer.cancel()
        self._background.cancel()
        self._keeping.close()

    # -- inputs --------------------------------------------------------------------------------------------------------

    def admit(self, on_admitted: Callable[[], None]) -> None:
        """A report wants to save; `on_admitted` when there is a place."""
        self._on_admitted = on_admitted
        if self._site.storage is None:
            on_admitted()
        else:
            self._carry_out(self._uploads.admit(self._loop.time()))

    def withdraw(self) -> None:
        """The report that asked has failed."""
        self._uploads.withdraw()

    def released(self, note: Note, sharers: Iterable[int], ranks: Optional[List[int]] = None) -> None:
        """A checkpoint is STAGED; its agents begin to store it."""
        id_ = str(note["id"])
        if self._site.storage is None:
            self.latest, self.count, self._newest_metrics = _shown(note, None), 1, note["metrics"]
            self._site.changed(False)
        else:
            self._carry_out(self._uploads.released(self._loop.time(), id_, note, sharers, ranks))

    def shared(self, index: int, id_: str) -> None:
        """An agent's share is stored."""
        if self._uploads.upload(id_) is None:
            # It missed how that ended (its connection was lost).
            self._tell(index, Committed(id_))
        self._carry_out(self._uploads.shared(self._loop.time(), index, id_))

    def share_lost(self, index: int, id_: str, message: str) -> None:
        """An agent can never store its share."""
        self._carry_out(self._uploads.lost(self._loop.time(), id_, f"worker {index}: {message}"))

    def share_failing(self, id_: str, kind: str, message: str) -> None:
        """An agent's storage refuses for now."""
        self._say_trouble(id_, f"Checkpoint {id_} cannot be stored: {message}", kind)

    def moved(self, index: int, total: int) -> None:
        """An agent's bytes so far."""
        self._carry_out(self._uploads.moved(self._loop.time(), index, total))
        self._arm()

    def validated(self, id_: str, over: bool) -> None:
        """A checkpoint is validated, or (`over`) was: it may be the best now, or one too many."""
        self._keeping.validated(id_, over)

    # -- outputs -------------------------------------------------------------------------------------------------------

    def _carry_out(self, outputs: List[uploads.Output]) -> None:
        for output in outputs:
            if isinstance(output, uploads.Admitted):
                self._on_admitted()
            elif isinstance(output, uploads.CommitNow):
                self._spawn_commit(output.id)
            else:
                self._drop(output)
        self._arm()

    def _drop(self, dropped: uploads.Drop) -> None:
        dropping = f"checkpoint {dropped.id} was dropped: {dropped.why}"
        cause = self._refusal if dropped.stalled else None
        self.trouble = f"C{dropping[1:]}" if cause is None else f"{cause.rstrip('.')}. Meanwhile {dropping}"
        self._site.console.say(f"checkpoint {dropped.id} is not stored: {dropped.why}")
        self._stored.set()
        self._site.changed(False)
        self._tell(None, Drop(dropped.id, dropped.why))
        self.on_trouble(dropped.id, dropped.why if cause is None else f"{dropped.why}; {cause}")
        self._fail_for_good(self.trouble)
        self._tell_drained()

    def _fail_for_good(self, why: str) -> None:
        if self._site.config.spec.on_upload_failure == contract.FAIL and self.failed is None:
            self.failed = f"{why}. The job fails because of it: spec.checkpoint.onUploadFailure is Fail."
            self.on_failed(self.failed)

    def _arm(self) -> None:
        deadline = self._uploads.deadline()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = (
            None
            if deadline is None
            else self._loop.call_at(deadline + 0.01, lambda: self._carry_out(self._uploads.tick(self._loop.time())))
        )

    def _spawn_commit(self, id_: str) -> None:
        if id_ not in self._committing:
            self._committing.add(id_)
            self._background.spawn(self._commit(id_))

    async def _commit(self, id_: str) -> None:
        """Publish the manifest, however often it takes."""
        assert self._site.storage is not None
        # One nonce for all tries: a reply that was lost must not look like another's commit.
        nonce, backoff, hopeless = os.urandom(8).hex(), Backoff(), 0
        try:
            while True:
                upload = self._uploads.upload(id_)
                if upload is None or upload.waiting:
                    break
                try:
                    request: Dict[str, Any] = {"note": dict(upload.note), "nonce": nonce}
                    if upload.ranks is not None:
                        request["ranks"] = upload.ranks
                    reply = await self._site.storage.call("commit", request)
                except StorageError as error:
                    self._say_trouble(id_, f"Checkpoint {id_} cannot be committed: {error}", error.kind)
                    hopeless = hopeless + 1 if error.kind in HOPELESS else 0
                    if hopeless >= HOPELESS_TRIES:
                        self._carry_out(self._uploads.lost(self._loop.time(), id_, str(error)))
                        break
                else:
                    if self._after_commit(id_, upload.note, reply):
                        break
                await backoff.pause()
        finally:
            self._committing.discard(id_)

    def _after_commit(self, id_: str, note: Note, reply: Mapping[str, Any]) -> bool:
        now = self._loop.time()
        if reply["committed"]:
            for text in reply.get("warnings") or ():
                if text not in self._said:
                    self._said.add(text)
                    self._site.console.say(f"checkpoint {id_}: {text} (said once)")
            self._troubles.clear()
            self.trouble = self._refusal = None
            self.latest, self.count = _shown(note, self._site.uri(CheckpointId.parse(id_))), self.count + 1
            self.on_committed(id_)
            self._tell(None, Committed(id_))
            self._keeping.look()
            self._carry_out(self._uploads.committed(now, id_))
            self._stored.set()
            return True
        missing = list(reply.get("missing") or ())
        if not missing:
            self._carry_out(self._uploads.lost(now, id_, "retention of a later run removed it"))
            return True
        ranks = ", ".join(str(r) for r in missing)
        self._say_trouble(
            id_,
            f"Checkpoint {id_}: the storage does not show the files of rank {ranks} although its agent stored them. "
            "Is the same volume mounted in every pod?",
        )
        self._tell(None, ShareAgain(id_))
        return False

    def _kept(self, kept: Mapping[str, Any]) -> None:
        self.count, self.latest, self.best = int(kept["count"]), kept.get("latest") or self.latest, kept.get("best")
        self._site.changed(False)

    def _tell_drained(self) -> None:
        if self.drained:
            self._drained.set()
            self.on_drained()

    async def write_end(self, summary: Dict[str, Any]) -> None:
        """The run's end record, however often it takes."""
        backoff = Backoff()
        while self._site.storage is not None:
            try:
                returned = self._site.return_file if os.path.exists(self._site.return_file) else None
                await self._site.storage.call("end", {"run": self._run, "summary": summary, "returned": returned})
                return
            except StorageError as error:
                self._site.warn(f"The run is over, but its end record cannot be written: {error}")
                await backoff.pause()

    def _say_trouble(self, id_: str, text: str, kind: str = "") -> None:
        self._refusal = text
        if kind in REFUSALS:
            self.on_trouble(id_, text)
        if text not in self._troubles:
            self._troubles.add(text)
            # Only what is new: two workers' words in turns would be a status write each.
            self.trouble = text
            self._site.console.say(text)
            self._site.changed(False)
        if self._uploads.still_for(self._loop.time()) >= uploads.STALL_S:
            self._fail_for_good(f"{text} (no byte was stored for {self._uploads.still_for(self._loop.time()):.0f} s)")


def _shown(note: Note, uri: Optional[str]) -> contract.CheckpointReport:
    return shown.checkpoint(
        CheckpointId.parse(note["id"]),
        uri,
        step=note.get("step"),
        time=float(note["time"]),
        total_bytes=sum(int(f[1]) for f in note["files"]),
        reported=note["metrics"],
    )
