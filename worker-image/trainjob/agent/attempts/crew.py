"""This agent's ranks in one attempt: their processes, the socket on which they speak, and what they say of themselves.

Made by `attempt`, which says when they start and end. What they ask of others goes to `member`.
"""

from __future__ import annotations

import asyncio
from typing import Callable, Dict, List, Optional, Sequence

from trainjob.agent.attempts import course, forking
from trainjob.agent.attempts.forking import Shape
from trainjob.agent.attempts.member import Member
from trainjob.agent.background import Background
from trainjob.agent.hangs import stopped
from trainjob.agent.processes import leaving, strays
from trainjob.agent.processes.ending import see_it_end
from trainjob.agent.processes.rank import Rank
from trainjob.agent.processes.rank_command import AttemptPlace
from trainjob.agent.processes.ranks import RankGroup
from trainjob.agent.processes.reaper import Process
from trainjob.agent.site import Site
from trainjob.agent.wire.rank_calls import RankServer
from trainjob_api import contract
from trainjob_api.contract import RankError
from trainjob_api.rank_messages import Begun, Error, Farewell, FromRank, Hello, Leaving

_TYPES = {
    contract.END_START: "CannotStart",
    contract.END_STORAGE: "StorageError",
    contract.END_NOT_SHARED: "StorageNotShared",
    contract.END_LOST: "ContainerRestarted",
    contract.END_EARLY: "RankEndedEarly",
    contract.END_DAMAGED: "CheckpointDamaged",
    contract.END_INTERNAL: "AgentFault",
}
"""How an end that the agent decides is called where an exception's type would stand."""


class Crew:
    """One per attempt."""

    def __init__(self, site: Site, shape: Shape, member: Member, work: Background, endings: Background) -> None:
        """`work` belongs to the attempt; `endings` to the agent, as they end the attempt."""
        self._site = site
        self._shape = shape
        self._member = member
        self._background = work
        self._endings = endings
        self._group = RankGroup(site.reaper, site.console, shape.plain, self._rank_changed, endings, site.starter)
        self._group.warn = site.warn
        self.began: Callable[[Begun], None] = lambda word: None
        """Set by the attempt: a rank made its first step."""
        self._server: Optional[RankServer] = None
        self.hang: Optional[contract.HangReport] = None
        """Some rank's process here is stopped."""
        self._told: Dict[int, bool] = {}
        self._leavers: Dict[int, asyncio.Future[None]] = {}
        """Programs behind a launcher whose scripts have ended: done when they are gone."""

    @property
    def ranks(self) -> Sequence[Rank]:
        """Empty until they are started, or it is told that they will not be."""
        return self._group.ranks

    @property
    def alive(self) -> bool:
        """Some process may be alive."""
        return self._group.alive

    def process_of(self, number: int) -> Rank:
        """The process that a rank belongs to: under a launcher there is one for all. Raises ValueError."""
        for rank in self._group.ranks:
            if rank.rank == number or not self._shape.plain:
                return rank
        raise ValueError(f"rank {number} is none of this worker's")

    # -- start and end -------------------------------------------------------------------------------------------------

    async def listen(self) -> str:
        """Make what they need before they are forked; the path of their socket."""
        number, site = self._shape.number, self._site
        await asyncio.get_running_loop().run_in_executor(None, forking.make_folders, site)
        on_parted = None if self._shape.plain else self._parted
        server = RankServer(number, site.socket_folder, self._greeted, self._called, on_parted)
        self._server = self._member.server = server
        await server.start()
        self._group.last_words = lambda rank: server.read_to_end(rank.rank if self._shape.plain else None)
        if not self._shape.plain:
            self._group.speakers = server.pids
        return server.path

    def fork(self, argv: List[str], shared: AttemptPlace) -> None:
        """All of them, or none. Raises CannotRun, OSError."""
        self._group.ranks = forking.new_ranks(self._shape)
        self._site.reaper.kills.forget()
        forking.fork_all(self._site, self._group, self._shape, shared, argv)
        place = self._site.config.place
        self._background.spawn(stopped.watch(self._pids, self._note, place, self._hangs, self._member.pace.held.look))

    def signal(self, number: int) -> None:
        """That the container got."""
        self._group.signal(number)

    def end_unstarted(self, end: course.EndUnstarted) -> None:
        """There never were processes."""
        self._group.ranks = forking.new_ranks(self._shape)
        self._site.console.say(end.message)
        for rank in self._group.ranks:
            rank.end_without_process(end.kind, _error(end.kind, end.message))
            self._rank_changed(rank)

    def end_all(self, end: course.EndRanks) -> None:
        """Kill them; this is why."""
        self._site.console.say(end.message)
        error = _error(end.kind, end.message)
        for rank in self._group.ranks:
            if rank.gone is None:
                rank.end_without_process(end.kind, error)
                self._rank_changed(rank)
            elif end.kind == contract.END_INTERNAL:
                rank.overrule(end.kind, error)
            if rank.error is None and rank.ended_at is None:
                rank.error = error
        self._group.condemn(end.kind)
        self._site.changed(True)
        self._endings.spawn(self._group.stop(end.kind, 0))

    def unstored(self, message: str) -> None:
        """What they saved cannot be stored: their good ends are worth nothing."""
        self._site.console.say(message)
        for rank in self._group.ranks:
            rank.overrule(contract.END_STORAGE, _error(contract.END_STORAGE, message))
        self._site.changed(True)

    def needed(self, numbers: Sequence[int], message: str) -> None:
        """These have ended, and others were refused a call for it."""
        for process in {id(process): process for process in map(self.process_of, numbers)}.values():
            process.miss(_error(contract.END_EARLY, message))
        self._site.changed(True)

    def broke(self, whom: str, number: Optional[int] = None) -> None:
        """Rank `number`, or a whole worker, broke, and not because it lost somebody: ours that did are no news."""
        for rank in self._group.ranks if self._shape.plain else ():
            if rank.rank != number and rank.output is not None:
                rank.output.lost(whom)

    async def stop(self, verdict: str, grace_s: float) -> None:
        """End them; returns when all are gone. May be cancelled and called again."""
        await self._group.stop(verdict, grace_s)

    def clear_up(self) -> None:
        """Once they are gone nothing of them stays: what they started, their temporary files. Blocks."""
        number = self._shape.number
        if self._group.ranks:
            left = strays.end(self._site.config.pod_uid, number)
            if left:
                pids = ", ".join(map(str, left[:16]))
                self._site.console.say(f"processes of attempt {number} outlived its ranks and are killed: {pids}")
        forking.remove_leftovers(self._site)

    def close(self) -> None:
        """Leave their socket."""
        if self._server is not None:
            self._server.close()

    def _pids(self) -> Dict[int, int]:
        """Of the processes that are ranks, so far as they are known: behind a launcher, those that have spoken."""
        started = {each.rank: each.pid for each in self._group.ranks if self._shape.plain and each.alive and each.pid}
        return {**started, **({} if self._server is None else self._server.speakers())}

    def _note(self, number: int, text: str) -> None:
        """In this agent's output, and in the rank's own log."""
        self._site.console.say(text)
        output = self.process_of(number).output
        if output is not None:
            output.note(text + "\n")

    def _hangs(self, report: Optional[contract.HangReport]) -> None:
        self.hang = report
        self._site.changed(True)

    # -- what they say -------------------------------------------------------------------------------------------------

    def _greeted(self, hello: Hello, is_new: bool) -> None:
        self.process_of(hello.rank).greet(hello.rank, is_new)
        if not self._shape.plain:
            self._member.launched(hello.world_size)
        self._site.changed(False)

    def _called(self, number: int, word: FromRank) -> None:
        self.process_of(number).calls += 1
        if isinstance(word, Error):
            self._raised(number, word)
        elif isinstance(word, Leaving):
            self._leaving(number, word)
        elif isinstance(word, Begun):
            self.began(word)
        else:
            self._member.called(number, word)

    def _raised(self, number: int, word: Error) -> None:
        error: RankError = {
            "type": word.type,
            "message": word.message,
            "traceback": word.traceback,
            "communication": word.communication,
        }
        process, speaker = self.process_of(number), None
        process.accuse(number, word.kind, error)
        if self._shape.plain and process.output is not None:
            process.output.told(word.communication)
        self._site.changed(True)
        if self._shape.plain:
            self._member.ending(number, f"raised {word.type}: {word.message[:200]}", word.communication)
        elif self._server is not None:
            speaker = self._server.pid_of(number)
            if speaker is None:
                return
        say = self._site.console.say
        self._background.spawn(see_it_end(number, process, speaker, self._site.socket_folder, say))

    def _leaving(self, number: int, word: Leaving) -> None:
        """Its script has ended."""
        process, site = self.process_of(number), self._site
        if not self._shape.plain:
            parted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._leavers[number] = parted
            self._background.spawn(leaving.say_it_stays(number, word, parted, site.console.say))
            return
        process.leaves(word.code or 0, word.message, word.traceback)
        if process.leaving:
            self._member.ending(number, leaving.how(word))
            site.changed(True)
        variables = leaving.rank_variables(site.config.pod_uid, number)
        self._background.spawn(
            leaving.see_it_leave(
                process,
                word,
                lambda: self._member.owes(number),
                variables,
                site.socket_folder,
                site.console.say,
                site.warn,
            )
        )

    def _parted(self, number: int, speaker: Process, farewell: Optional[Farewell]) -> None:
        """What spoke as a rank behind a launcher has closed its connection. One that became another program lives."""
        said = self._leavers.pop(number, None)
        if said is not None and not said.done():
            said.set_result(None)
        if farewell is not None and farewell.becomes:
            return
        if farewell is not None or speaker.is_ending():
            self.process_of(number).part(number, speaker.pid, farewell)

    def _rank_changed(self, rank: Rank) -> None:
        if rank.state == contract.RANK_ENDED and rank.rank not in self._told:
            self._told[rank.rank] = True
            if rank.kind == contract.END_OOM:
                self._site.starter.spare_memory()
            self._member.ended(rank)
        # That they were started is said of all at once.
        self._site.changed(rank.state == contract.RANK_ENDED)


def _error(kind: str, message: str) -> RankError:
    return {"type": _TYPES.get(kind, kind), "message": message[: contract.MESSAGE_LIMIT]}
