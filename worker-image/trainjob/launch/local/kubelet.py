"""The local backend's kubelet: pods of the in-process cluster become agent processes, and their state becomes pod
status.

`local.py` runs it beside the reconciler; it decides nothing about the job. Each pod is one task: start the trainer
container's command in a session of its own, mirror its end, honour a deletion with its grace period, and leave no
process behind: what an agent could not clean up (it was killed itself) is found by session and pod UID.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from trainjob.launch.errors import LaunchError
from trainjob.launch.local import environment, leftovers
from trainjob.launch.local.gpus import VISIBLE, GpuPool
from trainjob.launch.local.pod import ENV_LOCK, ENV_SCRATCH, ENV_SCRATCH_FD
from trainjob.launch.local.process import Child, Kept, Launch, Process, start
from trainjob.launch.local.scratch import Scratch, remove_sockets
from trainjob.launch.outcome.log_choice import AGENT
from trainjob_api import contract
from trainjob_operator.cluster import ClusterError
from trainjob_operator.memory import ChangeType, MemoryCluster

Pod = dict[str, Any]
NODE = os.uname().nodename
_DRAIN_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the launcher lends to its pods."""

    scratch: Scratch
    base_environment: Mapping[str, str]
    working_dir: str
    parent_fd: int
    """Read end of the pipe that tells agents of the launcher's death."""
    token_file: str
    gpus: GpuPool
    lock: tuple[str, int] | None = None
    """Path and descriptor of the job name's lock."""
    kept: tuple[Kept, ...] = ()
    """Agents are started of the first that has one."""

    @property
    def inherited(self) -> tuple[int, ...]:
        """Descriptors that agents get."""
        return (self.parent_fd, self.scratch.descriptor, *((self.lock[1],) if self.lock else ()))


@dataclass(eq=False)
class _Run:
    """One pod on this machine."""

    pod: Pod
    deletion: asyncio.Event = field(default_factory=asyncio.Event)
    grace_s: float = 30.0
    process: Process | None = None
    task: asyncio.Task[None] | None = None
    taking: float | None = None
    """Since when, by the loop's clock, it waits for a process that is warm."""

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.pod["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])


class LocalKubelet:
    """Runs the pods of one cluster on this machine until `stop()`."""

    def __init__(
        self,
        cluster: MemoryCluster,
        machine: Machine,
        on_line: Callable[[str, str], None],
        on_event: Callable[[Pod], None],
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        """`on_line(pod name, line)` gets the agents' output, `on_event` the cluster's events. `is_full`: whether there
        is no room for more output now.
        """
        self._cluster = cluster
        self._machine = machine
        self._on_line = on_line
        self._on_event = on_event
        self._is_full = is_full
        self._runs: dict[str, _Run] = {}

    async def run(self) -> None:
        """Follow the cluster's pods until cancelled."""
        with contextlib.suppress(ClusterError):
            self._cluster.add_node(NODE)  # it is there and Ready as long as this process is
        async for change in self._cluster.watch_objects():
            if change.kind == "Pod":
                self._observe(change.object)
            elif change.kind == "Event" and change.type is not ChangeType.DELETED:
                self._on_event(change.object)

    def _observe(self, pod: Pod) -> None:
        metadata = pod["metadata"]
        run = self._runs.get(metadata["uid"])
        if metadata.get("deletionTimestamp"):
            if run is not None:
                run.grace_s = min(run.grace_s, float(metadata.get("deletionGracePeriodSeconds", 30)))
                run.deletion.set()
        elif run is None:
            run = self._runs[metadata["uid"]] = _Run(pod)
            run.task = asyncio.create_task(self._live(run), name=f"pod {run.name}")

    @property
    def alive(self) -> int:
        """Agents that run."""
        return sum(1 for run in self._runs.values() if run.process is not None and run.process.alive)

    @property
    def taking_s(self) -> float:
        """For how long the first agent of those that wait for a warm process has done so."""
        since = [run.taking for run in self._runs.values() if run.taking is not None]
        return asyncio.get_running_loop().time() - min(since) if since else 0.0

    async def ended(self, timeout_s: float) -> bool:
        """Wait until no agent runs; False after `timeout_s`."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self.alive:
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    async def stop(self) -> None:
        """Kill what still runs, without grace, and wait for the ends."""
        for run in self._runs.values():
            run.grace_s = 0
            run.deletion.set()
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=10)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _live(self, run: _Run) -> None:
        """A pod's life: one start, one end, and its removal when it was deleted."""
        try:
            await self._start(run)
        except Exception as error:  # whatever it is, a pod without an end would be waited for for ever
            foreseen = isinstance(error, OSError | LaunchError)
            self._machine.gpus.give_back(run.name)
            said = str(error) if foreseen else f"{type(error).__name__}: {error}"
            self._set(run, _terminated(128, None, "StartError", said))
            await run.deletion.wait()
        else:
            await self._attend(run)
        if run.deletion.is_set():
            with contextlib.suppress(ClusterError):  # it was force-deleted
                self._cluster.finalize_pod_deletion(run.namespace, run.name, run.uid)

    async def _start(self, run: _Run) -> None:
        with contextlib.suppress(ClusterError):
            self._cluster.bind_pod(run.namespace, run.name, NODE)
        container = _trainer(run.pod)
        command = [str(word) for word in [*(container.get("command") or ()), *(container.get("args") or ())]]
        variables = self._environment(run, container)
        launch = Launch(
            words=[environment.expand(word, variables) for word in command],
            environment=variables,
            working_dir=container.get("workingDir") or self._machine.working_dir,
            inherited=self._machine.inherited,
        )
        reading, writing = os.pipe()
        try:
            child = await self._child(run, launch, writing)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        try:
            run.process = Process(child, reading, functools.partial(self._on_line, run.name), self._is_full)
        except BaseException:  # at a limit of processes there is no thread to wait for its end
            child.send_signal(signal.SIGKILL)
            os.close(reading)
            raise
        self._set(run, _running())

    async def _child(self, run: _Run, launch: Launch, output: int) -> Child:
        """Of a process that is warm, if there is one for it. Raises LaunchError: nobody wants it any more."""
        for kept in self._machine.kept:
            taken = await self._taken(run, kept, launch, output)
            if taken is not None:
                return taken
        return start(launch, output)

    async def _taken(self, run: _Run, kept: Kept, launch: Launch, output: int) -> Child | None:
        taking = asyncio.create_task(asyncio.to_thread(kept.take, launch, os.dup(output)))
        deletion = asyncio.create_task(run.deletion.wait())
        run.taking = asyncio.get_running_loop().time()
        try:
            await asyncio.wait({taking, deletion}, return_when=asyncio.FIRST_COMPLETED)
            if not taking.done():
                raise LaunchError("it was stopped before its start")
            return taking.result()
        finally:
            run.taking = None
            deletion.cancel()
            if not taking.done():
                taking.add_done_callback(_unwanted)
                kept.give_up(launch)

    def _environment(self, run: _Run, container: Mapping[str, Any]) -> dict[str, str]:
        variables = environment.container_env(run.pod, container, self._machine.base_environment)
        limits = (container.get("resources") or {}).get("limits") or {}
        count = int(limits.get("nvidia.com/gpu") or limits.get("amd.com/gpu") or 0)
        variables[VISIBLE] = ",".join(self._machine.gpus.take(run.name, count))
        if not count:
            variables[contract.ENV_MACHINE_RANKS] = "1"
        variables.update(
            {
                contract.ENV_WORK_DIR: self._machine.scratch.pod_folder(run.uid),
                contract.ENV_SHARED_TMP: self._machine.scratch.tmp,
                contract.ENV_TOKEN_FILE: self._machine.token_file,
                contract.ENV_PARENT_FD: str(self._machine.parent_fd),
                contract.ENV_POD_ADDRESS: "127.0.0.1",
                contract.ENV_MASTER_PORT_ANY: "1",
                ENV_SCRATCH: self._machine.scratch.path,
                ENV_SCRATCH_FD: str(self._machine.scratch.descriptor),
            }
        )
        if self._machine.lock:
            variables[ENV_LOCK] = self._machine.lock[0]
        return variables

    async def _attend(self, run: _Run) -> None:
        """Wait for the end or the deletion, then make sure that nothing of the pod is left."""
        process = run.process
        assert process is not None
        deleted = asyncio.create_task(run.deletion.wait(), name=f"deletion of {run.name}")
        try:
            waited: set[asyncio.Future[Any]] = {process.ended, deleted}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if process.alive:
                await self._terminate(run, process)
            code = await asyncio.shield(process.ended)
            await asyncio.to_thread(leftovers.kill, process.pid, run.uid)
            remove_sockets(run.uid)
            await process.close(_DRAIN_S)
            if process.waits:  # the agent had no way to say it
                self._on_line(run.name, f"{AGENT}lines may be missing here: nobody took them by the end of {run.name}")
            self._machine.gpus.give_back(run.name)
            self._set(run, _ended(code))
            await deleted
        finally:
            deleted.cancel()
            if process.alive:
                leftovers.kill(process.pid, run.uid)

    async def _terminate(self, run: _Run, process: Process) -> None:
        """SIGTERM to the agent, and after the grace period SIGKILL to everything of the pod."""
        if run.grace_s > 0:
            process.send(signal.SIGTERM)
            await asyncio.wait({process.ended}, timeout=run.grace_s)
        if process.alive:
            process.send(signal.SIGKILL)
            await asyncio.to_thread(leftovers.kill, process.pid, run.uid)

    def _set(self, run: _Run, status: Pod) -> None:
        with contextlib.suppress(ClusterError):  # it was force-deleted
            self._cluster.set_pod_status(run.namespace, run.name, status)


def _unwanted(taking: asyncio.Task[Child | None]) -> None:
    child = None if taking.cancelled() or taking.exception() is not None else taking.result()
    if child is not None:
        child.send_signal(signal.SIGKILL)


def _trainer(pod: Pod) -> Mapping[str, Any]:
    containers: list[Mapping[str, Any]] = pod["spec"]["containers"]
    return next((c for c in containers if c.get("name") == contract.TRAINER_CONTAINER), containers[0])


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _running() -> Pod:
    return _status("Running", {"running": {"startedAt": _now()}}, ready=True)


def _ended(code: int) -> Pod:
    number = -code if code < 0 else None
    return _terminated(128 + number if number else code, number, "Completed" if code == 0 else "Error", "")


def _terminated(code: int, number: int | None, reason: str, message: str) -> Pod:
    end: Pod = {"exitCode": code, "reason": reason, "message": message, "finishedAt": _now()}
    if number:
        end["signal"] = number
    return _status("Succeeded" if code == 0 else "Failed", {"terminated": end}, ready=False)


def _status(phase: str, state: Pod, *, ready: bool) -> Pod:
    flag = "True" if ready else "False"
    return {
        "phase": phase,
        "podIP": "127.0.0.1",
        "hostIP": "127.0.0.1",
        "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": flag}],
        "containerStatuses": [{"name": contract.TRAINER_CONTAINER, "ready": ready, "restartCount": 0, "state": state}],
    }
