"""The members of one attempt in the simulator: which agent is whose, and the links between them.

Rank 0's agent is the agents' real `Leader` (join, barrier, uploads, commits, the end of the run), the others are real
`Member`s; what they say to each other is encoded and parsed as on the wire. Only the connections are pretended. Used by
`puppet_agent.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from trainjob.agent.wire.from_leader import FROM_LEADER, FromLeader
from trainjob.agent.wire.from_member import FROM_MEMBER, Bye, FromMember, Join
from trainjob_api import contract, wire
from trainjob_operator.clock import wait_until

if TYPE_CHECKING:
    from support.puppet_agent import PuppetAgent
    from support.puppets import World

LOOK_S = 1.0
"""A link to a peer that is not back after this is reported as lost."""
KEPT_WAITING_S = 30.0
"""An agent that has not heard of the attempt keeps those that call waiting for so long; one that is frozen, longer."""


class Link:
    """A member's connection to rank 0's agent; for that agent it is a `FrameConnection`."""

    def __init__(self, group: Group, index: int, member: PuppetAgent, leader: PuppetAgent) -> None:
        self._group, self._index, self._member, self._leader = group, index, member, leader
        self.open = True
        self.over = asyncio.Event()
        """The member knows that it is gone."""

    @property
    def heard_at(self) -> float:
        """Silence is `World.lose_node`'s and `World.mute`'s affair."""
        return asyncio.get_running_loop().time()

    def send_frame(self, frame: bytes) -> None:
        asyncio.get_running_loop().call_soon(self._to_member, frame)

    def send_if_quiet(self, frame: bytes, quiet_s: float) -> None:
        pass

    def send(self, word: FromMember) -> None:
        """From the member."""
        asyncio.get_running_loop().call_soon(self._to_leader, FROM_MEMBER.encode(word))

    def close(self) -> None:
        """By either side, or because one is gone."""
        if self.open:
            self.freeze()
            self.over.set()
            if self._leader.leader is not None:
                self._leader.leader.detach(self._index, self)  # type: ignore[arg-type]

    def freeze(self) -> None:
        """Nothing passes any more, and nobody is told."""
        self.open = False

    def _to_member(self, frame: bytes) -> None:
        if self.open and self._group.is_in(self._member) and self._member.member is not None:
            self._member.member.take(_from_leader(frame))

    def _to_leader(self, frame: bytes) -> None:
        if self.open and self._group.leads(self._leader):
            assert self._leader.leader is not None
            self._leader.leader.take(self._index, FROM_MEMBER.parse(*_frame(frame)))


@lru_cache(maxsize=64)
def _from_leader(frame: bytes) -> FromLeader:
    """Rank 0's agent says one thing to all: it is parsed once."""
    return FROM_LEADER.parse(*_frame(frame))


def _frame(data: bytes) -> wire.Frame:
    (frame,) = wire.Decoder().feed(data)
    return frame


class Group:
    """One attempt."""

    def __init__(self, world: World, job: str, job_uid: str, attempt: int, workers: int) -> None:
        self._world, self.job, self.job_uid = world, job, job_uid
        self.attempt, self.workers = attempt, workers
        self.members: dict[int, Any] = {}
        self._leader: PuppetAgent | None = None
        self._leader_came = asyncio.Event()
        self.cut: set[int] = set()
        """Members that have no way to rank 0's agent for now."""
        self.calls: dict[int, int] = {}
        """By rank: the collective that it called last."""
        self.began: float | None = None
        """Without agents: when all scripts had come."""
        self.failing = False
        """Its ranks were refused a report for what their pods or storage did to it."""

    # --- What is asked of it ------------------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        return len(self.members) == self.workers and all(self.is_in(agent) for agent in self.members.values())

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

    @property
    def is_broken(self) -> bool:
        """A rank that speaks with its peers in a step would hang: one of them is gone."""
        return not self.complete or any(
            rank["state"] == contract.RANK_ENDED and rank.get("kind") != contract.END_OK for rank in self.ranks()
        )

    @property
    def waits(self) -> bool:
        """Whether all that is missing are ranks that were never started: those that are there wait for them, as a
        process group that forms does.
        """
        away = [agent for agent in self.members.values() if not self.is_in(agent)]
        well = all(rank["state"] != contract.RANK_ENDED or rank.get("kind") == contract.END_OK for rank in self.ranks())
        return well and all(self._world.notes.get(agent.pod_uid) != self.attempt for agent in away)

    def is_in(self, agent: PuppetAgent) -> bool:
        return agent.alive and agent.attempt == self.attempt

    def leads(self, agent: PuppetAgent | None) -> bool:
        """Whether it serves the others of this attempt: it has asked to join itself, and was not told to begin another."""
        return agent is not None and agent is self._leader and self.is_in(agent) and agent.leader is not None

    # --- The links ----------------------------------------------------------------------------------------------------

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
            self._world.spawn(self._keep_link(agent, index))
            return
        self._leader = agent
        self.send(agent, Join(agent.address, agent.held, agent.course.joined))
        self._leader_came.set()
        self._leader_came = asyncio.Event()

    def send(self, agent: PuppetAgent, word: FromMember) -> None:
        """To rank 0's agent; nobody hears it without a link."""
        if agent.leader is not None:
            agent.leader.take(0, word)
        elif agent.link is not None and agent.link.open:
            agent.link.send(word)

    async def _keep_link(self, agent: PuppetAgent, index: int) -> None:
        """As `LeaderLink`: connect again and again, and name rank 0's agent while that fails."""
        now = self._world.clock.monotonic
        since = now()
        while self.is_in(agent):
            leader = self._leader
            away = index in self.cut or (leader is not None and self._world.are_apart(agent.slot, leader.slot))
            if not away and leader is not None and self.leads(leader) and self.members[index] is agent:
                await self._connected(agent, index, leader)
                since = now()
            else:
                kept_s = KEPT_WAITING_S if leader is not None and leader.alive and not away else LOOK_S
                if 0 not in agent.lost_peers and now() - since >= kept_s:
                    agent.lost_peers.add(0)
                    agent.unreached_since = since
                    agent.speak()
            await wait_until(self._world.clock, now() + LOOK_S, self._leader_came.wait())

    async def _connected(self, agent: PuppetAgent, index: int, leader: PuppetAgent) -> None:
        assert leader.leader is not None
        link = agent.link = Link(self, index, agent, leader)
        for one, peer in ((leader, index), (agent, 0)):
            if peer in one.lost_peers:
                one.lost_peers.discard(peer)
                one.speak()
        leader.leader.attach(index, link)  # type: ignore[arg-type]
        link.send(Join(agent.address, agent.held, agent.course.joined))
        if agent.course.joined and agent.member is not None:
            agent.member.say_all_again()
        await link.over.wait()

    def cut_link(self, index: int) -> None:
        """The connection breaks, and there is none until `mend_link`."""
        self.cut.add(index)
        agent = self.members.get(index)
        if agent is not None and agent.link is not None:
            agent.link.close()

    def mend_link(self, index: int) -> None:
        self.cut.discard(index)


def say_bye(agent: PuppetAgent) -> None:
    """It leaves its attempt in good order."""
    link, agent.link = agent.link, None
    if link is not None:
        if link.open:
            link._to_leader(FROM_MEMBER.encode(Bye()))
        link.close()
        link.over.set()
