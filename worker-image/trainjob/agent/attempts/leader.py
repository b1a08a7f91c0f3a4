"""This agent as rank 0's: gathers the members, settles how the attempt begins, and passes what they say to who serves
it.

Made by `attempt` on the agent with index 0. What members say comes in through `take` (from our own member by a plain
call). The rules are in `join`, `barrier` and `uploads`, which are pure; `collectives` and `commits` carry out the
latter two, `run_end` ends the run.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Callable, List, Mapping, Optional, Sequence, Set, Tuple

from trainjob.agent import rank_places
from trainjob.agent.attempts import awaited, join, master_port, start_point
from trainjob.agent.attempts.awaited import Ends
from trainjob.agent.attempts.breaks import Breaks
from trainjob.agent.attempts.join import Join, Request
from trainjob.agent.attempts.links import Links
from trainjob.agent.attempts.master_port import MasterPort
from trainjob.agent.attempts.notes import Notes
from trainjob.agent.attempts.run_end import RunEnd
from trainjob.agent.attempts.witness import OTHERS_S, Witnesses
from trainjob.agent.background import Background
from trainjob.agent.barriers.collectives import Collectives
from trainjob.agent.barriers.history import History
from trainjob.agent.barriers.reports import Facts
from trainjob.agent.committing.commits import Commits
from trainjob.agent.processes.rank_command import is_plain
from trainjob.agent.site import Site
from trainjob.agent.standstill import Standstill
from trainjob.agent.storing.storage import StorageError
from trainjob.agent.warm.stores import Store
from trainjob.agent.wire import from_leader, from_member
from trainjob.agent.wire.arrive import Arrive
from trainjob.agent.wire.frames import FrameConnection
from trainjob.agent.wire.from_leader import FromLeader, Joined, Refused, ReportedTo, Resume
from trainjob.agent.wire.from_member import FromMember
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob_api import contract
from trainjob_api.rank_messages import Log, Preemption, Validated

SAY_WAITING_S = 60.0
AWAITED_S = 10.0
"""A member that has not come to the join for so long is told of: should its agent be silent too, it is lost."""


class Leader:
    """One per attempt."""

    def __init__(
        self, site: Site, attempt: int, workers: int, processes: int, own_member: Callable[[FromLeader], None]
    ) -> None:
        self._site = site
        self._attempt = attempt
        self._workers = workers
        self._processes = processes
        self._plain = is_plain(site.config.command)
        self._each = processes if self._plain else 1
        """Processes of one member."""
        self._links = Links(own_member, site.changed)
        self.tell = self._links.tell
        self._join = Join(workers)
        self._requests: List[Request] = []
        self._notes = Notes(site.saving, self.tell)
        self._store: Optional[Store] = None
        self._background = Background(site.on_fault)
        self.collectives: Optional[Collectives] = None
        self.commits: Optional[Commits] = None
        self._history: Optional[History] = None
        self._run_end: Optional[RunEnd] = None
        self._boundary: Optional[str] = None
        """What the coordinator wishes of the next checkpoint."""
        self._preemption: Optional[Preemption] = None
        self._stacks: Optional[str] = None
        """Who asks where the ranks are."""
        self._hangs_after: Optional[float] = None
        self._tracked: Tuple[str, ...] = ()
        self.reached: Optional[int] = None
        """How far the attempts before came; told before the join is answered."""
        self._witnesses = Witnesses()
        self._breaks = Breaks(workers * processes)
        self._ends = Ends(workers, self._each)
        self._still = Standstill()
        """Of what is stored, since somebody asked whether this agent is needed."""
        loop = asyncio.get_running_loop()
        self._began = loop.time()
        self._patience = loop.call_later(SAY_WAITING_S, self._say_waiting)
        self._awaiting = loop.call_later(AWAITED_S, self._tell_awaited)

    @property
    def unreached(self) -> Mapping[int, float]:
        """Members that cannot be reached, by the loop's time since when: lost and silent ones, and in a join those that
        do not come.
        """
        missing = self._join.missing() if self._awaits_late else ()
        return {**dict.fromkeys(missing, self._began), **self._links.unreached}

    @property
    def _awaits_late(self) -> bool:
        return self._join.phase == join.GATHERING and asyncio.get_running_loop().time() >= self._began + AWAITED_S

    def _tell_awaited(self) -> None:
        if self.unreached:
            self._site.changed(True)

    def want_boundary(self, token: Optional[str]) -> None:
        """A planned change waits for the next checkpoint; its ranks are kept until the operator has answered."""
        self._boundary = token
        if self.collectives is not None:
            self.collectives.want_boundary(token)

    def expect_preemption(self, leaving: Mapping[str, int], gone_at: Optional[float]) -> None:
        """Workers are to go, by the names of their pods; none: nobody any more."""
        ranks = {pod: tuple(rank_places.ranks_of(index, self._processes)) for pod, index in leaving.items()}
        self._preemption = Preemption(ranks, gone_at) if ranks else None
        if self.collectives is not None:
            self.collectives.preemption = self._preemption

    def want_stacks(self, request: Optional[str]) -> None:
        """Somebody asks where the ranks are; None: nobody does."""
        self._stacks = request
        if self.collectives is not None:
            self.collectives.asked.want(request)

    def hangs_after(self, seconds: Optional[float]) -> None:
        """After how long without a step the job hangs; None: that is learned; 0: never."""
        self._hangs_after = seconds
        if self.collectives is not None:
            self.collectives.hangs.after(seconds)

    def track(self, words: Sequence[str]) -> None:
        """Which trackers are fed."""
        self._tracked = tuple(words)
        if self.collectives is not None:
            self._site.tracking.feed(self._tracked)

    # -- members -------------------------------------------------------------------------------------------------------

    def attach(self, index: int, connection: FrameConnection) -> None:
        """A member's connection is up; it asks to join next."""
        self._links.attach(index, connection)

    def detach(self, index: int, connection: FrameConnection) -> None:
        """A member's connection is gone."""
        if self._links.detach(index, connection):
            self._join.left(index)

    def take(self, index: int, word: FromMember) -> None:
        """What a member says. Raises ValueError for what makes no sense (its connection is closed)."""
        if isinstance(word, Arrive):
            # Of an attempt that has not begun nobody can have called: it is said again.
            if self.collectives is not None:
                self.collectives.arrived(index, word)
        elif isinstance(word, from_member.Join):
            self._asked(index, word)
        elif isinstance(word, from_member.NoteIs):
            self._notes.came(word)
        elif isinstance(word, from_member.Bye):
            self._links.bye(index)
            self._join.left(index)
        elif isinstance(word, from_member.FoundDamaged):
            self.tell(None, from_leader.Damaged(word.id, word.why))
        elif isinstance(word, from_member.Seen):
            if self._witnesses.said(index, word):
                self._background.spawn(self._not_shared())
        elif self.collectives is not None and self.commits is not None:
            self._take_joined(index, word, self.collectives, self.commits)

    def _take_joined(self, index: int, word: FromMember, collectives: Collectives, commits: Commits) -> None:
        if isinstance(word, from_member.Ended):
            (collectives.stopped if word.kind == contract.END_STOPPED else collectives.ended)(
                index, word.rank, word.how
            )
            broke = self._breaks.ended(word)
            if broke is not None:
                self.tell(None, from_leader.Broke(broke))
            if word.kind not in (contract.END_OK, contract.END_STOPPED) and not word.communication:
                # What is known here of progress belongs to what that rank's end costs: the coordinator need not ask.
                self._site.changed(True)
            if word.kind is not None:
                self._ends.ended(index, word.rank, word.kind)
            if word.kind == contract.END_OK and self._run_end is not None:
                self._run_end.ended_well(word.rank)
        elif isinstance(word, from_member.Staged):
            collectives.staged(index, word)
        elif isinstance(word, from_member.StageFailed):
            collectives.stage_failed(index, word)
        elif isinstance(word, from_member.Compared):
            collectives.compared(index, word)
        elif isinstance(word, from_member.Persisted):
            collectives.persisted(index, word.n)
        elif isinstance(word, Log):
            collectives.logged(word.rows)
        elif isinstance(word, from_member.StacksAre):
            collectives.inquiry.came(index, word)
        elif isinstance(word, from_member.PacesAre):
            collectives.pace.came(index, word)
        elif isinstance(word, from_member.Shared):
            commits.shared(index, word.id)
        elif isinstance(word, from_member.ShareLost):
            commits.share_lost(index, word.id, word.message)
        elif isinstance(word, from_member.ShareFailing):
            commits.share_failing(word.id, word.kind, f"worker {index}: {word.message}")
        elif isinstance(word, from_member.Moved):
            commits.moved(index, word.bytes)
        elif isinstance(word, Validated):
            commits.validated(word.id, word.over)
        elif isinstance(word, from_member.AskReported):
            self._background.spawn(self._tell_reported(index, word, commits))

    def close(self) -> None:
        """A newer attempt begins, or the agent ends."""
        self._site.tracking.leave()
        self._patience.cancel()
        self._awaiting.cancel()
        self._background.cancel()
        for part in (self.collectives, self.commits, self._history, self._run_end, self._links):
            if part is not None:
                part.close()
        if self._store is not None:
            self._store.release()

    def awaits(self, parted: Set[int], may_complete: bool) -> bool:
        """Whether something is under way that only this agent brings to its end: the end record, or checkpoints, or
        (`may_complete`: our own ranks ended with 0) ranks of others. `parted`: members that nobody waits for.
        """
        gone = {*parted, *self._links.left}
        if self.collectives is None or self._run_end is None:
            return False
        if may_complete and not self.collectives.needed and self._ends.lack(gone):
            return True
        stored = None if self.commits is None else self.commits.moved_at
        stands_s = self._still.for_s(stored, asyncio.get_running_loop().time())
        return self._run_end.is_at_work(gone) and stands_s < awaited.STANDS_S

    async def finish(self) -> None:
        """Before the agent ends: what was reported reaches the history, what is staged is committed. As long as it
        takes; the caller has the clock.
        """
        if self._run_end is not None:
            await self._run_end.finish(lambda: self._links.gone)

    def forbid_end(self) -> None:
        """The run is not ended by this attempt any more."""
        if self._run_end is not None:
            self._run_end.forbid()

    # -- the join ------------------------------------------------------------------------------------------------------

    def _asked(self, index: int, word: from_member.Join) -> None:
        if self._links.back(index) or self._awaits_late:
            self._site.changed(True)
        if not word.started:
            self._carry_out(self._join.asked(Request(index, word.address, word.held)))
            return
        # It knows the answer and comes back after a lost connection.
        if self.collectives is not None:
            self.collectives.rejoined(index)
        for rank in self._breaks.told:
            self.tell(index, from_leader.Broke(rank))
        self._carry_out(self._join.began())

    def _carry_out(self, outputs: List[join.Output]) -> None:
        for output in outputs:
            if isinstance(output, join.Settle):
                self._requests = list(output.members)
                self._background.spawn(self._settle())
            elif isinstance(output, join.Answer):
                self._links.tell_each(output.indices, output.answer)
            else:
                self._links.tell_each(output.indices, Refused(output.kind, output.message))

    async def _settle(self) -> None:
        config = self._site.config
        candidates = await self._notes.candidates(self._requests)
        try:
            settled = await start_point.settle(self._site, self._attempt, candidates)
            await self._have_code()
            alone = not self._plain or self._workers * self._processes == 1
            store = self._store = await self._site.starter.stores.take(self._attempt, self._master_port, alone)
            store.on_end(self._store_ended)
        except StorageError as error:
            text = f"The job's storage {config.spec.storage} cannot be used: {error}"
            self._carry_out(self._join.failed(contract.END_STORAGE, text))
            return
        except OSError as error:
            self._carry_out(self._join.failed(contract.END_INTERNAL, f"No port for rank 0: {error}"))
            return
        for text in settled.words:
            self._site.console.say(text)
        chosen = settled.checkpoint
        adopt = () if self._site.storage is None else start_point.adopted(candidates, chosen, settled.run)
        answer = Joined(
            settled.run,
            settled.completed,
            tuple(r.address for r in self._requests),
            config.host,
            store.port,
            settled.claim,
            Resume(chosen, self._notes.holders(self._requests, chosen), adopt),
            store.hosted,
            settled.shown,
        )
        if not settled.completed:
            self._begin(answer)
        self._carry_out(self._join.settled(answer))

    async def _have_code(self) -> None:
        """The store is a fork of the warm parent, which is made for code that is there. What fails is told where the
        ranks start.
        """
        with contextlib.suppress(StorageError):
            await self._site.code.unpack()
        self._site.starter.warm_up()

    def _master_port(self, attempt: int) -> MasterPort:
        config = self._site.config
        if config.any_master_port:
            return master_port.picked(config.host)
        return master_port.computed(config.spec.rendezvous_port, attempt)

    def _store_ended(self) -> None:
        """Groups that ranks make from now on would wait for it until their time is out."""
        text = "The process that serves the ranks' store (MASTER_PORT) beside rank 0 has ended before them"
        self.tell(None, Refused(contract.END_INTERNAL, text))

    async def _not_shared(self) -> None:
        """The storage path is another folder somewhere: nothing could be committed, whatever is tried."""
        await asyncio.sleep(OTHERS_S)
        config = self._site.config
        verdict = self._witnesses.verdict(str(config.spec.storage), config.pod)
        self.tell(None, Refused(contract.END_NOT_SHARED, verdict))

    def _begin(self, answer: Joined) -> None:
        """Everything that must be there before the first rank can call."""
        site, run, chosen = self._site, answer.run, answer.resume.checkpoint
        position = 0 if chosen is None else int(chosen.note["position"])
        parent = None if chosen is None else CheckpointId.parse(chosen.id)
        if parent is not None and parent.run > run:
            parent = None
        self._history = History(site.storage, run, self._attempt, position, site.on_fault, site.warn)
        self.commits = Commits(site, self.tell, run, self._attempt, () if chosen is None else (chosen.id,))
        facts = Facts(self._attempt, run, self._workers, self._processes, self._plain, position, parent, self.reached)
        self.collectives = Collectives(site, self._links.tell_each, facts, self.commits, self._history)
        self.collectives.want_boundary(self._boundary)
        self.collectives.preemption = self._preemption
        self.collectives.hangs.after(self._hangs_after)
        self.collectives.asked.want(self._stacks)
        self.collectives.unreached = lambda: bool(self.unreached)
        expected = self._workers * self._each
        self._run_end = RunEnd(site, self.tell, expected, self.collectives, self.commits, self._history)
        self.commits.on_committed = self.collectives.committed
        self.commits.on_trouble = self.collectives.commit_trouble
        self.commits.on_drained = self._run_end.look
        self.commits.on_failed = self._uploads_failed
        site.tracking.begin(run, self._attempt, self._tracked)
        for note in answer.resume.adopt:
            sha = self._notes.sha(str(note["id"]))
            holders = {r.member: h.bits for r in self._requests for h in r.held if h.sha == sha}
            # Of duplicates nothing is held: the commit needs the ranks whose copies count.
            ranks = sorted({int(f[2]) for f in note["files"]})
            self.commits.released(note, [index for index, held in holders.items() if held], ranks)

    def _uploads_failed(self, why: str) -> None:
        assert self.collectives is not None and self._run_end is not None
        self.collectives.refuse_reports(why)
        self._run_end.look()

    def _say_waiting(self) -> None:
        missing = self._join.missing()
        if missing and self._join.phase == join.GATHERING:
            self._site.console.say(
                f"attempt {self._attempt} waits for the agents of workers {', '.join(map(str, missing[:16]))} to join"
            )
            self._patience = asyncio.get_running_loop().call_later(SAY_WAITING_S, self._say_waiting)

    async def _tell_reported(self, index: int, asked: from_member.AskReported, commits: Commits) -> None:
        """The run's checkpoints, as a rank asked for them."""
        try:
            found, error = tuple(await commits.reported(asked.timeout_s)), None
        except StorageError as trouble:
            found, error = (), f"The run's checkpoints cannot be listed: {trouble}"
        self.tell(index, ReportedTo(asked.rank, found, error))
