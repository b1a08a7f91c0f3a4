"""The local kubelet with real processes: status mirrors them, deletion ends them, nothing of a pod survives it."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.patience import HANG_S
from trainjob.launch.local import kubelet, leftovers, process
from trainjob.launch.local.gpus import GpuPool
from trainjob.launch.local.kubelet import LocalKubelet, Machine
from trainjob.launch.local.process import Launch
from trainjob.launch.local.scratch import Scratch
from trainjob_api import contract
from trainjob_operator.clock import SystemClock
from trainjob_operator.cluster import NotFound
from trainjob_operator.memory import MemoryCluster

NO_SESSION = -1


class World:
    """One cluster with its kubelet, and what the kubelet said."""

    def __init__(self, tmp_path: Path, gpus: list[str]) -> None:
        self.lines: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.cluster = MemoryCluster(SystemClock())
        self.scratch = Scratch()
        reader, self.writer = os.pipe()
        self.machine = Machine(
            scratch=self.scratch,
            base_environment={"PATH": os.environ["PATH"]},
            working_dir=str(tmp_path),
            parent_fd=reader,
            token_file="/token",
            gpus=GpuPool(gpus),
        )
        self.kubelet = LocalKubelet(
            self.cluster, self.machine, on_line=lambda _pod, line: self.lines.append(line), on_event=self.events.append
        )

    async def pod(
        self, name: str, *command: str, env: list[dict[str, Any]] | None = None, gpus: int = 0
    ) -> dict[str, Any]:
        uid = [{"name": contract.ENV_POD_UID, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}]
        container = {
            "name": "trainer",
            "command": list(command),
            "env": [*uid, *(env or [])],
            "resources": {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {},
        }
        return await self.cluster.create_pod(
            "default", {"metadata": {"name": name}, "spec": {"containers": [container]}}
        )

    def state(self, name: str) -> dict[str, Any]:
        pods = {pod["metadata"]["name"]: pod for pod in self.cluster.pods()}
        statuses = (pods.get(name, {}).get("status") or {}).get("containerStatuses") or [{}]
        return dict(statuses[0].get("state") or {})

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(HANG_S):
            while not condition():  # noqa: ASYNC110 - the condition is the outside world's
                await asyncio.sleep(0.01)

    async def end_of(self, name: str) -> dict[str, Any]:
        await self.until(lambda: "terminated" in self.state(name))
        return dict(self.state(name)["terminated"])


@asynccontextmanager
async def world(tmp_path: Path, gpus: list[str] | None = None) -> AsyncIterator[World]:
    found = World(tmp_path, gpus or [])
    task = asyncio.create_task(found.kubelet.run())
    try:
        yield found
    finally:
        await found.kubelet.stop()
        task.cancel()
        os.close(found.writer)
        os.close(found.machine.parent_fd)
        found.scratch.remove()


def run(story: Callable[[World], Any], tmp_path: Path, gpus: list[str] | None = None) -> None:
    async def main() -> None:
        async with world(tmp_path, gpus) as found:
            await story(found)

    asyncio.run(main())


@pytest.mark.slow
def test_a_pods_output_environment_and_end_are_seen(tmp_path: Path) -> None:
    async def story(w: World) -> None:
        await w.pod(
            "a",
            "sh",
            "-c",
            'echo "$(NAME) $TRAINJOB_POD_ADDRESS"; echo no newline | tr -d "\\n" >&2; exit 3',
            env=[{"name": "NAME", "value": "x y"}],
        )
        end = await w.end_of("a")
        assert (end["exitCode"], end["reason"]) == (3, "Error")
        assert w.lines == ["x y 127.0.0.1", "no newline"]
        assert w.cluster.pods()[0]["status"]["phase"] == "Failed"
        await w.pod("b", "sh", "-c", "kill -SEGV $$$$")
        end = await w.end_of("b")
        assert (end["exitCode"], end["signal"]) == (139, 11)

    run(story, tmp_path)


def test_output_waits_in_its_pipe_while_there_is_no_room_for_it_and_comes_at_the_latest_with_the_end(
    tmp_path: Path,
) -> None:
    async def story(w: World) -> None:
        full, asked = True, 0

        def is_full() -> bool:
            nonlocal asked
            asked += 1
            return full

        w.kubelet._is_full = is_full
        a = await w.pod("a", "sh", "-c", "echo one; exec sleep 100")
        await w.until(lambda: asked == 3)
        assert w.lines == []
        full = False
        await w.until(lambda: w.lines == ["one"])
        await w.cluster.delete_pod("default", "a", a["metadata"]["uid"])
        await w.until(lambda: not w.cluster.pods())
        assert w.lines == ["one"]
        full, asked = True, 0
        b = await w.pod("b", "sh", "-c", "echo two; exec sleep 100")
        await w.until(lambda: asked == 3)
        await w.cluster.delete_pod("default", "b", b["metadata"]["uid"])
        await w.until(lambda: not w.cluster.pods())
        assert w.lines == ["one", "two", "agent | lines may be missing here: nobody took them by the end of b"]

    run(story, tmp_path)


def test_whatever_goes_wrong_at_a_start_is_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: Any, **__: Any) -> Any:
        raise TypeError("no such thing")

    async def story(w: World) -> None:
        monkeypatch.setattr(kubelet, "Launch", breaks)
        await w.pod("a", "true")
        end = await w.end_of("a")
        assert (end["reason"], end["message"]) == ("StartError", "TypeError: no such thing")

    run(story, tmp_path)


def test_what_cannot_be_watched_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at a limit of processes: there is a process, and no thread."""
    started: list[process.Child] = []
    plain, thread = process.start, threading.Thread.start

    def starts(*words: Any) -> process.Child:
        started.append(plain(*words))
        return started[-1]

    def refuses(self: threading.Thread) -> None:
        if self.name.startswith("end of"):
            raise RuntimeError("can't start new thread")
        thread(self)

    async def story(w: World) -> None:
        monkeypatch.setattr(kubelet, "start", starts)
        monkeypatch.setattr(threading.Thread, "start", refuses)
        before = len(os.listdir("/proc/self/fd"))
        await w.pod("a", "sleep", "600")
        end = await w.end_of("a")
        assert (end["reason"], end["message"]) == ("StartError", "RuntimeError: can't start new thread")
        assert await asyncio.to_thread(started[0].wait) == -signal.SIGKILL
        assert len(os.listdir("/proc/self/fd")) == before

    run(story, tmp_path)


@pytest.mark.slow
def test_a_command_that_is_not_there_fails_the_pod_with_a_reason(tmp_path: Path) -> None:
    async def story(w: World) -> None:
        pod = await w.pod("a", "/no/such/program")
        end = await w.end_of("a")
        assert end["reason"] == "StartError"
        assert "/no/such/program" in end["message"]
        await w.cluster.delete_pod("default", "a", pod["metadata"]["uid"])
        await w.until(lambda: not w.cluster.pods())

    run(story, tmp_path)


@pytest.mark.slow
def test_deletion_lets_the_process_end_by_itself(tmp_path: Path) -> None:
    async def story(w: World) -> None:
        pod = await w.pod("a", "sh", "-c", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done")
        await w.until(lambda: "up" in w.lines)
        await w.cluster.delete_pod("default", "a", pod["metadata"]["uid"])
        await w.until(lambda: not w.cluster.pods())
        assert w.lines[-1] == "bye"

    run(story, tmp_path)


@pytest.mark.slow
def test_a_process_that_ignores_the_deletion_is_killed_after_its_grace_period(tmp_path: Path) -> None:
    async def story(w: World) -> None:
        pod = await w.pod("a", "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done")
        await w.until(lambda: "up" in w.lines)
        await w.cluster.delete_pod("default", "a", pod["metadata"]["uid"], grace_s=1)
        await w.until(lambda: not w.cluster.pods())
        assert leftovers.find(NO_SESSION, pod["metadata"]["uid"]) == set()

    run(story, tmp_path)


@pytest.mark.slow
def test_nothing_of_a_killed_agent_survives(tmp_path: Path) -> None:
    spawn = (
        "import subprocess, sys, time\n"
        "subprocess.Popen(['sleep', '60'])\n"
        "subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "print('up', flush=True); time.sleep(60)"
    )

    async def story(w: World) -> None:
        pod = await w.pod("a", sys.executable, "-c", spawn)
        await w.until(lambda: "up" in w.lines)
        uid = pod["metadata"]["uid"]
        alive = leftovers.find(NO_SESSION, uid)
        assert len(alive) == 3
        agent = next(
            pid for pid in alive if os.getpgid(pid) == pid and b"python" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        os.kill(agent, signal.SIGKILL)
        end = await w.end_of("a")
        assert (end["exitCode"], end["signal"]) == (137, 9)
        assert leftovers.find(agent, uid) == set()

    run(story, tmp_path)


@pytest.mark.slow
def test_gpus_are_divided_and_come_back(tmp_path: Path) -> None:
    async def story(w: World) -> None:
        show = ("sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES|"')
        for name, count in (("a", 2), ("b", 1), ("c", 0), ("d", 3)):
            await w.pod(name, *show, gpus=count)
            await w.end_of(name)
        assert w.lines == ["4,5|", "4|", "|", "4,5,7|"]
        await w.pod("e", *show, gpus=4)
        assert "e needs 4 GPUs and 3 of 3 are free" in (await w.end_of("e"))["message"]

    run(story, tmp_path, ["4", "5", "7"])


@pytest.mark.slow
def test_stop_ends_everything_at_once(tmp_path: Path) -> None:
    async def story(w: World) -> None:
        pods = [
            await w.pod(f"p{n}", "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done") for n in range(3)
        ]
        await w.until(lambda: w.lines.count("up") == 3)
        assert w.kubelet.alive == 3
        await w.kubelet.stop()
        assert w.kubelet.alive == 0
        assert all(leftovers.find(NO_SESSION, pod["metadata"]["uid"]) == set() for pod in pods)

    run(story, tmp_path)


def test_a_pod_that_was_removed_is_not_missed(tmp_path: Path) -> None:
    async def story(w: World) -> None:
        await w.pod("a", "true")
        w.cluster.remove_pod("default", "a", grace_s=0)
        with pytest.raises(NotFound):
            await w.cluster.get_pod("default", "a")
        await w.pod("b", "true")
        await w.end_of("b")

    run(story, tmp_path)


class _Silent:
    """A kept process that does not answer until it is given up."""

    def __init__(self) -> None:
        self.asked, self.over = threading.Event(), threading.Event()

    def take(self, launch: Launch, output: int) -> None:
        os.close(output)
        self.asked.set()
        self.over.wait(HANG_S)

    def give_up(self, launch: Launch) -> None:
        self.over.set()


def test_a_pod_that_is_deleted_does_not_wait_for_a_process_that_is_kept(tmp_path: Path) -> None:
    async def story(w: World) -> None:
        silent = _Silent()
        w.kubelet._machine = dataclasses.replace(w.machine, kept=(silent,))
        pod = await w.pod("a", "sleep", "600")
        await w.until(silent.asked.is_set)
        await w.cluster.delete_pod("default", "a", pod["metadata"]["uid"], 30)
        await w.until(lambda: not w.cluster.pods())
        assert silent.over.is_set()

    run(story, tmp_path)
