"""This agent as rank 0's: gathers the members, settles how the attempt begins, serves its collectives and commits, and
ends the run.

Made by `attempt` on the agent with index 0. Members' frames come in through `take` (our own member's by a plain call).
The rules are in `join`, `barrier` and `uploads`, which are pure; `collectives` and `commits` carry out the latter two.
"""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Dict, List, Mapping, Optional, Set, Tuple

from trainjob.agent.attempts import join, master_port, settling
from trainjob.agent.attempts.join import Join, Request
from trainjob.agent.attempts.master_port import MasterPort
from trainjob.agent.attempts.notes import Notes
from trainjob.agent.attempts.witness import OTHERS_S, Witnesses
from trainjob.agent.background import Background
from trainjob.agent.barriers.collectives import Collectives, Facts
from trainjob.agent.barriers.history import History
from trainjob.agent.processes.rank_command import is_plain
from trainjob.agent.site import Site
from trainjob.agent.storing.commits import Commits
from trainjob.agent.storing.storage import StorageError
from trainjob.agent.wire import messages, peer_protocol, pulse
from trainjob.agent.wire.frames import FrameConnection
from trainjob.agent.wire.messages import Arrive, Held
from trainjob_api import contract, wire

SAY_WAITING_S = 60.0
POLL_S = 0.2
STORING_WORD_S = 10.0
"""How often it is said that all ranks have ended and storage is waited for."""
AWAITED_S = 10.0
"""A member that has not come to the join for so long is told of: should its agent be silent too, it is lost."""
LOST_S = 1.0
"""How long a member may be without a connection before it counts as a lost peer."""


class Leader:
    """One per attempt."""

    def __init__(
        self, site: Site, attempt: int, workers: int, processes: int, own_member: Callable[[wire.Message, bytes], None]
    ) -> None:
        self._site = site
        self._attempt = attempt
        self._workers = workers
        self._processes = processes
        self._plain = is_plain(site.config.command)
        self._own_member = own_member
        self._links: Dict[int, FrameConnection] = {}
        self._join = Join(workers)
        self._requests: List[Request] = []
        self._notes = Notes(site.saving, self.tell)
        self._answer: Optional[Tuple[wire.Message, bytes]] = None
        """The join's, ready to be sent."""
        self._port: Optional[MasterPort] = None
        self._background = Background(site.on_fault)
        self._ok: Set[int] = set()
        self._lost_timers: Dict[int, asyncio.TimerHandle] = {}
        self._run: Optional[int] = None
        self._ending = False
        self._impatient = False
        self._left: Set[int] = set()
        """Members that said good-bye: their agents end."""
        self._lost: Dict[int, float] = {}
        """Members that had joined and cannot be reached: since when."""
        self.collectives: Optional[Collectives] = None
        self.commits: Optional[Commits] = None
        self._history: Optional[History] = None
        self._witnesses = Witnesses()
        self._closed = False
        loop = asyncio.get_running_loop()
        self._silent: Dict[int, float] = {}
        """Members whose connection stands and that have not been heard: since when."""
        self._began = loop.time()
        self._pulse = pulse.Pulse(self._began)
        self._beating = loop.call_later(pulse.BEAT_S, self._beat)
        self._patience = loop.call_later(SAY_WAITING_S, self._say_waiting)
        self._awaiting = loop.call_later(AWAITED_S, self._tell_awaited)

    # -- members -------------------------------------------------------------------------------------------------------

    def attach(self, index: int, connection: FrameConnection) -> None:
        """A member's connection is up; it says JOIN next."""
        self._silent.pop(index, None)
        older = self._links.get(index)
        self._links[index] = connection
        if older is not None:
            older.close()

    def detach(self, index: int, connection: FrameConnection) -> None:
        """A member's connection is gone."""
        if self._closed or self._links.get(index) is not connection:
            return
        del self._links[index]
        self._silent.pop(index, None)
        self._join.left(index)
        self._lost_timers[index] = asyncio.get_running_loop().call_later(LOST_S, self._count_lost, index)

    def _count_lost(self, index: int) -> None:
        self._lost[index] = asyncio.get_running_loop().time() - LOST_S
        self._site.changed(True)

    @property
    def unreached(self) -> Mapping[int, float]:
        """Members that cannot be reached, by the loop's time since when: lost and silent ones, and in a join those that
        do not come.
        """
        missing = self._join.missing() if self._awaits_late else ()
        return {**dict.fromkeys(missing, self._began), **self._silent, **self._lost}

    @property
    def _awaits_late(self) -> bool:
        return self._join.phase == join.GATHERING and asyncio.get_running_loop().time() >= self._began + AWAITED_S

    def _beat(self) -> None:
        """Say to all members that we live, and look who of them does."""
        loop, before = asyncio.get_running_loop(), self._silent
        self._beating = loop.call_later(pulse.BEAT_S, self._beat)
        self._pulse.tick(loop.time())
        self._silent = {}
        for index, link in list(self._links.items()):
            link.send_if_quiet(pulse.FRAME, pulse.BEAT_S / 2)
            since = self._pulse.silent_since(link.heard_at)
            if since is not None:
                self._silent[index] = since
        if self._silent.keys() != before.keys():
            self._site.changed(True)

    def _tell_awaited(self) -> None:
        if self.unreached:
            self._site.changed(True)

    def tell(self, index: Optional[int], message: wire.Message, blob: bytes = b"") -> None:
        """To one member, or to all (None)."""
        if index is None:
            frame = wire.encode(message, blob) if self._links else b""
            for link in list(self._links.values()):
                link.send_frame(frame)
            self._own_member(message, blob)
        elif index == 0:
            self._own_member(message, blob)
        elif index in self._links:
            self._links[index].send(message, blob)

    def take(self, index: int, message: wire.Message, blob: bytes = b"") -> None:
        """A member's frame. Raises KeyError, TypeError, ValueError for one that makes no sense (its connection is
        closed).
        """
        op = message["op"]
        if op == peer_protocol.ARRIVE and self.collectives is not None:
            self.collectives.arrived(index, Arrive.parse(message), blob)
        elif op == peer_protocol.NOTE_IS:
            self._notes.came(message, blob)
        elif op == peer_protocol.JOIN:
            self._asked(index, message)
        elif op == peer_protocol.BEAT:
            pass  # the connection knows when it was heard
        elif op == peer_protocol.BYE:
            self._links.pop(index, None)
            self._left.add(index)
            self._join.left(index)
        elif op == peer_protocol.DAMAGED:
            self._damaged(message)
        elif op == peer_protocol.SEEN:
            if self._witnesses.said(index, str(message["pod"]), bool(message["seen"]), str(message["where"])):
                self._background.spawn(self._not_shared())
        elif self.collectives is not None and self.commits is not None:
            self._take_joined(op, index, message)

    def _take_joined(self, op: str, index: int, message: wire.Message) -> None:
        assert self.collectives is not None and self.commits is not None
        if op == peer_protocol.ENDED:
            self._ended(index, message)
        elif op == peer_protocol.STAGED:
            self.collectives.staged(index, message)
        elif op == peer_protocol.STAGE_FAILED:
            self.collectives.stage_failed(index, message)
        elif op == peer_protocol.COMPARED:
            self.collectives.compared(index, message)
        elif op == peer_protocol.PERSISTED:
            self.collectives.persisted(index, message["n"])
        elif op == peer_protocol.LOG:
            self.collectives.logged(message["rows"])
        elif op == peer_protocol.STACKS_ARE:
            self.collectives.missing.stacks_are(index, message)
        elif op == peer_protocol.SHARED:
            self.commits.shared(index, str(message["id"]))
        elif op == peer_protocol.SHARE_LOST:
            self.commits.share_lost(index, str(message["id"]), str(message["message"]))
        elif op == peer_protocol.SHARE_FAILING:
            self.commits.share_failing(
                str(message["id"]), str(message["kind"]), f"worker {index}: {message['message']}"
            )
        elif op == peer_protocol.REPORTED:
            self._background.spawn(self._tell_reported(index, int(message["rank"]), message.get("timeout_s")))
        elif op == peer_protocol.MOVED:
            self.commits.moved(index, int(message["bytes"]))
        else:
            raise ValueError(f"unknown message {op!r}")

    def close(self) -> None:
        """A newer attempt begins, or the agent ends."""
        self._closed = True
        self._patience.cancel()
        self._awaiting.cancel()
        self._beating.cancel()
        for timer in self._lost_timers.values():
            timer.cancel()
        self._background.cancel()
        for part in (self.collectives, self.commits, self._history, *self._links.values()):
            if part is not None:
                part.close()
        if self._port is not None:
            self._port.release()

    # -- the join ------------------------------------------------------------------------------------------------------

    def _asked(self, index: int, message: wire.Message) -> None:
        timer = self._lost_timers.pop(index, None)
        if timer is not None:
            timer.cancel()
        self._left.discard(index)
        if self._lost.pop(index, None) is not None or self._awaits_late:
            self._site.changed(True)
        if message.get("started"):
            # It knows the answer and comes back after a lost connection.
            if self.collectives is not None:
                self.collectives.rejoined(index)
            self._carry_out(self._join.began())
            return
        held = tuple([Held.parse(row) for row in message.get("held") or ()])
        self._carry_out(self._join.asked(Request(index, str(message["address"]), held)))

    def _carry_out(self, outputs: List[join.Output]) -> None:
        for output in outputs:
            if isinstance(output, join.Settle):
                self._requests = list(output.members)
                self._background.spawn(self._settle())
            elif isinstance(output, join.Answer):
                self._tell_answer(output)
            else:
                for index in output.indices:
                    self.tell(index, {"op": peer_protocol.REFUSED, "kind": output.kind, "message": output.message})

    def _tell_answer(self, output: join.Answer) -> None:
        if self._answer is None:
            self._answer = messages.joined(output.answer)
        message, blob = self._answer
        frame = wire.encode(message, blob)
        for index in output.indices:
            if index == 0:
                self._own_member(message, blob)
            elif index in self._links:
                self._links[index].send_frame(frame)

    async def _settle(self) -> None:
        candidates = await self._notes.candidates(self._requests)
        try:
            settled = await settling.settle(self._site, self._attempt, candidates)
            host = self._site.config.host
            spec = self._site.config.spec
            self._port = (
                master_port.picked(host)
                if self._site.config.any_master_port
                else master_port.computed(spec.rendezvous_port, self._attempt)
            )
        except StorageError as error:
            self._carry_out(
                self._join.failed(
                    contract.END_STORAGE, f"The job's storage {self._site.config.spec.storage} cannot be used: {error}"
                )
            )
            return
        except OSError as error:
            self._carry_out(self._join.failed(contract.END_INTERNAL, f"No port for rank 0: {error}"))
            return
        chosen = settled["checkpoint"]
        adopted = [] if self._site.storage is None else settling.adopted(candidates, chosen, int(settled["run"]))
        for text in [settled.get("why"), *(settled.get("warnings") or ())]:
            if text:
                self._site.console.say(str(text))
        answer = {
            "run": settled["run"],
            "completed": bool(settled["completed"]),
            "checkpoint": chosen,
            "holders": self._notes.holders(self._requests, chosen),
            "members": [r.address for r in self._requests],
            "master_addr": host,
            "master_port": self._port.port,
            "adopt": adopted,
            "claim": settled.get("claim"),
        }
        if not settled["completed"]:
            self._begin(answer)
        self._carry_out(self._join.settled(answer))

    async def _not_shared(self) -> None:
        """The storage path is another folder somewhere: nothing could be committed, whatever is tried."""
        await asyncio.sleep(OTHERS_S)
        config = self._site.config
        self.tell(
            None,
            {
                "op": peer_protocol.REFUSED,
                "kind": contract.END_NOT_SHARED,
                "message": self._witnesses.verdict(str(config.spec.storage), config.pod),
            },
        )

    def _begin(self, answer: Mapping[str, Any]) -> None:
        """Everything that must be there before the first rank can call."""
        chosen = answer["checkpoint"]
        self._run = int(answer["run"])
        position = int(chosen["note"]["position"]) if chosen is not None else 0
        chosen_id = None if chosen is None else str(chosen["id"])
        parent = chosen_id if chosen_id is not None and settling.order(chosen_id)[0] <= self._run else None
        self._history = History(
            self._site.storage, self._run, self._attempt, position, self._site.on_fault, self._site.warn
        )
        self.commits = Commits(
            self._site, self.tell, self._run, self._attempt, () if chosen_id is None else (chosen_id,)
        )
        facts = Facts(self._attempt, self._run, self._workers, self._processes, self._plain, position, parent)
        self.collectives = Collectives(self._site, self.tell, facts, self.commits, self._history)
        self.commits.on_committed = self.collectives.committed
        self.commits.on_trouble = self.collectives.commit_trouble
        self.commits.on_drained = self._maybe_end
        self.commits.on_failed = self._uploads_failed
        for note in answer["adopt"]:
            sha = self._notes.sha(str(note["id"]))
            holders = {r.member: h.bits for r in self._requests for h in r.held if h.sha == sha}
            # Of duplicates nothing is held: the commit needs the ranks whose copies count.
            ranks = sorted({int(f[2]) for f in note["files"]})
            self.commits.released(note, [index for index, held in holders.items() if held], ranks)

    def _say_waiting(self) -> None:
        missing = self._join.missing()
        if missing and self._join.phase == join.GATHERING:
            self._site.console.say(
                f"attempt {self._attempt} waits for the agents of workers {', '.join(map(str, missing[:16]))} to join"
            )
            self._patience = asyncio.get_running_loop().call_later(SAY_WAITING_S, self._say_waiting)

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _ended(self, index: int, message: wire.Message) -> None:
        assert self.collectives is not None
        rank = int(message["rank"])
        self.collectives.ended(index, rank, str(message["how"]))
        if message.get("kind") == contract.END_OK:
            self._ok.add(rank)
            self._maybe_end()

    def _uploads_failed(self, why: str) -> None:
        assert self.collectives is not None
        self.collectives.refuse_reports(why)
        self._maybe_end()

    def _maybe_end(self) -> None:
        """All ranks ended with 0, none while it was needed, and nothing is on its way to storage: the run is
        complete.
        """
        expected = self._workers * (self._processes if self._plain else 1)
        if len(self._ok) != expected or self.commits is None or self._ending:
            return
        if self.collectives is None or self.collectives.needed:
            return  # the agents of those that were needed say so of them
        if self.commits.failed is not None:
            # No rank is left that a report() could tell.
            self._ending = True
            self.tell(0, {"op": peer_protocol.UNSTORED, "message": self.commits.failed})
        elif self.commits.drained:
            self._ending = True
            self._background.spawn(self._end())
        elif not self._impatient:
            self._impatient = True
            self._background.spawn(self._say_what_is_awaited())

    async def _say_what_is_awaited(self) -> None:
        """Training is over and storage takes its time, or refuses: the job is not stuck, and the user can do
        something.
        """
        assert self.commits is not None
        while True:
            await asyncio.sleep(STORING_WORD_S)
            if self._ending or not self.commits.on_their_way:
                return
            names = ", ".join(self.commits.on_their_way)
            self._site.console.say(
                f"all ranks have ended; the job completes as soon as storage has taken checkpoint {names}"
            )

    async def _end(self) -> None:
        assert self.commits is not None and self.collectives is not None and self._history is not None
        progress = self.collectives.progress
        latest = self.commits.latest
        await self._flush_history()
        await self.commits.write_end(
            {
                "attempt": self._attempt,
                "position": progress["position"],
                "metrics": progress["metrics"],
                "checkpoint": latest and latest["id"],
            }
        )
        self.tell(None, {"op": peer_protocol.COMPLETED})

    async def _flush_history(self) -> None:
        assert self._history is not None
        try:
            await self._history.flush()
        except StorageError as error:
            self._site.warn(f"The history cannot be written: {error}")

    async def finish(self) -> None:
        """Before the agent ends: what was reported reaches the history, what is staged is committed. As long as it
        takes; the caller has the clock.
        """
        if self._history is not None:
            await self._flush_history()
        # Members that went away take their shares with them: not waited for.
        while (
            self.commits is not None
            and not self.commits.drained
            and not self.commits.waits_only_for(self._lost.keys() | self._left)
        ):
            await self.commits.until_drained(POLL_S)

    async def _tell_reported(self, index: int, rank: int, timeout_s: Optional[float]) -> None:
        """The run's checkpoints, as a rank asked for them."""
        assert self.commits is not None
        reply: Dict[str, Any] = {"op": peer_protocol.REPORTED_ARE, "rank": rank, "checkpoints": [], "error": None}
        try:
            reply["checkpoints"] = await self.commits.reported(timeout_s)
        except StorageError as error:
            reply["error"] = f"The run's checkpoints cannot be listed: {error}"
        self.tell(index, reply)

    def _damaged(self, message: wire.Message) -> None:
        self.tell(None, {"op": peer_protocol.DAMAGED, "id": message["id"], "why": message["why"]})
