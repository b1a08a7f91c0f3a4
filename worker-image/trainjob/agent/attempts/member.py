"""This agent as a member of the live attempt: passes its ranks' calls to rank 0's agent and its answers back, and does
what that agent asks.

Made by `attempt`. On rank 0's own agent the "link" is a plain call. It remembers what its ranks wait for, so that after
a lost connection everything can be said again.
"""

from __future__ import annotations

import asyncio
import time
from typing import (
    Any,
    Callable,
    Coroutine,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Set,
    Tuple,
)

from trainjob.agent.background import Background
from trainjob.agent.processes.output import RankOutput
from trainjob.agent.processes.ranks import Rank, how_it_ended
from trainjob.agent.processes.stacks import stacks_of
from trainjob.agent.restoring.restore import Damaged, NotHere, Restore
from trainjob.agent.site import Site
from trainjob.agent.storing.storage import StorageError
from trainjob.agent.wire import peer_protocol
from trainjob.agent.wire.messages import Arrive, Callers, parse_joined, unpack
from trainjob.agent.wire.rank_calls import RankServer
from trainjob.checkpoint.errors import StagingError
from trainjob.checkpoint.records import names
from trainjob_api import contract, wire

TELL_S = 0.25
"""So long a rank's call may wait for those of the other ranks here before rank 0's agent is told of it."""


class _Call(NamedTuple):
    """A rank's collective."""

    n: int
    kind: str
    timeout_s: Optional[float]
    mode: Optional[str]
    stop: bool
    metadata: Optional[Mapping[str, Any]]
    row: Optional[Mapping[str, Any]]
    blob: bytes


class Duties(Protocol):
    """What the attempt does for its member."""

    restore: Optional[Restore]

    @property
    def ranks(self) -> Sequence[Rank]:
        """This agent's ranks."""

    def process_of(self, number: int) -> Rank:
        """The process that a rank belongs to: under a launcher there is one for all. Raises ValueError."""

    def joined(self, answer: Mapping[str, Any]) -> None:
        """The join was answered."""

    def refused(self, kind: str, message: str) -> None:
        """The join was refused."""

    def damaged(self, id_: str, why: str) -> None:
        """The checkpoint that was resumed is damaged: the attempt is over."""

    def storage_unusable(self, message: str) -> None:
        """A rank's checkpoint cannot be read: its ranks end."""

    def unstored(self, message: str) -> None:
        """The ranks ended well, but the job fails as a checkpoint cannot be stored."""

    def needed(self, numbers: Sequence[int], message: str) -> None:
        """Ranks of this agent ended, and others were refused a call for it."""

    def completed(self) -> None:
        """The run's end record is written."""


class Member:
    """`called` from ranks, `take` from rank 0's agent."""

    def __init__(self, site: Site, duties: Duties, send: Callable[..., None]) -> None:
        self._site = site
        self._duties = duties
        self._send = send
        self.server: Optional[RankServer] = None
        self._waiting: Dict[int, _Call] = {}
        """The call of each rank that waits in a collective."""
        self._untold: Set[int] = set()
        """Of them, those that rank 0's agent has not been told of yet."""
        self._untold_since = 0.0
        self._teller: Optional[asyncio.TimerHandle] = None
        self._offers: Dict[Tuple[int, int], Mapping[str, Any]] = {}
        self._states: Dict[Tuple[int, int], bytes] = {}
        """Of the report that is open, by (n, rank)."""
        self._staging: Dict[int, str] = {}
        self._steps: Dict[Tuple[int, str], Optional[wire.Message]] = {}
        """Steps of the save that is going on, with the answer once there is one."""
        self.world_size: Optional[int] = None
        """Under a launcher: as its ranks were told."""
        self._notes: Dict[int, Mapping[str, Any]] = {}
        self._ends: Dict[int, wire.Message] = {}
        self._listings: Dict[int, wire.Message] = {}
        """Of ranks that wait for the list of the run's checkpoints."""
        self._asking: Set[int] = set()
        """Ranks that wait for a checkpoint, or files of it."""
        self._background = Background(site.on_fault)
        self._from_leader: Dict[str, Callable[[wire.Message, bytes], None]] = {
            peer_protocol.RELEASE: self._release,
            peer_protocol.FAIL: self._fail,
            peer_protocol.STAGE: lambda m, b: self._once(
                m, peer_protocol.STAGED, lambda: self._stage(int(m["n"]), str(m["id"]))
            ),
            peer_protocol.COMPARE: lambda m, b: self._once(
                m, peer_protocol.COMPARED, lambda: self._compare(int(m["n"]), str(m["id"]), m["paths"])
            ),
            peer_protocol.PERSIST: lambda m, b: self._once(
                m, peer_protocol.PERSISTED, lambda: self._persist(int(m["n"]), unpack(b))
            ),
            peer_protocol.UPLOAD: lambda m, b: self._upload(m["n"]),
            peer_protocol.STACKS: lambda m, b: self._background.spawn(self._stacks(m)),
            peer_protocol.MISSING: lambda m, b: self._missing(str(m["text"]), m["ranks"]),
            peer_protocol.REPORTED_ARE: lambda m, b: self._reported(m),
            peer_protocol.COMMITTED: lambda m, b: self._background.spawn(site.saving.committed(str(m["id"]))),
            peer_protocol.DROP: lambda m, b: self._background.spawn(self._drop(m)),
            peer_protocol.SHARE: lambda m, b: self._background.spawn(site.saving.share_again(str(m["id"]))),
            peer_protocol.NOTE: lambda m, b: self._show_note(str(m["sha"])),
            peer_protocol.JOINED: lambda m, b: duties.joined(parse_joined(m, b)),
            peer_protocol.REFUSED: lambda m, b: duties.refused(str(m["kind"]), str(m["message"])),
            peer_protocol.DAMAGED: lambda m, b: duties.damaged(str(m["id"]), str(m["why"])),
            peer_protocol.UNSTORED: lambda m, b: duties.unstored(str(m["message"])),
            peer_protocol.NEEDED: lambda m, b: duties.needed([int(rank) for rank in m["ranks"]], str(m["message"])),
            peer_protocol.COMPLETED: lambda m, b: duties.completed(),
        }

    # -- from ranks ---------------------------------------------------------------------------------------------------

    def called(self, rank: int, message: wire.Message, blob: bytes) -> None:
        """A frame of one of our ranks."""
        op = message["op"]
        if op == contract.OP_COLLECTIVE:
            self._arrive(rank, message, blob)
        elif op == contract.OP_LOG:
            if rank == 0:
                self._send({"op": peer_protocol.LOG, "rows": message["rows"]})
        elif op == contract.OP_RESTORE:
            self._background.spawn(self._restore(rank, self._given(rank, message.get("id"))))
        elif op == contract.OP_FETCH:
            self._background.spawn(self._restore(rank, self._fetched(message)))
        elif op == contract.OP_REPORTED:
            self._listings[rank] = {"op": peer_protocol.REPORTED, "rank": rank, "timeout_s": message.get("timeout_s")}
            self._send(self._listings[rank])
        else:
            raise ValueError(f"unknown operation {op!r}")

    def ending(self, number: int, how: str) -> None:
        """A rank has broken, by its own word: nobody waits for it from now on, however long its process takes to
        end.
        """
        self._ends[number] = {"op": peer_protocol.ENDED, "rank": number, "kind": None, "how": how}
        self._waiting.pop(number, None)
        self._send(self._ends[number])

    def _arrive(self, rank: int, message: wire.Message, blob: bytes) -> None:
        if rank in self._ends or rank in self._waiting:
            self._refuse(rank, message)
            return
        n, kind, offer, row = int(message["n"]), str(message["kind"]), message.get("checkpoint"), None
        mode, metadata, stop = None, None, False
        if kind == contract.KIND_REPORT:
            stop = bool(message.get("stop"))
            if rank == 0:
                row = {name: message.get(name) for name in ("metrics", "step", "total_steps", "epoch")}
            if blob:
                self._states[n, rank] = blob
            blob = b""
            if offer is not None:
                self._offers[n, rank] = offer
                mode, metadata = offer.get("mode") or contract.UPLOAD_ASYNC, offer.get("metadata")
        elif rank != 0:
            blob = b""
        self._waiting[rank] = _Call(n, kind, message.get("timeout_s"), mode, stop, metadata, row, blob)
        self._tell_of(rank)

    def _tell_of(self, rank: int) -> None:
        """One message for all ranks of this agent, when the last of them calls; where one keeps the others waiting,
        rank 0's agent hears soon who is there, since it names who is missing.
        """
        if not self._untold:
            self._untold_since = time.monotonic()
        self._untold.add(rank)
        if self.world_size is not None or all(
            r.rank in self._waiting or r.rank in self._ends for r in self._duties.ranks
        ):
            self._tell_arrivals()
        elif self._teller is None:
            # Left standing when all have come: a report() does not pay for it.
            self._teller = asyncio.get_running_loop().call_later(TELL_S, self._tell_late)

    def _tell_late(self) -> None:
        self._teller = None
        self._tell_arrivals()

    def _tell_arrivals(self) -> None:
        ranks, self._untold = sorted(self._untold & self._waiting.keys()), set()
        waited = time.monotonic() - self._untold_since
        for n, kind in sorted({(self._waiting[rank].n, self._waiting[rank].kind) for rank in ranks}):
            calls = {r: self._waiting[r] for r in ranks if (self._waiting[r].n, self._waiting[r].kind) == (n, kind)}
            alike: Dict[Tuple[Optional[float], Optional[str], bool], List[int]] = {}
            for rank, call in calls.items():
                alike.setdefault((call.timeout_s, call.mode, call.stop), []).append(rank)
            first = next((rank for rank, call in calls.items() if call.metadata), None)
            arrive = Arrive(
                n,
                kind,
                tuple(Callers(tuple(together), *how) for how, together in alike.items()),
                waited,
                calls[0].row if 0 in calls else None,
                {} if first is None else {first: calls[first].metadata or {}},
                self.world_size,
            )
            self._send(arrive.to_message(), calls[0].blob if 0 in calls else b"")

    def _refuse(self, rank: int, message: wire.Message) -> None:
        """A call that could never be answered: a rank makes one after the other, and none once it is ending."""
        text = (
            f"Rank {rank} {self._ends[rank]['how']}, and makes a call after it."
            if rank in self._ends
            else f"Rank {rank} makes a call while another one of its own is not answered yet: an exception has left "
            "that one, or a second process speaks as this rank."
        )
        reply = {"op": contract.OP_FAILED, "n": message["n"], "reason": contract.FAIL_MISMATCH, "message": text}
        if self.server is not None:
            self.server.send(rank, {**reply, "ranks": [rank]})

    def ended(self, rank: Rank) -> None:
        """One of our rank processes has ended."""
        report = rank.report()
        message = {
            "op": peer_protocol.ENDED,
            "rank": rank.rank,
            "kind": report.get("kind"),
            "how": how_it_ended(report),
        }
        # Who came before is told before: its wait ends by this.
        self._tell_arrivals()
        self._ends[rank.rank] = message
        self._waiting.pop(rank.rank, None)
        self._send(message)

    def say_all_again(self) -> None:
        """Over a new connection: everything that rank 0's agent may not have heard."""
        for message in self._ends.values():
            self._send(message)
        self._untold.update(self._waiting)
        self._tell_arrivals()
        for listing in self._listings.values():
            self._send(listing)
        self._site.saving.tell_shared()

    async def hand_in(self) -> None:
        """This agent goes away: what it persisted is stored although its release has not come yet; rank 0's agent
        may release it any moment.
        """
        notes, self._notes = self._notes, {}
        for n in sorted(notes):
            self._staging.pop(n, None)
            await self._site.saving.released(notes[n])

    def owes(self, rank: int) -> bool:
        """Whether a call of this rank is not answered yet."""
        return rank in self._waiting or rank in self._listings or rank in self._asking

    @property
    def waiting(self) -> List[int]:
        """Our ranks that wait in a collective."""
        return sorted(self._waiting)

    def close(self) -> None:
        """The attempt is over here."""
        if self._teller is not None:
            self._teller.cancel()
        self._background.cancel()

    # -- from rank 0's agent -------------------------------------------------------------------------------------------

    def take(self, message: wire.Message, blob: bytes = b"") -> None:
        """A frame of rank 0's agent. Raises KeyError for one that does not exist."""
        self._from_leader[message["op"]](message, blob)

    def _release(self, message: wire.Message, blob: bytes) -> None:
        n, ranks = message["n"], message.get("ranks")
        saved = message.get("checkpoint")
        reply = {
            "op": contract.OP_RELEASED,
            "n": n,
            "stop": message["stop"],
            "checkpoint": saved,
            "warnings": message.get("warnings") or [],
        }
        # Rank 0 has the blob itself. What is large is encoded once for all who get it.
        frames = (wire.encode(reply), wire.encode(reply, blob) if blob else b"")
        for rank in list(self._waiting) if ranks is None else ranks:
            call = self._waiting.get(rank)
            if call is not None and call.n == n:
                del self._waiting[rank]
                if self.server is not None:
                    self.server.send_frame(rank, frames[1] if blob and rank != 0 else frames[0])
        self._upload(n)
        self._forget_save(n)

    def _reported(self, message: wire.Message) -> None:
        rank = int(message["rank"])
        if self._listings.pop(rank, None) is None or self.server is None:
            return
        if message.get("error"):
            self.server.send(
                rank,
                {"op": contract.OP_FAILED, "reason": contract.FAIL_STORAGE, "message": message["error"], "ranks": []},
            )
        else:
            self.server.send(rank, {"op": contract.OP_REPORTED_ARE, "checkpoints": message["checkpoints"]})

    def _upload(self, n: int) -> None:
        note = self._notes.pop(n, None)
        if note is not None:
            self._staging.pop(n, None)
            self._background.spawn(self._site.saving.released(note))

    def _fail(self, message: wire.Message, blob: bytes) -> None:
        for rank in message["ranks"]:
            call = self._waiting.pop(rank, None)
            if call is not None and self.server is not None:
                reply = {
                    "op": contract.OP_FAILED,
                    "n": call.n,
                    "reason": message["reason"],
                    "message": message["message"],
                    "ranks": message["about"],
                }
                self.server.send(rank, reply)
        self._notes.pop(message["n"], None)
        # What is being stored already (SYNC) is released, whatever its ranks are told.
        id_ = self._forget_save(message["n"])
        if id_ is not None:
            self._background.spawn(self._site.saving.abandon(id_))

    def _forget_save(self, n: int) -> Optional[str]:
        """Only of this call: an answer that is repeated for one rank may come while another waits in the next call
        already.
        """
        if self._offers or self._states:
            self._offers = {key: offer for key, offer in self._offers.items() if key[0] > n}
            self._states = {key: state for key, state in self._states.items() if key[0] > n}
        if self._steps:
            self._steps = {key: answer for key, answer in self._steps.items() if key[0] > n}
        return self._staging.pop(n, None)

    def _once(self, message: wire.Message, answer_op: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Asked again after a lost connection: what was done is told again, what is being done goes on."""
        step = (message["n"], answer_op)
        if step not in self._steps:
            self._steps[step] = None
            self._background.spawn(work())
        else:
            answer = self._steps[step]
            if answer is not None:
                self._send(answer)

    def _answer(self, n: int, step: str, message: wire.Message) -> None:
        self._steps[n, step] = message
        self._send(message)

    async def _stage(self, n: int, id_: str) -> None:
        self._staging[n] = id_
        offers = sorted((rank, offer) for (call, rank), offer in self._offers.items() if call == n)
        sources = [
            (rank, str(o["path"]), bool(o.get("delete")) and o.get("mode") != contract.UPLOAD_NONE)
            for rank, o in offers
        ]
        states = {rank: state for (call, rank), state in self._states.items() if call == n}
        try:
            files, warnings = await self._site.saving.stage(id_, sources, states)
        except StagingError as error:
            self._answer(n, peer_protocol.STAGED, {"op": peer_protocol.STAGE_FAILED, "n": n, "message": str(error)})
            return
        listing = {str(rank): [[path, size] for path, size in found] for rank, found in files.items()}
        size = sum(len(path) + 16 for found in files.values() for path, _ in found)
        if size > names.LISTING_LIMIT:
            text = names.too_many(sum(map(len, files.values())), size)
            self._answer(n, peer_protocol.STAGED, {"op": peer_protocol.STAGE_FAILED, "n": n, "message": text})
            return
        self._answer(
            n, peer_protocol.STAGED, {"op": peer_protocol.STAGED, "n": n, "files": listing, "warnings": warnings}
        )

    async def _compare(self, n: int, id_: str, paths: Mapping[str, Sequence[str]]) -> None:
        try:
            sums = {rank: await self._site.saving.checksums(id_, wanted) for rank, wanted in paths.items()}
        except StagingError as error:
            self._answer(n, peer_protocol.COMPARED, {"op": peer_protocol.STAGE_FAILED, "n": n, "message": str(error)})
            return
        self._answer(n, peer_protocol.COMPARED, {"op": peer_protocol.COMPARED, "n": n, "sums": sums})

    async def _persist(self, n: int, note: Mapping[str, Any]) -> None:
        try:
            await self._site.saving.persist(note)
        except StagingError as error:
            self._answer(n, peer_protocol.PERSISTED, {"op": peer_protocol.STAGE_FAILED, "n": n, "message": str(error)})
            return
        self._notes[n] = note
        self._answer(n, peer_protocol.PERSISTED, {"op": peer_protocol.PERSISTED, "n": n})

    def _show_note(self, sha: str) -> None:
        self._send({"op": peer_protocol.NOTE_IS, "sha": sha}, self._site.saving.shown_note(sha) or b"")

    async def _stacks(self, message: wire.Message) -> None:
        texts: Dict[str, str] = {}
        pids: Dict[int, Optional[int]] = {}
        for number in map(int, message["ranks"]):
            process = self._duties.process_of(number)
            if process.state == contract.RANK_ENDED:
                texts[str(number)] = how_it_ended(process.report())
            else:
                pids[number] = None if self.server is None else self.server.pid_of(number)
        stacks = {**texts, **await stacks_of(pids, self._site.socket_folder)}
        self._send({"op": peer_protocol.STACKS_ARE, "request": message["request"], "stacks": stacks})

    def _missing(self, text: str, ranks: Sequence[int]) -> None:
        """Said where somebody waits: in this agent's output, and in the logs of the ranks that wait."""
        mine = [r for r in self._duties.ranks if r.rank in ranks]
        if not mine:
            return
        self._site.console.say(text)
        for rank in mine:
            output: Optional[RankOutput] = rank.output
            if output is not None:
                output.note(text + "\n")

    async def _drop(self, message: wire.Message) -> None:
        self._site.console.say(f"checkpoint {message['id']} is not stored: {message['why']}")
        await self._site.saving.dropped(str(message["id"]))

    async def _given(self, rank: int, id_: Optional[str]) -> wire.Message:
        assert self._duties.restore is not None
        return {"op": contract.OP_RESTORED, "checkpoint": await self._duties.restore.bring(id_, rank)}

    async def _fetched(self, message: wire.Message) -> wire.Message:
        assert self._duties.restore is not None
        id_ = str(message["id"])
        try:
            folder = await self._duties.restore.fetch(id_, message.get("paths"), bool(message.get("apart")))
            return {"op": contract.OP_FETCHED, "folder": folder}
        except (KeyError, NotHere) as error:
            why = f"checkpoint {id_} has no file {error}" if isinstance(error, KeyError) else str(error)
            return {"op": contract.OP_FAILED, "reason": contract.FAIL_STAGING, "message": why, "ranks": []}

    async def _restore(self, rank: int, answer: Coroutine[Any, Any, wire.Message]) -> None:
        self._asking.add(rank)
        try:
            reply = await answer
        except Damaged as error:
            self._send({"op": peer_protocol.DAMAGED, "id": error.id, "why": str(error)})
            self._duties.damaged(error.id, str(error))
            return
        except StorageError as error:
            self._duties.storage_unusable(f"The checkpoint cannot be read: {error}")
            return
        finally:
            self._asking.discard(rank)
        if self.server is not None:
            self.server.send(rank, reply)
