"""A pod of the simulator in which a script runs without an agent: it waits for its peers, trains, and ends.

Kubelets alone tell of it. It holds the operator to what protects such scripts: no process of another attempt lives
beside it, none of its own index, and all of its group were made alike. What it does when it is told to end is chance: it
obeys, takes a while, or has to be killed.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from trainjob_api import contract
from trainjob_operator.cluster import Manifest

if TYPE_CHECKING:
    from support.puppet_group import Group
    from support.puppets import World

COME_LOOK_S = 0.2
SUCCESS, TERMINATED = 0, 143


class PlainScript:
    """One life of the trainer container; it has no second one."""

    processes = 1
    member = leader = link = None

    def __init__(self, world: World, pod: Manifest, boot: int) -> None:
        self.world, self.pod, self.boot = world, pod, boot
        metadata = pod["metadata"]
        self.namespace, self.pod_name, self.pod_uid = metadata["namespace"], metadata["name"], metadata["uid"]
        env = {entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][0]["env"]}
        self.job, self.job_uid = env[contract.ENV_JOB], env[contract.ENV_JOB_UID]
        self.slot, self.attempt = int(env[contract.ENV_SLOT]), int(env[contract.ENV_ATTEMPT])
        self.index, self.workers = int(env["PET_NODE_RANK"]), int(env["PET_NNODES"])
        self.training = world.training(self.job)
        self.make = metadata["labels"].get(contract.LABEL_MAKE)
        self.alive, self.succeeded = True, False
        self.ranks: list[dict[str, Any]] = [{"state": contract.RANK_RUNNING, "rank": self.index}]
        self.course = SimpleNamespace(joined=True)
        self.lost_peers: set[int] = set()
        self.clock_error, self.muted = 0.0, False
        self.gone = asyncio.Event()
        self._hears_after_s = world.rng.choice([0.0, 2.0, None])
        """From SIGTERM to its end; None: it is deaf."""

    def speak(self) -> None:
        """There is nobody to speak."""

    async def run(self) -> None:
        """Until it ends or is killed."""
        work = asyncio.ensure_future(self._train())
        gone = asyncio.ensure_future(self.gone.wait())
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            work.cancel()
            gone.cancel()

    async def _train(self) -> None:
        group = self._come()
        now = self.world.clock.monotonic
        while len(group.members) < self.workers or group.began is None:
            if len(group.members) == self.workers and all(one.alive for one in group.members.values()):
                group.began = now()
            else:
                await asyncio.sleep(COME_LOOK_S)
        training = self.training
        for position in range(1, training.length + 1):
            await asyncio.sleep(max(0.0, group.began + position * self.world.pace.report - now()))
            if any(not one.alive and not one.succeeded for one in group.members.values()):
                await self.gone.wait()  # it hangs in its step
        await asyncio.sleep(0.1 * (1 + self.index))
        self.end(SUCCESS)

    def _come(self) -> Group:
        world = self.world
        others = [one for one in world.agents.values() if one.job_uid == self.job_uid and one is not self]
        for other in others:
            if other.attempt != self.attempt and not isinstance(other, PlainScript):
                continue  # an agent's ranks are fenced by their attempt
            if other.attempt != self.attempt:
                self._broken(
                    f"{self.pod_name} of attempt {self.attempt} begins, {other.pod_name} of {other.attempt} lives"
                )
            elif isinstance(other, PlainScript) and other.index == self.index:
                self._broken(f"{self.pod_name} and {other.pod_name} are both rank {self.index} of {self.attempt}")
            elif isinstance(other, PlainScript) and other.make != self.make:
                self._broken(f"{self.pod_name} and {other.pod_name} of attempt {self.attempt} are of two makes")
        group = world.group(self, self.attempt, self.workers)
        group.members[self.index] = self
        return group

    def _broken(self, text: str) -> None:
        self.world.broken(AssertionError(text))

    # --- How it ends --------------------------------------------------------------------------------------------------

    def end_rank(self, local: int, kind: str, *, exit_code: int, error: dict[str, Any] | None = None) -> None:
        """Its process ends, and with it the container."""
        self.end(exit_code, error["message"] if error else None)

    def end(self, code: int, message: str | None = None) -> None:
        """By itself."""
        if not self.alive:
            return
        self.succeeded = code == SUCCESS
        self.die()
        self.world.script_ended(self, code, message)

    def drain(self) -> None:
        """SIGTERM."""
        if self._hears_after_s is not None:
            self.world.spawn(self._end_after(self._hears_after_s))

    async def _end_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.end(TERMINATED)

    def die(self, *, silently: bool = False, goes_well: bool = False) -> None:
        """The process is gone."""
        if self.alive:
            self.alive = False
            self.ranks = [{**rank, "state": contract.RANK_ENDED, "kind": contract.END_EXIT} for rank in self.ranks]
            self.gone.set()
            if self.world.agents.get(self.pod_uid) is self:
                del self.world.agents[self.pod_uid]
