"""A world for the operator to act on: nodes that start pods, agents that follow instructions, ranks that do as they are
told.

The agents in the pods are `puppet_agent`'s, and where there is none `puppet_plain`'s. Everything runs in virtual time;
randomness comes from the seeded `random.Random` of the world.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

from support.puppet_agent import LOST_S, RESTART_S, Post, PuppetAgent
from support.puppet_group import Group
from support.puppet_plain import PlainScript
from support.puppet_storage import Disk, Storage
from support.virtual_time import VirtualClock
from trainjob.agent.control import farewell
from trainjob.checkpoint.records.manifest import ReleaseNote
from trainjob_api import contract
from trainjob_operator.clock import wait_until
from trainjob_operator.cluster import Conflict, Manifest, NotFound
from trainjob_operator.core.pods.objects import DEAD_NODE_SECONDS
from trainjob_operator.memory import ChangeType, MemoryCluster, ObjectChange

TOKEN = "puppet-token"
KUBELET_RETRY_S = 1.0


@dataclass
class Pace:
    """How quick the world is, seconds from..to."""

    schedule: tuple[float, float] = (0.1, 0.5)
    start: tuple[float, float] = (0.2, 1.0)
    warm: tuple[float, float] = (0.0, 3.0)
    """Until an agent has what ranks are forks of."""
    report: float = 1.0
    """Between two reports of all ranks."""
    notice: float = 0.5
    """From a rank's end to its peers' communication errors; 0: they hang until they are killed."""


@dataclass
class Training:
    """How long a job trains, and what its storage holds: survives all pods."""

    storage: Storage
    length: int = 5
    every: int = 1
    """Reports from one checkpoint to the next."""
    mode: str = contract.UPLOAD_ASYNC
    position: int = 0
    """Reports that the newest attempt was answered, those of the checkpoint that it resumed included."""
    steps: list[int] = field(default_factory=list)
    """Each step that rank 0 made, by its number: one that was lost is made again."""
    acknowledged: dict[str, ReleaseNote] = field(default_factory=dict)
    """Checkpoints that ranks were told are saved."""
    dropped: set[str] = field(default_factory=set)
    """Those that rank 0's agent gave up."""
    word_lost: bool = False
    """A pod that had ended was removed before status had it: nobody may know any more how it ended."""
    plain_done_at: float | None = None
    """When the last script of a group without agents ended with success."""

    @property
    def completed(self) -> bool:
        """The run's end record is written, or all scripts of a group without agents ended well."""
        return self.storage.ended is not None or self.plain_done_at is not None


class World:
    """Everything that is not the operator."""

    def __init__(self, cluster: MemoryCluster, post: Post, rng: random.Random, pace: Pace | None = None) -> None:
        self.cluster = cluster
        self.clock = VirtualClock()
        self.post = post
        self.rng = rng
        self.pace = pace or Pace()
        self.agents: dict[str, Any] = {}
        """By pod UID: living agents, and scripts that run without one."""
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
        self.leaving_nodes: set[str] = set()
        """Tainted: nothing new comes to them."""
        self.capacity: int | None = None
        """Pods that the nodes hold; None: any number."""
        self.are_apart: Callable[[int, int], bool] = lambda slot, leader: False
        """Whether one worker cannot connect to another."""
        self.disks: dict[str, Disk] = {}
        """By pod UID."""
        self.failure: BaseException | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    def training(self, job: str) -> Training:
        if job not in self.trainings:
            self.trainings[job] = Training(Storage(self.rng))
        return self.trainings[job]

    def disk(self, pod_uid: str) -> Disk:
        """Of that pod."""
        return self.disks.setdefault(pod_uid, Disk())

    def broken(self, error: BaseException) -> None:
        """A fault in what runs for real, or a promise that was not kept."""
        self.failure = self.failure or error

    def spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        """Run something of the world; its failure is the test's failure (`stop` raises it)."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        return task

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self.tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        if self.failure is not None:
            raise self.failure

    def warms(self, pod_uid: str, boot: int) -> float:
        """How long an agent takes for that; of a random source apart, which nothing else depends on."""
        return random.Random(f"warm {pod_uid} {boot}").uniform(*self.pace.warm)

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
                or self.pod(namespace, name)["status"]["phase"] != "Pending"  # its kubelet did not take it
            ):
                return
            self.cluster.set_pod_status(namespace, name, running_status())
        except NotFound:
            return
        self.start_agent(pod, boot=1)

    def some_node(self) -> str:
        """One that is not lost; nodes come up as they are needed."""
        node = self.rng.choice(
            [
                name
                for name in (f"node-{number}" for number in range(4))
                if name not in self.lost_nodes | self.leaving_nodes
            ]
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

    def start_agent(self, pod: Manifest, boot: int) -> Any:
        """What runs in the pod: an agent, or a script without one."""
        env = {entry["name"] for entry in pod["spec"]["containers"][0]["env"]}
        agent: Any = (PuppetAgent if contract.ENV_AGENT_SPEC in env else PlainScript)(self, pod, boot)
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
            agent.die(silently=True)
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
        await asyncio.sleep(DEAD_NODE_SECONDS)
        for pod in self.cluster.pods() if node in self.lost_nodes else []:
            if self._on_lost_node(pod) and "deletionTimestamp" not in pod["metadata"]:
                self._take_away(pod)

    def _take_away(self, pod: Manifest) -> None:
        """As the taint manager does it, once the node has been dead for longer than the pod tolerates."""
        namespace, name, _ = _identity(pod)
        self.evictions += 1
        target = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
        conditions = [*(pod["status"].get("conditions") or []), target]
        self.cluster.set_pod_status(namespace, name, {**pod["status"], "conditions": conditions})
        self.cluster.remove_pod(namespace, name)

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
            elif pod["status"]["phase"] in ("Running", "Unknown") and uid not in self.agents:
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

    def evict_pod(self, agent: PuppetAgent, grace_s: int | None = None) -> None:
        """Preemption: DisruptionTarget, then a graceful delete; with grace 0 both in one moment. Counted apart."""
        self.evictions += 1
        status = running_status()
        status["conditions"].append({"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"})
        try:
            self.cluster.set_pod_status(agent.namespace, agent.pod_name, status)
            self.cluster.remove_pod(agent.namespace, agent.pod_name, grace_s=grace_s)
        except NotFound:
            return

    def terminate(self, agent: Any) -> None:
        """SIGTERM, and nobody deletes the pod: somebody's kill, a node that shuts down."""
        if isinstance(agent, PlainScript):
            self.crash_container(agent, exit_code=143)
            return
        self.incidents += 1
        agent.drain()

    def announce_eviction(self, agent: Any, on: bool = True) -> None:
        """DisruptionTarget, and the pod stands; or it is taken back, as long as nobody has deleted the pod."""
        self.evictions += on
        disruption = {"type": "DisruptionTarget", "status": str(on), "reason": "EvictionByEvictionAPI"}
        with contextlib.suppress(NotFound):
            pod = self.cluster_pod(agent)
            stands = pod is not None and "deletionTimestamp" not in pod["metadata"]
            if pod is not None and (on or stands) and pod["status"].get("phase") == "Running":
                others = [entry for entry in pod["status"]["conditions"] if entry["type"] != "DisruptionTarget"]
                status = {**pod["status"], "conditions": [*others, disruption]}
                self.cluster.set_pod_status(agent.namespace, agent.pod_name, status)

    def node_of(self, agent: Any) -> str:
        """The node of its pod."""
        return str(self.pod(agent.namespace, agent.pod_name)["spec"]["nodeName"])

    def announce_node(self, node: str, on: bool = True) -> None:
        """An autoscaler or the cloud is about to take it away: it is tainted, and its pods stand; or it is not, after
        all.
        """
        self.evictions += on
        self.leaving_nodes = self.leaving_nodes | {node} if on else self.leaving_nodes - {node}
        with contextlib.suppress(NotFound):
            self.cluster.taint_node(node, *(["karpenter.sh/disrupted"] if on else []))

    def cluster_pod(self, agent: Any) -> Manifest | None:
        """Its pod, while it is there."""
        return next((pod for pod in self.cluster.pods() if pod["metadata"]["uid"] == agent.pod_uid), None)

    def restart_container(self, agent: PuppetAgent) -> None:
        """The container is started again in the same pod. The new agent knows nothing of the ranks but whether some
        were forked for the attempt that it is told to run.
        """
        if isinstance(agent, PlainScript):
            self.crash_container(agent)  # such pods are not started again
            return
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

    def script_ended(self, script: PlainScript, exit_code: int, message: str | None) -> None:
        """A script without agent ended by itself."""
        if self._is_deleting(script.namespace, script.pod_name):
            # What ends well after SIGTERM may have saved and left: no proof to anybody that training is over.
            script.training.word_lost = True
        self._mark_ended(script, exit_code, message)
        group = self.groups[script.job_uid, script.attempt]
        if len(group.members) == group.workers and all(one.succeeded for one in group.members.values()):
            training = script.training
            training.plain_done_at = training.plain_done_at or self.clock.monotonic()

    def _mark_ended(self, agent: Any, exit_code: int, message: str | None = None) -> None:
        if self.cluster_uid(agent.namespace, agent.pod_name) == agent.pod_uid:
            status = ended_status(exit_code, self.clock.now().isoformat(), message=message)
            before = self.pod(agent.namespace, agent.pod_name)["status"]["conditions"]
            # A kubelet takes nothing away of what others said of the pod.
            status["conditions"] += [entry for entry in before if entry["type"] == "DisruptionTarget"]
            self.cluster.set_pod_status(agent.namespace, agent.pod_name, status)

    # --- Peers among themselves ---------------------------------------------------------------------------------------

    def group(self, agent: Any, attempt: int, workers: int) -> Group:
        """The members of an attempt."""
        return self.groups.setdefault((agent.job_uid, attempt), Group(self, agent.job, agent.job_uid, attempt, workers))


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
