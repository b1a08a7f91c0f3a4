"""The members of one attempt in the simulator, as they find each other at rank 0's agent and train.

The join and each member's course are the agents' real machines; links, storage and training are pretended. Used by
`puppets.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from trainjob.agent.attempts import course, join
from trainjob.agent.attempts.join import Join, Request
from trainjob.agent.wire.from_leader import Joined, Resume
from trainjob_api import contract

if TYPE_CHECKING:
    from support.puppets import PuppetAgent, World

RECONNECT_S = 0.2
"""Until a member finds rank 0's agent again after its container was started anew."""
LOOK_S = 1.0
"""A link to a peer that is not back after this is reported as lost."""
KEPT_WAITING_S = 30.0
"""An agent that has not heard of the attempt keeps those that call waiting for so long; one that is frozen, longer."""
AWAITED_S = 10.0
"""Rank 0's agent names those that have not come to the join by then."""
STEP_S = (0.0, 0.1)
"""How long a step at storage takes: the claim of the run, the end record, what is brought before a fork."""


class Group:
    """One attempt."""

    def __init__(self, world: World, job: str, job_uid: str, attempt: int, workers: int) -> None:
        self._world, self.job, self.job_uid = world, job, job_uid
        self.attempt, self.workers = attempt, workers
        self.members: dict[int, PuppetAgent] = {}
        self._leader: PuppetAgent | None = None
        self._join = Join(workers)
        self._well: set[int] = set()
        """Members whose ranks ended well, as rank 0's agent was told."""
        self._trains = False

    # --- What is asked of it ------------------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        return len(self.members) == self.workers and all(self._is_in(agent) for agent in self.members.values())

    def ranks(self) -> Iterator[dict[str, Any]]:
        for agent in self.members.values():
            yield from agent.ranks

    @property
    def all_running(self) -> bool:
        ranks = list(self.ranks())
        return (
            self.complete
            and all(agent.ranks for agent in self.members.values())
            and all(rank["state"] == contract.RANK_RUNNING for rank in ranks)
        )

    def _is_in(self, agent: PuppetAgent) -> bool:
        return agent.alive and agent.attempt == self.attempt

    def leads(self, agent: PuppetAgent | None) -> bool:
        """Whether it serves the others of this attempt: it has asked to join itself, and was not told to begin another."""
        return agent is not None and agent is self._leader and self._is_in(agent)

    # --- The join -----------------------------------------------------------------------------------------------------

    def come(self, agent: PuppetAgent, index: int) -> None:
        """A member's agent asks to join."""
        holder = self.members.get(index)
        if holder is not None and holder is not agent and holder.pod_uid != agent.pod_uid:
            raise AssertionError(
                f"attempt {self.attempt} index {index}: both {holder.pod_name} ({holder.pod_uid}) and {agent.pod_name} "
                f"({agent.pod_uid}) are told to be it"
            )
        self.members[index] = agent
        if index != 0:
            self._world.spawn(self._call_leader(agent, index))
            self._ask(agent, index)
            return
        self._leader, self._join, self._well = agent, Join(self.workers), set()
        self._world.spawn(self._await_members(agent, self._join))
        self._ask(agent, 0)
        for other in self.members:
            if other != 0:
                self._world.spawn(self._reconnect(agent, other))

    async def _call_leader(self, agent: PuppetAgent, index: int) -> None:
        """As a member that is not answered yet: connect again and again, and name rank 0's agent while that fails."""
        began = self._world.clock.monotonic()
        while True:
            await asyncio.sleep(LOOK_S)
            if not self._is_in(agent) or agent.course.phase != course.ASKING:
                return
            leader, apart = self._leader, self._is_apart(agent)
            if self.leads(leader) and not apart:
                if index in self._join.missing():
                    self._ask(agent, index)
                continue
            kept_s = KEPT_WAITING_S if leader is not None and leader.alive and not apart else LOOK_S
            if 0 not in agent.lost_peers and self._world.clock.monotonic() - began >= kept_s:
                agent.lost_peers.add(0)
                agent.unreached_since = began
                agent.speak()

    async def _await_members(self, agent: PuppetAgent, joining: Join) -> None:
        """As rank 0's agent: name those that do not come."""
        began = self._world.clock.monotonic()
        await asyncio.sleep(AWAITED_S)
        while self._is_in(agent) and self._join is joining and joining.phase == join.GATHERING:
            missing = set(joining.missing())
            if missing != agent.lost_peers:
                agent.lost_peers, agent.unreached_since = missing, began
                agent.speak()
            await asyncio.sleep(LOOK_S)

    def _is_apart(self, agent: PuppetAgent) -> bool:
        return self._leader is not None and self._world.are_apart(agent.slot, self._leader.slot)

    async def _reconnect(self, leader: PuppetAgent, index: int) -> None:
        await asyncio.sleep(RECONNECT_S)
        member = self.members[index]
        if self.leads(leader) and self._is_in(member):
            self._ask(member, index)

    def _ask(self, agent: PuppetAgent, index: int) -> None:
        leader = self._leader
        if leader is None or not self.leads(leader) or (index != 0 and self._is_apart(agent)):
            return
        for one, peer in ((leader, index), (agent, 0)):
            if peer in one.lost_peers:
                one.lost_peers.discard(peer)
                one.speak()
        if agent.course.joined:
            self._carry_out(self._join.began())
        elif agent.course.phase == course.ASKING:
            self._carry_out(self._join.asked(Request(index, f"10.0.0.{agent.slot}:7000")))

    def _carry_out(self, outputs: Iterable[join.Output]) -> None:
        for output in outputs:
            if isinstance(output, join.Settle):
                self._world.spawn(self._settle(self._leader, self._join))
                continue
            for agent in [self.members[index] for index in output.indices]:
                if not self._is_in(agent):
                    continue
                if isinstance(output, join.Answer):
                    agent.carry_out(agent.course.answered(output.answer.completed))
                else:
                    agent.carry_out(agent.course.failed(output.kind, output.message))

    async def _settle(self, leader: PuppetAgent | None, settling: Join) -> None:
        await self._step()
        if self._join is settling and self.leads(leader):
            completed = self._world.training(self.job).completed
            nothing = Resume(None, {}, ())
            self._carry_out(settling.settled(Joined(1, completed, (), "", 0, None, nothing)))

    async def _step(self) -> None:
        await asyncio.sleep(self._world.between(STEP_S))

    # --- Training -----------------------------------------------------------------------------------------------------

    async def start(self, agent: PuppetAgent) -> None:
        """The join is answered: its ranks are forked, unless something came between."""
        await self._step()
        if not self._is_in(agent) or agent.course.phase != course.STARTING:
            return
        agent.course.forking()
        index = next(index for index, member in self.members.items() if member is agent)
        self._world.notes[agent.pod_uid] = self.attempt
        self._world.starts.append((self.job_uid, self.attempt, index, agent.pod_uid))
        agent.start_ranks(index)
        if self.all_running and not self._trains:
            self._trains = True
            self._world.spawn(self._train())

    async def _train(self) -> None:
        """From the first step to the last, or until it can no longer go on."""
        world, training, leader = self._world, self._world.training(self.job), self.members[0]
        while self.all_running:
            leader.began(training.position)
            leader.progress = {
                "position": training.position,
                "step": training.position,
                "metrics": {"loss": 1.0 / (1 + training.position)},
                "time": world.clock.now().timestamp(),
            }
            leader.speak()
            if training.position >= training.length:
                break
            await asyncio.sleep(world.pace.report)
            if self.all_running:
                training.position += 1
        if not self.all_running:
            return
        for index, agent in list(self.members.items()):
            if not self._is_in(agent) or not all(rank["state"] == contract.RANK_RUNNING for rank in agent.ranks):
                return
            for local in range(len(agent.ranks)):
                agent.end_rank(local, contract.END_OK, exit_code=0)
            if self.leads(leader):
                self._well.add(index)
            await asyncio.sleep(0.1)
        if len(self._well) == self.workers:
            await self._end(leader)

    async def _end(self, leader: PuppetAgent) -> None:
        """Rank 0's agent writes the end record, then tells the others."""
        await self._step()
        if not self.leads(leader):
            return
        self._world.training(self.job).completed = True
        await self._step()
        if not self.leads(leader):
            return
        for agent in self.members.values():
            if self._is_in(agent):
                agent.course.completed()
                agent.speak()
