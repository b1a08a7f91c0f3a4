"""Nodes and agents for the operator's measurements, in one process: it binds pods, says that they run, and speaks for
each of them with the coordinator, over TLS and with the pod's own token, as an agent does. There are no ranks.

Started by `benchmarks/scale.py`: `python -m benchmarks.fleet KUBECONFIG NAMESPACE PORT CA PID`, the last being the
operator's. A word a line on standard input: `report S` has rank 0 of every job report each S seconds from then on,
`break N` ends one rank each of N jobs; a JSON object a line on standard output answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import aiohttp

from support.kube_world import PODS, Watch, set_status
from trainjob.agent.config import Endpoint
from trainjob.agent.control.http_post import PostConnection, PostError, trust
from trainjob_api import contract
from trainjob_operator.cluster import ClusterError, Conflict, Manifest
from trainjob_operator.k8s.kubeapi import Api
from trainjob_operator.memory import ChangeType, ObjectChange

NODE = "node-1"
AT_ONCE = 16
"""Pods that come up side by side."""
RETRY_S = 1.0
PACE_SLACK_S = 0.1
"""Reports come by the clock of the training: one that comes so much before its time is told of at once."""


class Agent:
    """Of one pod: says all it knows, believes what it is told."""

    def __init__(self, fleet: Fleet, pod: Manifest, token: str) -> None:
        self._fleet = fleet
        self._token = token
        env = {entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][0]["env"]}
        self.job = env[contract.ENV_JOB]
        self._said: dict[str, Any] = {
            "namespace": pod["metadata"]["namespace"],
            "job": self.job,
            "job_uid": env[contract.ENV_JOB_UID],
            "slot": int(env[contract.ENV_SLOT]),
            "pod": pod["metadata"]["name"],
            "pod_uid": pod["metadata"]["uid"],
            "boot": 1,
            "address": f"10.0.0.1:{7000 + int(env[contract.ENV_SLOT]) % 1000}",
            "uploads": 0,
        }
        self._word: dict[str, Any] = {}
        self._ranks: list[dict[str, Any]] = []
        self._seq = self._position = 0
        self._told_at, self._pace_s = 0.0, 1.0
        self._urgent = asyncio.Event()
        self._connections: list[PostConnection] = []
        self._left: set[asyncio.Future[None]] = set()
        self.broke_at: float | None = None

    @property
    def attempt(self) -> int:
        return int(self._word.get("attempt", 0)) if self._word.get("do") == contract.DO_RUN else 0

    async def run(self) -> None:
        """Until it is told to exit."""
        reporting = asyncio.ensure_future(self._report())
        while self._word.get("do") != contract.DO_EXIT:
            self._urgent.clear()
            request = asyncio.ensure_future(self._sync())
            news = asyncio.ensure_future(self._urgent.wait())
            await asyncio.wait({request, news}, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
            if not request.done():  # superseded: its answer comes at once
                self._left.add(request)
                request.add_done_callback(self._left.discard)
        reporting.cancel()

    async def _report(self) -> None:
        """Rank 0's agent has new progress all the time."""
        await self._fleet.reporting.wait()
        await asyncio.sleep(random.uniform(0.0, self._fleet.report_s))
        while True:
            await asyncio.sleep(self._fleet.report_s)
            if self.attempt and self._word.get("index") == 0 and self.broke_at is None:
                self._position += 1
                self._fleet.reports += 1
                if time.monotonic() >= self._told_at + self._pace_s - PACE_SLACK_S:
                    self._fleet.told += 1
                    self._urgent.set()

    async def _sync(self) -> None:
        try:
            connection = next((c for c in self._connections if c.usable), None)
            if connection is None:
                connection = PostConnection(self._fleet.endpoint, self._fleet.trust)
                await connection.open()
                self._connections = [c for c in self._connections if not c.closed] + [connection]
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
            answer = await connection.post("/v1/sync", headers, json.dumps(self._state()).encode())
            if answer.status == 200:
                reply = json.loads(answer.body)
                self._pace_s = reply["pace_s"]
                self._obey(reply["instruction"])
                return
            self._fleet.refused += 1
        except (TimeoutError, OSError, PostError, ValueError):
            self._fleet.failed += 1
        await asyncio.sleep(RETRY_S)

    def _state(self) -> dict[str, Any]:
        self._seq += 1
        self._told_at = time.monotonic()
        now = time.time()
        progress = {"position": self._position, "step": self._position, "metrics": {"loss": 0.5}, "time": now}
        leads = self.attempt and self._word.get("index") == 0 and self._position
        return {
            **self._said,
            "seq": self._seq,
            "clock": now,
            "acknowledged": self._word or None,
            "attempt": max((int(rank["attempt"]) for rank in self._ranks), default=0),
            "quiet": all(rank["state"] == contract.RANK_ENDED for rank in self._ranks),
            "joined": bool(self._ranks),
            "ranks": [{k: v for k, v in rank.items() if k != "attempt"} for rank in self._ranks],
            "lost_peers": [],
            "draining": False,
            "completed": False,
            "run": 1 if self._ranks else None,
            "progress": progress if leads else None,
        }

    def _obey(self, word: dict[str, Any]) -> None:
        if word == self._word:
            return
        before, self._word = self.attempt, word
        if word["do"] == contract.DO_RUN and word["attempt"] > before:
            self._ranks = [
                {
                    "rank": word["index"],
                    "local_rank": 0,
                    "pid": 1,
                    "state": contract.RANK_RUNNING,
                    "attempt": word["attempt"],
                }
            ]
            self._fleet.begun(self)
        elif word["do"] == contract.DO_HOLD:
            self._end(contract.END_STOPPED)
        self._urgent.set()

    def _end(self, kind: str) -> None:
        self._ranks = [
            rank
            if rank["state"] == contract.RANK_ENDED
            else {**rank, "state": contract.RANK_ENDED, "kind": kind, "exit_code": 1, "ended_at": time.time()}
            for rank in self._ranks
        ]

    def break_rank(self) -> None:
        """Its rank ends with exit code 1: said at once."""
        self.broke_at = time.monotonic()
        self._end(contract.END_EXIT)
        self._urgent.set()


class Fleet:
    """All pods of one namespace."""

    def __init__(self, api: Api, namespace: str, endpoint: Endpoint, ca: str, operator_pid: int) -> None:
        self.endpoint = endpoint
        self.trust = trust(endpoint, ca)
        self.report_s = 0.0
        self.reporting = asyncio.Event()
        self.reports = self.told = 0
        """Of the training, and those of which the coordinator was told."""
        self.refused = self.failed = self.watches_ended = 0
        self._api = api
        self._namespace = namespace
        self._room = asyncio.Semaphore(AT_ONCE)
        self._agents: dict[str, Agent] = {}
        self._seen: set[str] = set()
        """UIDs of pods that are brought up, or were."""
        self._tasks: set[asyncio.Future[None]] = set()
        self._fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._operator_pid = operator_pid
        self._last_told = self._last_sync = 0.0
        self._cpu_at_last_told = self._cpu_at_last_sync = 0.0
        self._runs = 0
        self._lags: list[float] = []
        self._broken: set[str] = set()
        """Jobs of which a rank was ended: the second failure of a job soon after the first waits by its rules."""

    async def run(self) -> None:
        """Until standard input ends. Raises what an agent, a node or the watch failed of."""
        told = asyncio.ensure_future(asyncio.to_thread(self._listen, asyncio.get_running_loop()))
        self._spawn(self._follow())
        await asyncio.wait({told, self._fault}, return_when=asyncio.FIRST_COMPLETED)
        if self._fault.done():
            self._fault.result()

    def begun(self, agent: Agent) -> None:
        """It was told to run an attempt."""
        self._runs += 1
        self._last_told, self._cpu_at_last_told = time.monotonic(), cpu_s(self._operator_pid)
        if agent.broke_at is not None:
            self._lags.append(time.monotonic() - agent.broke_at)
            agent.broke_at = None

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        for line in sys.stdin:
            words = line.split()
            if words[0] == "report":
                self.report_s = float(words[1])
                loop.call_soon_threadsafe(self.reporting.set)
            elif words[0] == "break":
                asyncio.run_coroutine_threadsafe(self._break(int(words[1])), loop).result()
            answer = {
                "agents": len(self._agents),
                "runs": self._runs,
                "reports": self.reports,
                "told": self.told,
                "refused": self.refused,
                "failed": self.failed,
                "watches_ended": self.watches_ended,
                "lags": self._lags,
                "to_run_s": (self._last_told - self._last_sync) if self._runs else None,
                "to_run_cpu_s": (self._cpu_at_last_told - self._cpu_at_last_sync) if self._runs else None,
            }
            print(json.dumps(answer), flush=True)

    async def _break(self, count: int) -> None:
        """One rank each of so many jobs that have lost none yet, some of them each second."""
        self._lags = []
        whole = (agent for agent in self._agents.values() if agent.attempt and agent.job not in self._broken)
        by_job = {agent.job: agent for agent in whole}
        for agent in random.sample(list(by_job.values()), min(count, len(by_job))):
            self._broken.add(agent.job)
            agent.break_rank()
            await asyncio.sleep(0.2)
        for _ in range(300):
            if len(self._lags) >= min(count, len(by_job)):
                return
            await asyncio.sleep(0.1)

    async def _follow(self) -> None:
        """A watch that ends is opened again: the API server ends those that read too slowly."""
        while True:
            try:
                async for change in Watch(self._api, self._namespace).changes():
                    self._take(change)
            except* (AssertionError, aiohttp.ClientError, ClusterError) as ended:
                self.watches_ended += 1
                print(f"the watch is opened again: {ended.exceptions}", file=sys.stderr, flush=True)
            await asyncio.sleep(RETRY_S)

    def _take(self, change: ObjectChange) -> None:
        uid = change.object["metadata"]["uid"]
        if change.kind != "Pod":
            return
        if change.type is ChangeType.DELETED:
            self._agents.pop(uid, None)
        elif uid not in self._seen and "deletionTimestamp" not in change.object["metadata"]:
            self._seen.add(uid)
            self._spawn(self._bring_up(change.object))

    async def _bring_up(self, pod: Manifest) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        async with self._room:
            token = await self._started(name, uid)
        if token is None:
            await asyncio.sleep(RETRY_S)
            self._spawn(self._bring_up(pod))
            return
        agent = self._agents[uid] = Agent(self, pod, token)
        self._last_sync, self._cpu_at_last_sync = time.monotonic(), cpu_s(self._operator_pid)
        self._spawn(agent.run())

    async def _started(self, name: str, uid: str) -> str | None:
        """The pod has a node and runs; its token. None: the API server did not do all of it."""
        try:
            path = f"/api/v1/namespaces/{self._namespace}/serviceaccounts/default/token"
            answer = await self._api.create(path, _token_request(name, uid))
            with contextlib.suppress(Conflict):  # it has one
                await self._api.create(f"{PODS.format(self._namespace)}/{name}/binding", _binding(name))
            ready = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "ContainersReady", "Ready")]
            running = [{"name": "trainer", "ready": True, "restartCount": 0, "state": {"running": {}}}]
            status = {"phase": "Running", "conditions": ready, "containerStatuses": running}
            await set_status(self._api, self._namespace, name, status)
            return str(answer["status"]["token"])
        except ClusterError as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            return None

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._fault.done():
            self._fault.set_exception(error)


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _token_request(name: str, uid: str) -> Manifest:
    pod = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
    spec = {"audiences": [contract.TOKEN_AUDIENCE], "expirationSeconds": 7200, "boundObjectRef": pod}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}


def _binding(name: str) -> Manifest:
    target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}


async def _main(kubeconfig: str, namespace: str, port: int, ca: str, operator_pid: int) -> None:
    api = await Api.connect(kubeconfig=kubeconfig)
    endpoint = Endpoint(True, "localhost", port, "")
    try:
        await Fleet(api, namespace, endpoint, Path(ca).read_text(), operator_pid).run()
    except Exception:
        # The thread that reads standard input would keep the process for ever, and nobody would learn of this.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    finally:
        await api.close()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5])))
