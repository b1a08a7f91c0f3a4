"""One attempt on this agent, from the join to the end of its ranks. Made by `agent` when it is told `run n` and older
ranks are reaped.

What comes after what is `course`'s, which is pure; this is the driver that carries it out. The join is answered by rank
0's agent; then the ranks start, once. After their end the attempt stays (links up, uploads going on) until a newer one
takes its place. A fault in anything that works for the attempt ends it, with the text (END_INTERNAL).
"""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import replace
from typing import Any, List, Mapping, Optional, Sequence, Tuple

from trainjob.agent.attempts import awaited, beginning, course, forking, witness
from trainjob.agent.attempts.beginning import Beginning
from trainjob.agent.attempts.course import Course
from trainjob.agent.attempts.crew import Crew
from trainjob.agent.attempts.forking import Shape
from trainjob.agent.attempts.leader import Leader
from trainjob.agent.attempts.member import Member
from trainjob.agent.background import Background, explain, where
from trainjob.agent.boot_notes import BootNotes
from trainjob.agent.processes import open_files, rank_command
from trainjob.agent.processes.rank import Rank
from trainjob.agent.processes.rank_command import CannotRun
from trainjob.agent.restoring.restore import Origin, Restore
from trainjob.agent.site import Site
from trainjob.agent.storing.storage import StorageError
from trainjob.agent.wire.addresses import join_address
from trainjob.agent.wire.from_leader import Joined
from trainjob.agent.wire.from_member import FromMember, Join
from trainjob.agent.wire.leader_link import Caller, LeaderLink
from trainjob.agent.wire.packed import Held
from trainjob.agent.wire.peers import PeerServer
from trainjob_api import contract, last_word
from trainjob_api.rank_messages import Begun
from trainjob_api.typed import Object


class Attempt:
    """`begin`, then whatever the coordinator says: `stop`, `close`."""

    def __init__(
        self, site: Site, peers: PeerServer, boot: BootNotes, order: contract.Instruction, began: Beginning
    ) -> None:
        self._agents = Background(site.on_fault)
        """What ends the attempt: a fault there is the agent's own."""
        self._site = replace(site, on_fault=self.fault, changed=self._changed)
        self._tell = site.changed
        self.overtaken = False
        """A newer attempt has begun: nobody waits for what this one still has to say."""
        self._background = Background(self.fault)
        self._peers = peers
        self._boot = boot
        self._secret = str(order["secret"])
        self._leader_address = str(order["leader"])
        self._order = order
        self.number = int(order["attempt"])
        plain = rank_command.is_plain(site.config.command)
        self._shape = Shape(self.number, int(order["index"]), int(order["workers"]), int(order["processes"]), plain)
        self._course = Course()
        self._member = Member(self._site, self, self._to_leader)
        self._crew = Crew(self._site, self._shape, self._member, self._background, self._agents)
        self._crew.began = self._rank_began
        self.beginning = began
        self._link: Optional[LeaderLink] = None
        self._starting: Optional[asyncio.Task[None]] = None
        self._held: Tuple[Held, ...] = ()
        self.restore: Optional[Restore] = None
        self.leader: Optional[Leader] = None
        self._leader_lost: Optional[float] = None
        """Since when rank 0's agent cannot be reached, by the loop's time."""
        self.run: Optional[int] = None
        self.resumed_from: Optional[str] = None
        self.shown: Mapping[str, Any] = {}
        """Of a complete run, as rank 0's agent had told it, or its end record tells it (`last_word.SHOWN`)."""

    @property
    def ranks(self) -> Sequence[Rank]:
        """This agent's ranks; empty until the join is answered."""
        return self._crew.ranks

    @property
    def alive(self) -> bool:
        """Some rank process may be alive."""
        return self._crew.alive

    @property
    def hang(self) -> Optional[contract.HangReport]:
        """Of this worker's ranks one is stopped; of rank 0's agent: the job hangs."""
        collectives = None if self.leader is None else self.leader.collectives
        return self._crew.hang or (None if collectives is None else collectives.hangs.report)

    @property
    def unused(self) -> bool:
        """It was stopped before a rank was started: told again, it can begin anew."""
        return self._course.unused

    @property
    def joined_at_leader(self) -> bool:
        """The join was answered."""
        return self._course.joined

    @property
    def is_complete(self) -> bool:
        """The run's end record is there."""
        return self._course.complete

    @property
    def awaits_others(self) -> bool:
        """No rank of ours is left, and still this agent is needed (`awaited`). Asked when nobody answers it."""
        if self.is_complete:
            return False
        well = self._course.phase == course.RUNNING and all(rank.kind == contract.END_OK for rank in self.ranks)
        parted = awaited.parted(self._unreached, asyncio.get_running_loop().time())
        return well and 0 not in parted if self.leader is None else self.leader.awaits(parted, well)

    @property
    def leads_or_has_no_leader(self) -> bool:
        """This is rank 0's agent, or that one is not to be reached from here."""
        return self.leader is not None or self._link is None or not self._link.is_up

    @property
    def lost_peers(self) -> List[int]:
        """Indices of members that cannot be reached from here."""
        return sorted(self._unreached)

    @property
    def unreached_s(self) -> float:
        """For how long that has been so of one of them, the longest."""
        since = min(self._unreached.values(), default=None)
        return 0.0 if since is None else asyncio.get_running_loop().time() - since

    @property
    def _unreached(self) -> Mapping[int, float]:
        if self.leader is not None:
            return self.leader.unreached
        return {} if self._leader_lost is None else {0: self._leader_lost}

    def _changed(self, urgent: bool) -> None:
        self._tell(urgent and not self.overtaken)

    # -- the coordinator's words ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Ask to join."""
        self._carry_out(self._course.begun(self.number <= self._boot.started_attempt()))

    def _tell_leader(self) -> None:
        """What of the newest order is for rank 0's agent."""
        order = self._order
        if self.leader is not None:
            self.leader.want_boundary(order.get("boundary"))
            self.leader.expect_preemption(order.get("leaving") or {}, order.get("gone_at"))
            self.leader.hangs_after(order.get("hang_after_s"))
            self.leader.want_stacks(order.get("stacks"))
            self.leader.track(order.get("tracking") or ())
            self.leader.reached = order.get("reached")

    def update(self, order: contract.Instruction) -> None:
        """The same attempt, told again: rank 0's agent may have moved (its container was restarted), an operator with
        another key derives another secret, and a planned change may wait for the next checkpoint.
        """
        self._order = order
        self._tell_leader()
        if order["secret"] != self._secret:
            self._secret = str(order["secret"])
            if self._link is not None or self.leader is not None:
                self._peers.know(self._secret, self.number, self.leader)
            if self._link is not None:
                self._link.caller = Caller(self._secret, self.number, self._shape.index)
        if self._link is not None and order["leader"] != self._leader_address:
            self._leader_address = str(order["leader"])
            self._link.connect(self._leader_address)

    def forward(self, number: int) -> None:
        """A signal that the container got."""
        self._crew.signal(number)

    async def stop(self, verdict: str, grace_s: float) -> None:
        """End the ranks; returns when all are gone. May be cancelled and called again."""
        self._carry_out(self._course.stopped())
        await self._crew.stop(verdict, grace_s)
        # Until here a rank may have saved: it had its grace.
        self._site.saving.cancel_staging()
        await asyncio.get_running_loop().run_in_executor(None, self._crew.clear_up)

    def close(self) -> None:
        """Leave the attempt's connections; the ranks are gone already."""
        self._carry_out(self._course.stopped())
        self._background.cancel()
        for part in (self._link, self.leader, self._member, self._crew, self.restore):
            if part is not None:
                part.close()
        self._site.saving.to_leader = lambda word: None

    async def finish(self) -> None:
        """What is staged gets stored, what was reported gets written. As long as it takes; the caller has the clock."""
        await self._member.hand_in()
        await self._site.saving.finished()
        if self.leader is not None:
            await self.leader.finish()

    # -- the course ----------------------------------------------------------------------------------------------------

    def _carry_out(self, outputs: Sequence[course.Output], answer: Optional[Joined] = None) -> None:
        for output in outputs:
            if isinstance(output, course.Ask):
                self._starting = self._background.task(self._ask_to_join())
            elif isinstance(output, course.Start):
                assert answer is not None
                self._starting = self._background.task(self._start(answer))
            elif isinstance(output, course.GiveUp):
                # Between the forks there is no wait: either all are started or none is.
                if self._starting is not None:
                    self._starting.cancel()
            elif isinstance(output, course.EndUnstarted):
                self._crew.end_unstarted(output)
            else:
                self._crew.end_all(output)

    def fault(self, error: BaseException) -> None:
        """Something that works for this attempt has failed as it never should. After its end it is only said: what
        waits then (uploads) is bounded by who waits.
        """
        self._site.console.say(f"attempt {self.number}: {explain(error)}\n{where(error)}")
        self._fail(contract.END_INTERNAL, explain(error))

    def _fail(self, kind: str, message: str) -> None:
        self._carry_out(self._course.failed(kind, message))

    # -- the join ------------------------------------------------------------------------------------------------------

    async def _ask_to_join(self) -> None:
        # Forks that the ranks will be, made while the others are asked.
        self._site.starter.expect(self._shape.here, forking.local_world_size(self._site, self._shape))
        self._held = await self._site.saving.shown()
        self._site.saving.to_leader = self._to_leader
        shape = self._shape
        if shape.index == 0:
            self._say_too_few(open_files.too_few(shape.workers, shape.processes))
            self.leader = Leader(self._site, self.number, shape.workers, shape.processes, self._member.take)
            self._tell_leader()
            self._peers.know(self._secret, self.number, self.leader)
            self._ask()
        else:
            self._peers.know(self._secret, self.number, None)
            self._link = self._new_link()
            self._link.connect(self._leader_address)

    def _say_too_few(self, files: Optional[str]) -> None:
        if files is not None:
            self._site.console.say(files)
            self._site.warn(files)

    def _new_link(self) -> LeaderLink:
        caller = Caller(self._secret, self.number, self._shape.index)
        return LeaderLink(caller, self._link_up, self._member.take, self._link_lost, self._link_refused, self.fault)

    def _to_leader(self, word: FromMember) -> None:
        if self.leader is not None:
            self.leader.take(0, word)
        elif self._link is not None:
            self._link.send(word)

    def _ask(self) -> None:
        address = join_address(self._site.config.host, self._peers.port)
        self._to_leader(Join(address, self._held, self.joined_at_leader))

    def _link_up(self) -> None:
        self._ask()
        if self.joined_at_leader:
            self._member.say_all_again()

    def _link_refused(self, why: str, lasting: bool) -> None:
        """Nothing that the ranks could mend: people see it here, and what does not pass in the job's conditions."""
        self._site.console.say(why)
        if lasting:
            self._site.warn(why)

    def _link_lost(self, since: Optional[float]) -> None:
        before, self._leader_lost = self._leader_lost, since
        if since is not None:
            self._crew.broke("the worker of rank 0")
        if (since is None) != (before is None):
            self._site.changed(True)

    def joined(self, answer: Joined) -> None:
        """The join's answer (perhaps once more)."""
        if self._course.phase != course.ASKING:
            return
        self.beginning.note(beginning.JOINED)
        self.run, chosen, self.shown = answer.run, answer.resume.checkpoint, last_word.shown_of(answer.shown)
        self.resumed_from = None if chosen is None else chosen.id
        self._carry_out(self._course.answered(answer.completed), answer)
        self._site.changed(answer.completed)

    def refused(self, kind: str, message: str) -> None:
        """The attempt cannot begin, or must not go on."""
        self._fail(kind, message)

    def broke(self, number: int) -> None:
        """A rank of the attempt broke, and not because it lost another."""
        self._crew.broke(f"rank {number}", number)

    def completed(self, shown: Optional[Object]) -> None:
        """The run's end record is there; what is shown of the run."""
        self.shown = last_word.shown_of(shown)
        self._course.completed()
        self._site.changed(True)

    def damaged(self, id_: str, why: str) -> None:
        """The checkpoint that was resumed is damaged: this attempt is over, the next join chooses afresh."""
        self._fail(contract.END_DAMAGED, f"Checkpoint {id_} is damaged: {why}")

    def storage_unusable(self, message: str) -> None:
        """A rank's checkpoint cannot be read."""
        self._fail(contract.END_STORAGE, message)

    def unstored(self, message: str) -> None:
        """What our ranks saved cannot be stored: their good ends are worth nothing."""
        self._crew.unstored(message)

    def needed(self, numbers: Sequence[int], message: str) -> None:
        """Ranks of ours ended, and others were refused a call for it."""
        self._crew.needed(numbers, message)

    # -- the ranks -----------------------------------------------------------------------------------------------------

    async def _start(self, answer: Joined) -> None:
        site = self._site
        if not await witness.sees(site, self._background, answer, self._shape.index, self._to_leader):
            return
        try:
            await site.code.unpack()
        except StorageError as error:
            self._fail(contract.END_STORAGE, str(error))
            return
        await site.saving.adopt(answer.resume.adopt, self.resumed_from)
        await self._prepare_restore(answer)
        socket = await self._crew.listen()
        try:
            argv = rank_command.argv(site.config.command, self._shape.index)
        except CannotRun as error:
            self._fail(contract.END_START, str(error))
            return
        await site.starter.prepare(self._shape.here)
        shared = forking.place_of(site, self._shape, self.run or 1, answer, socket, self._secret)
        self._mark()
        self._fork(argv, shared)

    def _mark(self) -> None:
        """Where another attempt's lines begin in a pod's log; a launcher has the attempts' lines apart."""
        if self.number > 1 and self._site.config.parent_fd is None:
            start = "the beginning" if self.resumed_from is None else f"checkpoint {self.resumed_from}"
            self._site.console.say(f"attempt {self.number} begins, from {start}")

    async def _prepare_restore(self, answer: Joined) -> None:
        site = self._site
        origin = Origin(
            answer.resume.checkpoint,
            answer.resume.holder_paths(),
            answer.members,
            self._shape.processes,
            self._secret,
            self.number,
        )
        brought = os.path.join(site.config.work_dir, "restore")
        # What an agent that was killed left there.
        await asyncio.get_running_loop().run_in_executor(None, lambda: shutil.rmtree(brought, ignore_errors=True))
        self.restore = Restore(site.saving, site.storage, os.path.join(brought, str(self.number)), origin, site.uri)
        self.restore.prepare()

    def _fork(self, argv: List[str], shared: rank_command.AttemptPlace) -> None:
        self._boot.note_attempt(self.number)
        self._course.forking()
        try:
            self._crew.fork(argv, shared)
        except CannotRun as error:
            self._fail(contract.END_START, str(error))
        else:
            self.beginning.note(beginning.FORKED)
            self._site.changed(True)

    def _rank_began(self, word: Begun) -> None:
        self.beginning.began(word)
        if word.first_step is not None:
            self._site.starter.learn()
        self._site.changed(False)

    def process_of(self, number: int) -> Rank:
        """The process that a rank belongs to: under a launcher there is one for all. Raises ValueError."""
        return self._crew.process_of(number)
