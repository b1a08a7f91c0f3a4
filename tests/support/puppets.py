"""A world for the operator to act on: nodes that start pods, agents that follow instructions, ranks that do as they are
told.

Puppet agents speak the real protocol (`contract.AgentReport` as JSON bytes through the coordinator's `serve`). How an
attempt begins and ends on them are the agents' own machines (course, join, farewell); sockets, processes and training
are pretended. Everything runs in virtual time; randomness comes from the seeded `random.Random`
of the world.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

from support.puppet_group import Group
from support.virtual_time import VirtualClock
from trainjob.agent.attempts import course
from trainjob.agent.attempts.course import Course
from trainjob.agent.control import farewell
from trainjob_api import contract
from trainjob_operator.agents.endpoint import Answer
from trainjob_operator.clock import wait_until
from trainjob_operator.cluster import Conflict, Manifest, NotFound
from trainjob_operator.memory import ChangeType, MemoryCluster, ObjectChange

TOKEN = "puppet-token"
STOP_S = 0.05
"""How long ranks take to die."""
KUBELET_RETRY_S = 1.0
RESTART_S = 1.5
"""From the end of a container to the agent of its next start."""
LOST_S = 1.0
"""A link to a peer that is not back after this is reported as lost."""
LONELY_S = 600.0
"""An agent without coordinator, ranks and uploads ends after this."""

Post = Callable[[bytes], Awaitable[Answer]]
"""Raises ConnectionError when nobody listens, the request or the reply was lost."""


@dataclass
class Pace:
    """How quick the world is, seconds from..to."""

    schedule: tuple[float, float] = (0.1, 0.5)
    start: tuple[float, float] = (0.2, 1.0)
    report: float = 1.0
    """Between two reports of all ranks."""
    notice: float = 0.5
    """From a rank's end to its peers' communication errors; 0: they hang until they are killed."""


@dataclass
class Training:
    """What a job's storage holds, and how long it trains: survives all pods."""

    length: int = 5
    position: int = 0
    completed: bool = False


class World:
    """Everything that is not the operator."""

    def __init__(self, cluster: MemoryCluster, post: Post, rng: random.Random, pace: Pace | None = None) -> None:
        self.cluster = cluster
        self.clock = VirtualClock()
        self.post = post
        self.rng = rng
        self.pace = pace or Pace()
        self.agents: dict[str, PuppetAgent] = {}
        """Living agents by pod UID."""
        self.trainings: dict[str, Training] = {}
        """By job name."""
        self.groups: dict[tuple[str, int], Group] = {}
        self.notes: dict[str, int] = {}
        """By pod UID: the newest attempt for which ranks were forked there; it outlives the agent's process."""
        self.starts: list[tuple[str, int, int, str]] = []
        """(job UID, attempt, index, pod UID) of each start of ranks."""
        self.incidents = 0
        """What was broken on purpose and may be counted."""
        self.evictions = 0
        """Preemptions; they count apart."""
        self.last_words = True
        """Ended agents leave termination messages."""
        self.lost_nodes: set[str] = set()
        self.capacity: int | None = None
        """Pods that the nodes hold; None: any number."""
        self.are_apart: Callable[[int, int], bool] = lambda slot, leader: False
        """Whether one worker cannot connect to another."""
        self._tasks: set[asyncio.Task[None]] = set()

    def training(self, job: str) -> Training:
        return self.trainings.setdefault(job, Training())

    def spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        """Run something of the world; its failure is the test's failure (`stop` raises it)."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        return task

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    def between(self, span: tuple[float, float]) -> float:
        return self.rng.uniform(*span)

    # --- The kubelet --------------------------------------------------------------------------------------------------

    async def run_nodes(self) -> None:
        """Start pods that appear, end those that are deleted."""
        async for change in self.cluster.watch_objects():
            if change.kind == "Pod":
                self._on_pod(change)

    def _on_pod(self, change: ObjectChange) -> None:
        metadata = change.object["metadata"]
        uid = metadata["uid"]
        if not metadata.get("ownerReferences"):
            return
        if change.type is ChangeType.ADDED and "deletionTimestamp" not in metadata:
            self.spawn(self.bring_up(change.object))
        elif change.type is ChangeType.DELETED and uid in self.agents:
            self.agents[uid].die()
        elif "deletionTimestamp" in metadata and metadata["deletionGracePeriodSeconds"] > 0:
            if uid in self.agents and not self._on_lost_node(change.object):
                self.agents[uid].drain()
            self.spawn(self._take_down(change.object))

    async def bring_up(self, pod: Manifest) -> None:
        namespace, name, uid = _identity(pod)
        await asyncio.sleep(self.between(self.pace.schedule))
        try:
            while (
                self.capacity is not None
                and self._bound() >= self.capacity
                and self.cluster_uid(namespace, name) == uid
            ):
                self.cluster.set_pod_status(
                    namespace, name, unschedulable_status(pod["metadata"]["creationTimestamp"], self.capacity)
                )
                await asyncio.sleep(1.0 + self.rng.random())
            if self.cluster_uid(namespace, name) != uid:
                return
            self.cluster.bind_pod(namespace, name, self.some_node())
            if self.capacity is not None:
                self.cluster.set_pod_status(namespace, name, scheduled_status(self.clock.now().isoformat()))
            await asyncio.sleep(self.between(self.pace.start))
            if (
                self.cluster_uid(namespace, name) != uid
                or self._is_deleting(namespace, name)
                or self._on_lost_node(self.pod(namespace, name))
            ):
                return
            self.cluster.set_pod_status(namespace, name, running_status())
        except NotFound:
            return
        self.start_agent(pod, boot=1)

    def some_node(self) -> str:
        """One that is not lost; nodes come up as they are needed."""
        node = self.rng.choice(
            [name for name in (f"node-{number}" for number in range(4)) if name not in self.lost_nodes]
        )
        with contextlib.suppress(Conflict):
            self.cluster.add_node(node)
        return node

    def _bound(self) -> int:
        """Pods that hold a place on a node."""
        return sum(
            1
            for pod in self.cluster.pods()
            if pod["spec"].get("nodeName") and pod["status"]["phase"] not in ("Succeeded", "Failed")
        )

    def start_agent(self, pod: Manifest, boot: int) -> PuppetAgent:
        agent = PuppetAgent(self, pod, boot)
        self.agents[agent.pod_uid] = agent
        self.spawn(agent.run())
        return agent

    async def _take_down(self, pod: Manifest) -> None:
        """A deleted pod on a node: its agent has the grace period to end by itself."""
        namespace, name, uid = _identity(pod)
        deadline = self.clock.monotonic() + pod["metadata"]["deletionGracePeriodSeconds"]
        if self._on_lost_node(pod):
            return  # nobody is there to end it: it stays Terminating
        agent = self.agents.get(uid)
        if agent is not None:
            await wait_until(self.clock, deadline, agent.gone.wait())
            agent.die()
        try:
            self.cluster.finalize_pod_deletion(namespace, name, uid)
        except (NotFound, Conflict):
            return

    def pod(self, namespace: str, name: str) -> Manifest:
        return next(pod for pod in self.cluster.pods(namespace) if pod["metadata"]["name"] == name)

    def _on_lost_node(self, pod: Manifest) -> bool:
        return pod["spec"].get("nodeName") in self.lost_nodes

    def cluster_uid(self, namespace: str, name: str) -> str | None:
        found = [pod["metadata"]["uid"] for pod in self.cluster.pods(namespace) if pod["metadata"]["name"] == name]
        return found[0] if found else None

    def _is_deleting(self, namespace: str, name: str) -> bool:
        return any(
            pod["metadata"]["name"] == name and "deletionTimestamp" in pod["metadata"]
            for pod in self.cluster.pods(namespace)
        )

    # --- What may befall it -------------------------------------------------------------------------------------------

    def fail_rank(
        self, agent: PuppetAgent, local: int = 0, *, kind: str = contract.END_EXIT, exit_code: int = 1
    ) -> bool:
        """A rank's process ends; its peers lose it. False when it does not run."""
        if not agent.alive or local >= len(agent.ranks) or agent.ranks[local]["state"] != contract.RANK_RUNNING:
            return False
        self.incidents += 1
        agent.end_rank(local, kind, exit_code=exit_code)
        if self.pace.notice:
            self.spawn(self._peers_notice(agent, agent.attempt))
        return True

    async def _peers_notice(self, broken: PuppetAgent, attempt: int) -> None:
        await asyncio.sleep(self.pace.notice)
        group = self.groups.get((broken.job_uid, attempt))
        for agent in list(group.members.values()) if group else []:
            for local, rank in enumerate(agent.ranks):
                if agent.alive and agent.attempt == attempt and rank["state"] == contract.RANK_RUNNING:
                    error = {
                        "type": "RuntimeError",
                        "message": "Connection closed by peer",
                        "traceback": "",
                        "communication": True,
                    }
                    agent.end_rank(local, contract.END_EXCEPTION, exit_code=1, error=error)

    def crash_container(self, agent: PuppetAgent, exit_code: int = 137) -> None:
        """The trainer container dies: the pod has failed."""
        self.incidents += 1
        agent.die()
        self._mark_ended(agent, exit_code)

    def lose_pod(self, agent: PuppetAgent) -> None:
        """The pod's node is gone, and the pod with it."""
        self.incidents += 1
        agent.die()
        try:
            self.cluster.remove_pod(agent.namespace, agent.pod_name, grace_s=0)
        except NotFound:
            return

    def lose_node(
        self, node: str, *, noticed_after_s: float = 45.0, peers_after_s: float | None = 15.0
    ) -> list[PuppetAgent]:
        """A node vanishes with all that runs there, and nobody says a word: its pods' agents. Kubernetes notices,
        and so do peers.
        """
        self.lost_nodes.add(node)
        here = [
            agent
            for agent in self.agents.values()
            if self.pod(agent.namespace, agent.pod_name)["spec"].get("nodeName") == node
        ]
        if here:
            self.evictions += 1  # one incident, of the machine's making
        for agent in here:
            agent.die()
            if peers_after_s is not None:
                self.spawn(self._peers_lose(agent, peers_after_s))
        self.spawn(self.notice_lost_node(node, noticed_after_s))
        return here

    async def notice_lost_node(self, node: str, after_s: float) -> None:
        """As the node controller does it: the node's condition, then the condition Ready of its pods, and no word of
        their containers.
        """
        await asyncio.sleep(after_s)
        if node not in self.lost_nodes:
            return
        self.cluster.set_node_ready(node, "Unknown", "NodeStatusUnknown")
        for pod in self.cluster.pods():
            conditions = pod["status"].get("conditions") or []
            if self._on_lost_node(pod) and any(condition["type"] == "Ready" for condition in conditions):
                marked = [
                    {**condition, "status": "False"} if condition["type"] == "Ready" else condition
                    for condition in conditions
                ]
                self.cluster.set_pod_status(
                    pod["metadata"]["namespace"], pod["metadata"]["name"], {**pod["status"], "conditions": marked}
                )

    def restore_node(self, node: str) -> None:
        """The node is back after a reboot: what was deleted goes, what had run has failed, what had not begun
        begins.
        """
        if node not in self.lost_nodes:
            return
        self.lost_nodes.discard(node)
        self.cluster.set_node_ready(node, "True", "KubeletReady")
        for pod in self.cluster.pods():
            namespace, name, uid = _identity(pod)
            if pod["spec"].get("nodeName") != node or not pod["metadata"].get("ownerReferences"):
                continue
            if "deletionTimestamp" in pod["metadata"]:
                with contextlib.suppress(NotFound, Conflict):
                    self.cluster.finalize_pod_deletion(namespace, name, uid)
            elif pod["status"]["phase"] == "Running" and uid not in self.agents:
                self.incidents += 1
                self.cluster.set_pod_status(namespace, name, ended_status(137, self.clock.now().isoformat()))
            elif pod["status"]["phase"] == "Pending":
                self.cluster.set_pod_status(namespace, name, running_status())
                self.start_agent(pod, boot=1)

    async def _peers_lose(self, gone: PuppetAgent, after_s: float) -> None:
        """Rank 0's agent misses a member, members miss rank 0's agent."""
        await asyncio.sleep(after_s)
        group = self.groups.get((gone.job_uid, gone.attempt))
        index = next((index for index, agent in group.members.items() if agent is gone), None) if group else None
        if group is None or index is None:
            return
        for other, agent in group.members.items():
            if agent.alive and agent.attempt == gone.attempt and 0 in (index, other):
                agent.lost_peers.add(index)
                agent.speak()

    def mute(self, agent: PuppetAgent) -> None:
        """The way from this worker to the coordinator is broken; it trains on."""
        agent.muted = True

    def evict_pod(self, agent: PuppetAgent) -> None:
        """Preemption: DisruptionTarget, then a graceful delete. Counted apart."""
        self.evictions += 1
        status = running_status()
        status["conditions"].append({"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"})
        try:
            self.cluster.set_pod_status(agent.namespace, agent.pod_name, status)
            self.cluster.remove_pod(agent.namespace, agent.pod_name)
        except NotFound:
            return

    def restart_container(self, agent: PuppetAgent) -> None:
        """The container is started again in the same pod. The new agent knows nothing of the ranks but whether some
        were forked for the attempt that it is told to run.
        """
        was_running = any(rank["state"] == contract.RANK_RUNNING for rank in agent.ranks)
        self.incidents += agent.course.joined
        agent.die()
        if agent.attempt:
            self.spawn(self._peers_lose(agent, LOST_S))
        if was_running and self.pace.notice:
            self.spawn(self._peers_notice(agent, agent.attempt))
        self.spawn(self._start_again(agent))

    async def _start_again(self, agent: PuppetAgent) -> None:
        await asyncio.sleep(RESTART_S)
        if (
            self.cluster_uid(agent.namespace, agent.pod_name) == agent.pod_uid
            and not self._is_deleting(agent.namespace, agent.pod_name)
            and not self._on_lost_node(self.pod(agent.namespace, agent.pod_name))
        ):
            status = running_status(restarts=agent.boot)
            self.cluster.set_pod_status(agent.namespace, agent.pod_name, status)
            self.start_agent(agent.pod, agent.boot + 1)

    def add_foreign_pod(self, namespace: str, name: str, labels: dict[str, str]) -> None:
        """A pod that has nothing to do with the operator; no agent runs in it."""
        self.cluster.add_pod(
            {
                "metadata": {"name": name, "namespace": namespace, "labels": labels},
                "spec": {"containers": [{"name": "other"}]},
            }
        )

    def finished(self, agent: PuppetAgent, exit_code: int, why: str = "") -> None:
        """The agent ended by itself; its last word is the container's termination message."""
        self.agents.pop(agent.pod_uid, None)
        report = cast(contract.AgentReport, agent.report())
        self._mark_ended(agent, exit_code, farewell.farewell(report, exit_code, why) if self.last_words else None)

    def _mark_ended(self, agent: PuppetAgent, exit_code: int, message: str | None = None) -> None:
        if self.cluster_uid(agent.namespace, agent.pod_name) == agent.pod_uid:
            status = ended_status(exit_code, self.clock.now().isoformat(), message=message)
            self.cluster.set_pod_status(agent.namespace, agent.pod_name, status)

    # --- Peers among themselves ---------------------------------------------------------------------------------------

    def group(self, agent: PuppetAgent, attempt: int, workers: int) -> Group:
        """The members of an attempt."""
        return self.groups.setdefault((agent.job_uid, attempt), Group(self, agent.job, agent.job_uid, attempt, workers))


class PuppetAgent:
    """The agent of one pod: says everything it knows, does what it is told."""

    def __init__(self, world: World, pod: Manifest, boot: int) -> None:
        self.world, self.pod, self.boot = world, pod, boot
        self.namespace, self.pod_name, self.pod_uid = _identity(pod)
        env = {entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][0]["env"]}
        self.job, self.job_uid, self.slot = (
            env[contract.ENV_JOB],
            env[contract.ENV_JOB_UID],
            int(env[contract.ENV_SLOT]),
        )
        self.processes = json.loads(env[contract.ENV_AGENT_SPEC])["processes_per_worker"]
        self.alive = True
        self.attempt = 0
        self.ranks: list[dict[str, Any]] = []
        self.course = Course()
        self.group: Group | None = None
        self.index = 0
        self.found = self.draining = self.muted = False
        self._told: dict[str, Any] = {}
        self.checked: int | None = None
        self.lost_peers: set[int] = set()
        self.unreached_since = world.clock.monotonic()
        self.progress: dict[str, Any] | None = None
        self.begin: dict[str, Any] | None = None
        self.effort: dict[str, Any] | None = None
        self.clock_error = world.rng.uniform(-3.0, 3.0)
        self._seq = 0
        self._heard_at = world.clock.monotonic()
        self._transition = 0
        self._acknowledged: dict[str, Any] | None = None
        self._news = asyncio.Event()
        self.gone = asyncio.Event()

    # --- Speaking -----------------------------------------------------------------------------------------------------

    def speak(self) -> None:
        """Something changed: say it at once."""
        self._news.set()

    async def run(self) -> None:
        """Sync until told to exit or killed."""
        while self.alive:
            self._news.clear()
            answer = asyncio.ensure_future(self._post())
            waits = [answer, asyncio.ensure_future(self._news.wait()), asyncio.ensure_future(self.gone.wait())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits[1:]:
                    wait.cancel()
            if not self.alive:
                answer.cancel()
            elif answer.done() and (instruction := answer.result()) is not None:
                await self._instructed(instruction)
            # Else the open poll is left alone: the next report supersedes it.

    async def _post(self) -> dict[str, Any] | None:
        self._seq += 1
        try:
            if self.muted:
                raise ConnectionError("no way to the coordinator")
            answer = await self.world.post(json.dumps(self.report()).encode())
            if self.muted:
                raise ConnectionError("no way from the coordinator")
        except ConnectionError:
            await asyncio.sleep(contract.SYNC_RETRY_S)
            if self.alive and self.quiet and self.world.clock.monotonic() - self._heard_at > LONELY_S:
                self.die()
                self.world.finished(
                    self, contract.EXIT_OK if self.completed else contract.EXIT_NO_COORDINATOR, "no coordinator"
                )
            return None
        self._heard_at = self.world.clock.monotonic()
        if answer.status == 409:
            return None
        assert answer.status == 200, f"agent of {self.pod_name} was refused: {answer}"
        if answer.body["transition"] < self._transition:
            return None
        self._transition = answer.body["transition"]
        return dict(answer.body["instruction"])

    def report(self) -> dict[str, Any]:
        return {
            "namespace": self.namespace,
            "job": self.job,
            "job_uid": self.job_uid,
            "slot": self.slot,
            "pod": self.pod_name,
            "pod_uid": self.pod_uid,
            "boot": self.boot,
            "seq": self._seq,
            "clock": self._wall(),
            "address": f"10.0.0.{self.slot}:7000",
            "acknowledged": self._acknowledged,
            "attempt": self.attempt,
            "quiet": self.quiet,
            "joined": self.joined,
            "ranks": self.ranks,
            "begin": self.begin,
            "effort": self.effort,
            "lost_peers": sorted(self.lost_peers),
            "unreached_s": self.world.clock.monotonic() - self.unreached_since if self.lost_peers else 0.0,
            "draining": self.draining,
            "completed": self.completed,
            "checked": self.checked,
            "run": 1 if self.joined or self.completed else None,
            "progress": self.progress,
        }

    @property
    def joined(self) -> bool:
        return self.course.joined

    @property
    def completed(self) -> bool:
        return self.found or self.course.complete

    @property
    def quiet(self) -> bool:
        return all(rank["state"] == contract.RANK_ENDED for rank in self.ranks)

    def _wall(self) -> float:
        return self.world.clock.now().timestamp() + self.clock_error

    # --- Doing --------------------------------------------------------------------------------------------------------

    async def _instructed(self, instruction: dict[str, Any]) -> None:
        changed = instruction != self._acknowledged
        self._acknowledged = instruction
        if instruction["do"] != contract.DO_WAIT:
            self._told = instruction
        if changed and not self.draining:
            await self._obey(instruction)

    async def _obey(self, instruction: dict[str, Any]) -> None:
        match instruction["do"]:
            case contract.DO_RUN:
                assert instruction["secret"]
                await self._begin(instruction["attempt"], instruction["index"], instruction["workers"])
            case contract.DO_HOLD:
                await self._stop_ranks()
            case contract.DO_CHECK:
                await self._stop_ranks()
                self.found = self.found or self.world.training(self.job).completed
                self.checked = instruction["attempt"]
                self.speak()
            case contract.DO_EXIT:
                await self._stop_ranks()
                if self.alive:
                    self.die()
                    self.world.finished(self, instruction["exit_code"], instruction.get("reason", ""))

    async def _begin(self, attempt: int, index: int, workers: int) -> None:
        """As `Agent._run_attempt`."""
        if attempt < self.attempt or (attempt == self.attempt and not self.course.unused):
            return
        await self._stop_ranks()
        if not self.alive or self.draining:
            return
        self.attempt, self.index, self.ranks, self.progress, self.course = attempt, index, [], None, Course()
        self.begin, self.effort = {"told": self._wall(), "stopped": 0}, None
        self.lost_peers.clear()
        self.group = self.world.group(self, attempt, workers)
        self.speak()
        self.carry_out(self.course.begun(attempt <= self.world.notes.get(self.pod_uid, 0)))

    def carry_out(self, outputs: Iterable[course.Output]) -> None:
        """What the course asks for."""
        for output in outputs:
            assert self.group is not None
            if isinstance(output, course.Ask):
                self.group.come(self, self.index)
            elif isinstance(output, course.Start):
                self.world.spawn(self.group.start(self))
            elif isinstance(output, course.EndUnstarted):
                self.ranks = [self._rank(local) for local in range(self.processes)]
                self._end_running(output.kind)
            elif isinstance(output, course.EndRanks):
                self._end_running(output.kind)
        self.speak()

    async def _stop_ranks(self) -> None:
        self.course.stopped()
        if not self.quiet:
            await asyncio.sleep(STOP_S)
            self._end_running(contract.END_STOPPED)

    def _end_running(self, kind: str) -> None:
        for rank in self.ranks:
            if rank["state"] != contract.RANK_ENDED:
                rank.update(state=contract.RANK_ENDED, kind=kind, signal=9, ended_at=self._wall())

    def _rank(self, local: int) -> dict[str, Any]:
        rank = self.index * self.processes + local
        return {"rank": rank, "local_rank": local, "pid": 100 * self.attempt + rank, "state": contract.RANK_RUNNING}

    def start_ranks(self, index: int) -> None:
        self.ranks = [self._rank(local) for local in range(self.processes)]
        self.speak()

    def began(self, position: int) -> None:
        """Rank 0 steps, and saves at every other report; each save holds the ranks up for a moment."""
        if self.begin is None:
            return
        since = round((self._wall() - self.begin["told"]) * 1000)
        self.begin.setdefault("first_step", since)
        effort = self.effort or {"saved": None, "checkpoint": 0, "stalled": 0}
        saves = {"saved": since, "checkpoint": effort["checkpoint"] + 20} if position % 2 else {}
        self.effort = {**effort, **saves}

    def end_rank(self, local: int, kind: str, *, exit_code: int, error: dict[str, Any] | None = None) -> None:
        self.ranks[local] = {
            **self.ranks[local],
            "state": contract.RANK_ENDED,
            "kind": kind,
            "exit_code": exit_code,
            "ended_at": self._wall(),
            "error": error,
        }
        self.speak()

    def drain(self) -> None:
        """SIGTERM."""
        if not self.draining:
            self.draining = True
            self.speak()
            self.world.spawn(self._drained())

    async def _drained(self) -> None:
        await self._stop_ranks()
        self.speak()
        await asyncio.sleep(STOP_S)
        if not self.alive:
            return
        self.die()
        code = contract.EXIT_OK if self.completed else contract.EXIT_REMOVED
        if self._told.get("do") == contract.DO_EXIT:
            code = self._told["exit_code"]
        self.world.finished(self, code, "its pod was told to end (SIGTERM)")

    def die(self) -> None:
        """The process is gone."""
        self.alive = False
        self.gone.set()
        if self.world.agents.get(self.pod_uid) is self:
            del self.world.agents[self.pod_uid]


def running_status(restarts: int = 0) -> Manifest:
    """A pod whose trainer runs, for the how manieth time."""
    trainer = {"name": contract.TRAINER_CONTAINER, "ready": True, "restartCount": restarts, "state": {"running": {}}}
    return {
        "phase": "Running",
        "conditions": [{"type": type_, "status": "True"} for type_ in ("PodScheduled", "ContainersReady", "Ready")],
        "containerStatuses": [trainer],
    }


def scheduled_status(since: str) -> Manifest:
    """A pod that got its node."""
    return {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": since}]}


def unschedulable_status(since: str, capacity: int) -> Manifest:
    """A pod for which there is no room."""
    words = f"0/{capacity} nodes are available: {capacity} Too many pods."
    return {
        "phase": "Pending",
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": words,
                "lastTransitionTime": since,
            }
        ],
    }


def ended_status(exit_code: int, finished_at: str, reason: str | None = None, message: str | None = None) -> Manifest:
    """A pod whose trainer has ended."""
    ended = {
        "exitCode": exit_code,
        "reason": reason or ("Completed" if exit_code == 0 else "Error"),
        "finishedAt": finished_at,
    }
    if message is not None:
        ended["message"] = message
    return {
        "phase": "Succeeded" if exit_code == 0 else "Failed",
        "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}],
        "containerStatuses": [{"name": contract.TRAINER_CONTAINER, "state": {"terminated": ended}}],
    }


def _identity(pod: Manifest) -> tuple[str, str, str]:
    metadata = pod["metadata"]
    return metadata["namespace"], metadata["name"], metadata["uid"]
