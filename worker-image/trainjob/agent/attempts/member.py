"""This agent as a member of the live attempt: passes its ranks' calls to rank 0's agent and its answers back, and does
what that agent asks.

Made by `attempt`. On rank 0's own agent the "link" is a plain call. Who of its ranks waits is `arrivals`, which is
pure; its part in saving a checkpoint is `steps`. After a lost connection everything is said again.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Callable, Coroutine, Dict, List, Optional, Protocol, Sequence, Set, Type

from trainjob.agent.attempts.arrivals import Arrivals
from trainjob.agent.attempts.steps import Steps
from trainjob.agent.background import Background
from trainjob.agent.pace.telling import Telling
from trainjob.agent.processes.output import RankOutput
from trainjob.agent.processes.rank import Rank, how_it_ended
from trainjob.agent.processes.stacks import all_stand
from trainjob.agent.processes.vitals import Stillness
from trainjob.agent.restoring.restore import Damaged, NotHere, Restore
from trainjob.agent.site import Site
from trainjob.agent.storing.storage import StorageError
from trainjob.agent.wire import from_leader
from trainjob.agent.wire.from_leader import FromLeader, Joined
from trainjob.agent.wire.from_member import AskReported, Ended, FoundDamaged, FromMember, NoteIs, StacksAre
from trainjob.agent.wire.pulse import Beat
from trainjob.agent.wire.rank_calls import RankServer
from trainjob_api import contract, rank_messages
from trainjob_api.rank_messages import TO_RANK, Collective, Failed, Fetch, FromRank, Log, Paced, Reported, State, ToRank
from trainjob_api.typed import Object

TELL_S = 0.25
"""So long a rank's call may wait for those of the other ranks here before rank 0's agent is told of it."""
NOT_STARTED = "its process has not been started yet"


class Duties(Protocol):
    """What the attempt does for its member."""

    restore: Optional[Restore]

    @property
    def ranks(self) -> Sequence[Rank]:
        """This agent's ranks."""

    def process_of(self, number: int) -> Rank:
        """The process that a rank belongs to: under a launcher there is one for all. Raises ValueError."""

    def joined(self, answer: Joined) -> None:
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

    def broke(self, number: int) -> None:
        """A rank of the attempt broke, and not because it lost another."""

    def completed(self, shown: Optional[Object]) -> None:
        """The run's end record is written; what rank 0's agent shows of the run."""


class Member:
    """`called` from ranks, `take` from rank 0's agent."""

    def __init__(self, site: Site, duties: Duties, send: Callable[[FromMember], None]) -> None:
        self._site = site
        self._duties = duties
        self._send = send
        self.server: Optional[RankServer] = None
        self._background = Background(site.on_fault)
        self._arrivals = Arrivals()
        self._steps = Steps(site.saving, send, self._reply, self._background)
        self._teller: Optional[asyncio.TimerHandle] = None
        self._stillness = Stillness()
        self.pace = Telling(lambda: site.config.place, send)
        self._asked: Dict[int, AskReported] = {}
        """Of ranks that wait for the list of the run's checkpoints."""
        self._restoring: Set[int] = set()
        """Ranks that wait for a checkpoint, or files of it."""
        saving, spawn = site.saving, self._background.spawn
        self._from_leader: Dict[Type[Any], Callable[[Any], None]] = {
            from_leader.Release: self._release,
            from_leader.Fail: self._fail,
            from_leader.Stage: self._steps.take,
            from_leader.Compare: self._steps.take,
            from_leader.Persist: self._steps.take,
            from_leader.Upload: lambda word: self._steps.upload(word.n),
            from_leader.Stacks: lambda word: spawn(self._stacks(word)),
            from_leader.Missing: self._missing,
            from_leader.ReportedTo: self._reported,
            from_leader.Committed: lambda word: spawn(saving.committed(word.id)),
            from_leader.Drop: lambda word: spawn(self._drop(word)),
            from_leader.ShareAgain: lambda word: spawn(saving.share_again(word.id)),
            from_leader.AskNote: lambda word: send(NoteIs(word.sha, saving.shown_note(word.sha) or b"")),
            from_leader.Joined: duties.joined,
            from_leader.Refused: lambda word: duties.refused(word.kind, word.message),
            from_leader.Damaged: lambda word: duties.damaged(word.id, word.why),
            from_leader.Unstored: lambda word: duties.unstored(word.message),
            from_leader.Needed: lambda word: duties.needed(word.ranks, word.message),
            from_leader.Broke: lambda word: duties.broke(word.rank),
            from_leader.Completed: lambda word: duties.completed(word.shown),
            Beat: lambda word: None,  # the connection knows when it was heard
        }

    @property
    def waiting(self) -> List[int]:
        """Our ranks that wait in a collective."""
        return self._arrivals.waiting

    def owes(self, rank: int) -> bool:
        """Whether a call of this rank is not answered yet."""
        return self._arrivals.waits(rank) or rank in self._asked or rank in self._restoring

    def close(self) -> None:
        """The attempt is over here."""
        if self._teller is not None:
            self._teller.cancel()
        self.pace.close()
        self._background.cancel()

    # -- from ranks ---------------------------------------------------------------------------------------------------

    def called(self, rank: int, word: FromRank) -> None:
        """What one of our ranks says."""
        if isinstance(word, Collective):
            self._arrive(rank, word)
        elif isinstance(word, State):
            self._steps.told_state(rank, word)
        elif isinstance(word, Paced):
            self.pace.came(rank, word)
        elif isinstance(word, (Log, rank_messages.Validated)):
            if rank == 0:
                self._send(word)
        elif isinstance(word, rank_messages.Restore):
            self._background.spawn(self._restore(rank, self._given(rank, word.id)))
        elif isinstance(word, Fetch):
            self._background.spawn(self._restore(rank, self._fetched(word)))
        elif isinstance(word, Reported):
            self._asked[rank] = AskReported(rank, word.timeout_s)
            self._send(self._asked[rank])
        else:
            raise ValueError(f"rank {rank} says {type(word).__name__} after its hello")

    def launched(self, world_size: int) -> None:
        """Ranks under a launcher: how many it says there are."""
        self._arrivals.world_size = world_size

    def ending(self, number: int, how: str, communication: bool = False) -> None:
        """A rank has broken, by its own word: nobody waits for it from now on, however long its process takes to
        end.
        """
        self._tell_end(Ended(number, None, how, communication))

    def ended(self, rank: Rank) -> None:
        """One of our rank processes has ended."""
        report = rank.report()
        # Who came before is told before: its wait ends by this.
        self._tell_arrivals()
        communication = bool((report.get("error") or {}).get("communication"))
        self._tell_end(Ended(rank.rank, report.get("kind"), how_it_ended(report), communication))

    def _tell_end(self, end: Ended) -> None:
        self._arrivals.ended(end)
        self._steps.ended(end.rank)
        self._send(end)

    def _arrive(self, rank: int, call: Collective) -> None:
        """One message for all ranks of this agent, when the last of them calls; where one keeps the others waiting,
        rank 0's agent hears soon who is there, since it names who is missing.
        """
        refusal = self._arrivals.refusal(rank)
        if refusal is not None:
            self._reply(rank, Failed(contract.FAIL_MISMATCH, refusal, (rank,), call.n))
            return
        if call.kind == contract.KIND_REPORT:
            self._steps.gave(rank, call)
        self._arrivals.came(time.monotonic(), rank, call)
        if self._arrivals.all_here(r.rank for r in self._duties.ranks):
            self._tell_arrivals()
        elif self._teller is None:
            # Left standing when all have come: a report() does not pay for it.
            self._teller = asyncio.get_running_loop().call_later(TELL_S, self._tell_late)

    def _tell_late(self) -> None:
        self._teller = None
        self._tell_arrivals()

    def _tell_arrivals(self) -> None:
        for arrive in self._arrivals.told(time.monotonic()):
            self._send(arrive)

    def say_all_again(self) -> None:
        """Over a new connection: everything that rank 0's agent may not have heard."""
        for end in self._arrivals.ends:
            self._send(end)
        self._arrivals.all_untold()
        self._tell_arrivals()
        for asked in self._asked.values():
            self._send(asked)
        self._site.saving.tell_shared()

    async def hand_in(self) -> None:
        """This agent goes away: what its ranks saved is stored, also what rank 0's agent has not released yet."""
        await self._steps.hand_in()

    async def _given(self, rank: int, id_: Optional[str]) -> ToRank:
        assert self._duties.restore is not None
        return rank_messages.Restored(await self._duties.restore.given(id_, rank))

    async def _fetched(self, asked: Fetch) -> ToRank:
        assert self._duties.restore is not None
        try:
            return rank_messages.Fetched(await self._duties.restore.fetch(asked.id, asked.paths, asked.apart))
        except (KeyError, NotHere) as error:
            why = f"checkpoint {asked.id} has no file {error}" if isinstance(error, KeyError) else str(error)
            return Failed(contract.FAIL_STAGING, why)

    async def _restore(self, rank: int, answer: Coroutine[Any, Any, ToRank]) -> None:
        self._restoring.add(rank)
        try:
            reply = await answer
        except Damaged as error:
            self._send(FoundDamaged(error.id, str(error)))
            self._duties.damaged(error.id, str(error))
            return
        except StorageError as error:
            self._duties.storage_unusable(f"The checkpoint cannot be read: {error}")
            return
        finally:
            self._restoring.discard(rank)
        self._reply(rank, reply)

    def _reply(self, rank: int, reply: ToRank) -> None:
        if self.server is not None:
            self.server.send(rank, reply)

    # -- from rank 0's agent -------------------------------------------------------------------------------------------

    def take(self, word: FromLeader) -> None:
        """What rank 0's agent says."""
        self._from_leader[type(word)](word)

    def _release(self, word: from_leader.Release) -> None:
        reply = rank_messages.Released(
            word.n,
            word.stop,
            word.checkpoint,
            word.warnings,
            requested=word.requested,
            preemption=word.preemption,
        )
        # Rank 0 has the blob itself. What is large is encoded once for all who get it.
        plain = TO_RANK.encode(reply)
        whole = TO_RANK.encode(reply._replace(blob=word.blob)) if word.blob else plain
        for rank in self.waiting if word.ranks is None else word.ranks:
            if self._arrivals.answered(rank, word.n) is not None and self.server is not None:
                self.server.send_frame(rank, plain if rank == 0 else whole)
        self._steps.released(word.n)

    def _fail(self, word: from_leader.Fail) -> None:
        for rank in word.ranks:
            call = self._arrivals.answered(rank)
            if call is not None:
                if word.reason == contract.FAIL_RANK_GONE:
                    self._duties.process_of(rank).refuse(word.message)
                self._reply(rank, Failed(word.reason, word.message, word.about, call.n))
        self._steps.failed(word.n)

    def _reported(self, word: from_leader.ReportedTo) -> None:
        if self._asked.pop(word.rank, None) is None:
            return
        if word.error:
            self._reply(word.rank, Failed(contract.FAIL_STORAGE, word.error))
        else:
            self._reply(word.rank, rank_messages.ReportedAre(word.checkpoints))

    async def _stacks(self, asked: from_leader.Stacks) -> None:
        texts: Dict[int, str] = {}
        pids: Dict[int, Optional[int]] = {}
        loop = asyncio.get_running_loop()
        for number in asked.ranks:
            try:
                process = self._duties.process_of(number)
            except ValueError:
                texts[number] = NOT_STARTED
                continue
            if process.state == contract.RANK_ENDED:
                texts[number] = how_it_ended(process.report())
            else:
                pids[number] = None if self.server is None else self.server.pid_of(number)
        there = {number: pid for number, pid in pids.items() if pid is not None}
        quiet = self._stillness.since(loop.time(), there)
        found = await all_stand(pids, self._site.socket_folder)
        texts.update({number: each.stacks for number, each in found.items()})
        calls = {number: each.calls for number, each in found.items() if each.calls is not None}
        self._stillness.settle(loop.time(), there)
        self._send(StacksAre(asked.request, texts, self._site.config.place, quiet, calls))

    def _missing(self, word: from_leader.Missing) -> None:
        """Said where somebody waits: in this agent's output, and in the logs of the ranks that wait."""
        mine = [r for r in self._duties.ranks if r.rank in word.ranks]
        if not mine:
            return
        self._site.console.say(word.text)
        for rank in mine:
            output: Optional[RankOutput] = rank.output
            if output is not None:
                output.note(word.text + "\n")

    async def _drop(self, word: from_leader.Drop) -> None:
        await self._site.saving.dropped(word.id)
