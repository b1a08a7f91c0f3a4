"""One attempt on this agent, from the join to the end of its ranks. Made by `agent` when it is told `run n` and older
ranks are reaped.

The join is answered by rank 0's agent; then the ranks start, once. After their end the attempt stays (links up, uploads
going on) until a newer one takes its place.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from typing import Any, Coroutine, Dict, List, Mapping, Optional, Sequence, TypeVar

from trainjob.agent.attempts import code, witness
from trainjob.agent.attempts.leader import Leader
from trainjob.agent.attempts.member import Member
from trainjob.agent.boot import BootNotes
from trainjob.agent.processes import rank_command
from trainjob.agent.processes.rank_command import AttemptPlace, CannotRun, RankPlace
from trainjob.agent.processes.ranks import Rank, RankGroup
from trainjob.agent.processes.reaper import Process, signal_group
from trainjob.agent.processes.stacks import stack_of
from trainjob.agent.restoring.restore import Origin, Restore
from trainjob.agent.site import Site
from trainjob.agent.storing.storage import StorageChild, StorageError
from trainjob.agent.wire import peer_protocol
from trainjob.agent.wire.peers import Caller, LeaderLink, PeerServer
from trainjob.agent.wire.rank_calls import RankServer
from trainjob_api import contract, wire

T = TypeVar("T")
ENDING_S = 10.0
"""From a rank's exception to its end, which clean-up (wandb.finish()) may take."""
_TYPES = {
    contract.END_START: "CannotStart",
    contract.END_STORAGE: "StorageError",
    contract.END_NOT_SHARED: "StorageNotShared",
    contract.END_LOST: "ContainerRestarted",
    contract.END_DAMAGED: "CheckpointDamaged",
}
"""How an end that the agent decides is called where an exception's type would stand."""


class Attempt:
    """`begin`, then whatever the coordinator says: `stop`, `close`."""

    def __init__(self, site: Site, peers: PeerServer, boot: BootNotes, order: contract.Instruction) -> None:
        self._site = site
        self._peers = peers
        self._boot = boot
        self._secret = str(order["secret"])
        self._leader_address = str(order["leader"])
        self.number = int(order["attempt"])
        self.index = int(order["index"])
        self.workers = int(order["workers"])
        self.processes = int(order["processes"])
        self._plain = rank_command.is_plain(site.config.command)
        self._group = RankGroup(site.reaper, site.console, self._plain, self._rank_changed)
        self._member = Member(site, self, self._to_leader)
        self._link: Optional[LeaderLink] = None
        self._server: Optional[RankServer] = None
        self._starting: Optional[asyncio.Task[None]] = None
        self._stopping: Optional[asyncio.Task[None]] = None
        self._held: List[Dict[str, Any]] = []
        self._told: Dict[int, bool] = {}
        self._over = False
        self.restore: Optional[Restore] = None
        self.leader: Optional[Leader] = None
        self.joined_at_leader = False
        self.is_complete = False
        self.leader_lost = False
        self.run: Optional[int] = None
        self.resumed_from: Optional[str] = None

    @property
    def ranks(self) -> Sequence[Rank]:
        """This agent's ranks; empty until the join is answered."""
        return self._group.ranks

    @property
    def alive(self) -> bool:
        """Some rank process may be alive."""
        return self._group.alive

    @property
    def unused(self) -> bool:
        """It was stopped before a rank was started: told again, it can begin anew."""
        return self._over and not self._group.ranks

    @property
    def lost_peers(self) -> List[int]:
        """Indices of members that cannot be reached from here."""
        if self.leader is not None:
            return sorted(self.leader.lost)
        return [0] if self.leader_lost else []

    # -- the coordinator's words
    # ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Ask to join."""
        if self.number <= self._boot.started_attempt():
            self._lose()
        else:
            self._starting = self._task(self._begin())

    async def _begin(self) -> None:
        self._held = await self._site.saving.held()
        self._site.saving.to_leader = self._to_leader
        if self.index == 0:
            self.leader = Leader(self._site, self.number, self.workers, self.processes, self._member.take)
            self._peers.know(self._secret, self.number, self.leader)
            self._ask()
        else:
            self._peers.know(self._secret, self.number, None)
            caller = Caller(self._secret, self.number, self.index)
            self._link = LeaderLink(caller, self._link_up, self._member.take, self._link_lost, self._link_refused)
            self._link.connect(self._leader_address)

    def update(self, order: contract.Instruction) -> None:
        """The same attempt, told again: rank 0's agent may have moved (its container was restarted), and an operator
        with another key derives another secret.
        """
        if order["secret"] != self._secret:
            self._secret = str(order["secret"])
            if self._link is not None or self.leader is not None:
                self._peers.know(self._secret, self.number, self.leader)
            if self._link is not None:
                self._link.caller = Caller(self._secret, self.number, self.index)
        if self._link is not None and order["leader"] != self._leader_address:
            self._leader_address = str(order["leader"])
            self._link.connect(self._leader_address)

    async def stop(self, verdict: str, grace_s: float) -> None:
        """End the ranks; returns when all are gone. May be cancelled and called again."""
        self._over = True
        if self._starting is not None:
            # Between the forks there is no wait: either all are started or none is.
            self._starting.cancel()
        await self._group.stop(verdict, grace_s)

    def close(self) -> None:
        """Leave the attempt's connections; the ranks are gone already."""
        self._over = True
        for task in (self._starting, self._stopping):
            if task is not None:
                task.cancel()
        for part in (self._link, self.leader, self._member, self._server, self.restore):
            if part is not None:
                part.close()
        self._site.saving.to_leader = lambda message: None

    async def finish(self) -> None:
        """What is staged gets stored, what was reported gets written. As long as it takes; the caller has the clock."""
        await self._member.hand_in()
        await self._site.saving.finished()
        if self.leader is not None:
            await self.leader.finish()

    # -- the join
    # ---------------------------------------------------------------------------------------------------------

    def _to_leader(self, message: wire.Message, blob: bytes = b"") -> None:
        if self.leader is not None:
            self.leader.take(0, message, blob)
        elif self._link is not None:
            self._link.send(message, blob)

    def _ask(self) -> None:
        self._to_leader(
            {
                "op": peer_protocol.JOIN,
                "address": peer_protocol.join_address(self._site.config.host, self._peers.port),
                "held": self._held,
                "started": self.joined_at_leader,
            }
        )

    def _link_up(self) -> None:
        self._ask()
        if self.joined_at_leader:
            self._member.say_all_again()

    def _link_refused(self, why: str, lasting: bool) -> None:
        """Nothing that the ranks could mend: people see it here, and what does not pass in the job's conditions."""
        self._site.console.say(why)
        if lasting:
            self._site.warn(why)

    def _link_lost(self, lost: bool) -> None:
        if lost != self.leader_lost:
            self.leader_lost = lost
            self._site.changed(True)

    def joined(self, answer: Mapping[str, Any]) -> None:
        """The join's answer (perhaps once more)."""
        if self.joined_at_leader or self._over:
            return
        self.joined_at_leader = True
        self.run = int(answer["run"])
        checkpoint = answer["checkpoint"]
        self.resumed_from = None if checkpoint is None else str(checkpoint["id"])
        self._site.changed(True)
        if answer["completed"]:
            self.completed()
            return
        self._starting = self._task(self._start(answer))

    def refused(self, kind: str, message: str) -> None:
        """The attempt cannot begin, or must not go on."""
        if self._group.ranks:
            self._end_all(kind, message)
        elif not self._over:
            self._over = True
            if self._starting is not None:
                self._starting.cancel()
            self._end_unstarted(kind, message)

    def completed(self) -> None:
        """The run's end record is there."""
        self.is_complete = True
        self._site.changed(True)

    def damaged(self, id_: str, why: str) -> None:
        """The checkpoint that was resumed is damaged: this attempt is over, the next join chooses afresh."""
        self._end_all(contract.END_DAMAGED, f"Checkpoint {id_} is damaged: {why}")

    def storage_unusable(self, message: str) -> None:
        """A rank's checkpoint cannot be read."""
        self._end_all(contract.END_STORAGE, message)

    def unstored(self, message: str) -> None:
        """What our ranks saved cannot be stored: their good ends are worth nothing."""
        self._site.console.say(message)
        for rank in self._group.ranks:
            rank.overrule(contract.END_STORAGE, {"type": "StorageError", "message": message})
        self._site.changed(True)

    # -- the ranks
    # --------------------------------------------------------------------------------------------------------

    async def _sees(self, answer: Mapping[str, Any]) -> bool:
        """Whether the storage path is here what it is for rank 0's agent; if not, the word of that agent ends the
        attempt.
        """
        site, claim = self._site, answer.get("claim")
        if (
            claim is None
            or site.storage is None
            or not witness.is_needed(site.config.spec.storage, answer["members"], self.index)
        ):
            return True
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        looking = self._task(self._look(site.storage, claim, answered))
        either: List[asyncio.Future[Any]] = [looking, answered]
        await asyncio.wait(either, timeout=witness.PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        return await looking if answered.done() else not looking.done() or looking.result()

    async def _look(self, storage: StorageChild, claim: Mapping[str, Any], answered: asyncio.Future[None]) -> bool:
        seen, where = await witness.look(storage, claim, answered)
        self._to_leader({"op": peer_protocol.SEEN, "pod": self._site.config.pod, "seen": seen, "where": where})
        return seen

    async def _start(self, answer: Mapping[str, Any]) -> None:
        site, checkpoint = self._site, answer["checkpoint"]
        if not await self._sees(answer):
            return
        try:
            await code.bring(site)
        except StorageError as error:
            self._end_unstarted(contract.END_STORAGE, str(error))
            return
        await site.saving.adopt(answer["adopt"], self.resumed_from)
        origin = Origin(
            checkpoint, answer["holders"], tuple(answer["members"]), self.processes, self._secret, self.number
        )
        brought = os.path.join(site.config.work_dir, "restore")
        # What an agent that was killed left there.
        await asyncio.get_running_loop().run_in_executor(None, lambda: shutil.rmtree(brought, ignore_errors=True))
        self.restore = Restore(site.saving, site.storage, os.path.join(brought, str(self.number)), origin, site.uri)
        self.restore.prepare()
        self._server = self._member.server = RankServer(self.number, site.socket_folder, self._greeted, self._called)
        await self._server.start()
        if self._plain:
            self._group.last_words = lambda rank: self._server_of().read_to_end(rank.rank)
        tmp = os.path.join(site.config.work_dir, "tmp")
        for folder in (tmp, os.path.join(site.config.work_dir, "logs")):
            os.makedirs(folder, exist_ok=True)
        _sweep(tmp)
        shared = AttemptPlace(
            self.number,
            self.run or 1,
            site.config.spec.storage,
            str(answer["master_addr"]),
            int(answer["master_port"]),
            self._server.path,
            site.socket_folder,
            tmp,
            site.return_file,
        )
        self._fork_all(shared)

    def _fork_all(self, shared: AttemptPlace) -> None:
        """All ranks of this agent, without a pause between."""
        site = self._site
        try:
            argv = rank_command.argv(site.config.command)
        except CannotRun as error:
            self._end_unstarted(contract.END_START, str(error))
            return
        self._boot.note_attempt(self.number)
        self._group.ranks = self._new_ranks()
        world = self.workers * (self.processes if self._plain else 1)
        for rank in self._group.ranks:
            place = RankPlace(
                rank.rank, rank.local_rank, world, len(self._group.ranks), self.index, self.workers, self.processes
            )
            env = rank_command.environment(os.environ, site.config.command, place, shared)
            log = os.path.join(site.config.work_dir, "logs", f"rank-{rank.rank}.log")
            try:
                self._group.start(rank, argv, env, log, f"r{rank.rank:0{max(2, len(str(world - 1)))}d} | ")
            except OSError as error:
                rank.end_without_process(
                    contract.END_START, {"type": "CannotStart", "message": f"{argv[0]} cannot be executed: {error}"}
                )
                self._rank_changed(rank)

    def _new_ranks(self) -> List[Rank]:
        count = self.processes if self._plain else 1
        return [Rank(self.index * count + local, local) for local in range(count)]

    def _lose(self) -> None:
        """An earlier agent in this pod started these ranks; nobody knows how they ended."""
        self._end_unstarted(contract.END_LOST, "The agent's container was restarted; its ranks ended with it.")

    def _end_unstarted(self, kind: str, message: str) -> None:
        self._group.ranks = self._new_ranks()
        self._site.console.say(message)
        for rank in self._group.ranks:
            rank.end_without_process(kind, {"type": _TYPES.get(kind, kind), "message": message})
            self._rank_changed(rank)

    def _end_all(self, verdict: str, message: str) -> None:
        if self._over:
            return
        self._site.console.say(message)
        for rank in self._group.ranks:
            if rank.error is None and rank.ended_at is None:
                rank.error = {"type": _TYPES.get(verdict, verdict), "message": message[: contract.MESSAGE_LIMIT]}
        self._stopping = self._task(self.stop(verdict, 0))

    @staticmethod
    def _task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task whose fault is not lost."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda done: done.cancelled() or done.result())
        return task

    def _server_of(self) -> RankServer:
        assert self._server is not None
        return self._server

    def process_of(self, number: int) -> Rank:
        """The process that a rank belongs to: under a launcher there is one for all. Raises ValueError."""
        for rank in self._group.ranks:
            if rank.rank == number or not self._plain:
                return rank
        raise ValueError(f"rank {number} is none of this worker's")

    def _greeted(self, number: int, message: wire.Message) -> None:
        rank = self.process_of(number)
        rank.greeted, rank.state = True, contract.RANK_RUNNING
        if not self._plain:
            self._member.world_size = int(message["world_size"])
        self._site.changed(False)

    def _called(self, number: int, message: wire.Message, blob: bytes) -> None:
        if message["op"] == contract.OP_ERROR:
            error: contract.RankError = {
                "type": message.get("type", ""),
                "message": message.get("message", ""),
                "traceback": message.get("traceback", ""),
                "communication": bool(message.get("communication")),
            }
            process = self.process_of(number)
            process.accuse(str(message.get("kind")), error)
            if self._plain:
                self._member.raised(number, process.error or error)
            self._site.changed(True)
            pid = None if self._server is None else self._server.pid_of(number)
            self._task(self._see_it_end(number, process, pid))
        self._member.called(number, message, blob)

    async def _see_it_end(self, number: int, process: Rank, pid: Optional[int]) -> None:
        """A rank that has raised ends, also when a thread that is no daemon or a library's clean-up keeps it. Behind
        a launcher only its own process: the launcher sees it end.
        """
        pid = process.pid if self._plain else pid
        speaker = None if pid is None else Process.of(pid)
        if process.gone is not None:
            await asyncio.wait([process.gone], timeout=ENDING_S)
        if process.ended_at is not None or speaker is None or not speaker.is_there():
            return
        stack = await stack_of(number, speaker.pid, self._site.socket_folder)
        if process.ended_at is None and speaker.is_there():
            self._site.console.say(
                f"rank {number} raised an exception and has not ended within {ENDING_S:g} s: it is killed. Likely a "
                f"thread that is no daemon, or a library's clean-up at exit. It stands here:\n{stack}"
            )
            if self._plain:
                signal_group(speaker.pid, signal.SIGKILL)
            else:
                speaker.kill()

    def _rank_changed(self, rank: Rank) -> None:
        if rank.state == contract.RANK_ENDED and rank.rank not in self._told:
            self._told[rank.rank] = True
            self._member.ended(rank)
        self._site.changed(True)


def _sweep(tmp: str) -> None:
    """Our own temporary folders that ranks left which were killed while they saved. No rank of this worker lives
    yet; a thread removes what was listed.
    """
    left = [os.path.join(tmp, name) for name in os.listdir(tmp) if name.startswith("trainjob-")]
    for path in left:
        asyncio.get_running_loop().run_in_executor(None, shutil.rmtree, path, True)
