"""What a report costs the coordinator, what an agent that waits takes of its memory, and what strangers do. The
coordinator is a process of its own (`benchmarks/coordinator.py`), which alone is measured. Used by
`benchmarks/scale.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.fleet import cpu_s
from trainjob.agent.config import Endpoint
from trainjob.agent.control.http_post import PostConnection, trust
from trainjob_api import contract
from trainjob_operator.process.limits import raise_open_files

JOBS = 250
REPORTS = 2000
"""Of a round."""
AT_ONCE = 10
"""Reports that are under way side by side."""
ROUNDS = 5
STRANGERS = 1024
STRANGER_S = 60.0
ADDRESSES = ("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5")
"""Where the strangers come from."""
BODY = contract.SYNC_BODY_LIMIT
HEADERS = {"Content-Type": "application/json"}


@dataclass
class Stand:
    """The coordinator's process."""

    process: subprocess.Popen[str]
    endpoint: Endpoint
    ca: str
    agents: list[dict[str, Any]]

    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)

    def peak_mib(self) -> float:
        """The most memory that it has had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024


@contextmanager
def stand(jobs: int, *words: str) -> Iterator[Stand]:
    """A fresh one with so many jobs of four workers."""
    command = [sys.executable, *words, "-m", "benchmarks.coordinator", str(jobs)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            endpoint = Endpoint(True, "localhost", told["port"], "")
            yield Stand(process, endpoint, told["ca"], told["agents"])
        finally:
            process.communicate()


@dataclass
class Leader:
    """Rank 0's agent of one job, which has progress to tell of; it posts beside its open poll, as an agent does."""

    stand: Stand
    agent: dict[str, Any]
    context: Any
    word: dict[str, Any] = field(default_factory=dict)
    seq: int = 0
    connections: list[PostConnection] = field(default_factory=list)
    open: asyncio.Task[None] | None = None

    async def report(self) -> None:
        """Once: what was open is answered."""
        if not self.word:
            await self._post()  # it acknowledges nothing, so it is answered at once
        before, self.open = self.open, asyncio.ensure_future(self._post())
        if before is not None:
            await before

    async def _post(self) -> None:
        connection = next((one for one in self.connections if one.usable), None)
        if connection is None:
            connection = PostConnection(self.stand.endpoint, self.context)
            self.connections.append(connection)
            await connection.open()
        headers = {**HEADERS, "Authorization": f"Bearer {self.agent['token']}"}
        answer = await connection.post("/v1/sync", headers, self._body())
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {answer.body!r}")
        self.word = json.loads(answer.body)["instruction"]

    def _body(self) -> bytes:
        self.seq += 1
        now = time.time()
        metrics = {"loss": 1.0 / self.seq, "accuracy": 0.5, "learning_rate": 0.001}
        at = {"step": self.seq, "metrics": metrics, "time": now}
        report = {
            **self.agent["said"],
            "boot": 1,
            "seq": self.seq,
            "clock": now,
            "address": "10.0.0.1:7000",
            "acknowledged": self.word or None,
            "attempt": 1,
            "quiet": False,
            "joined": True,
            "ranks": [{"rank": rank, "local_rank": rank, "pid": 100 + rank, "state": "running"} for rank in range(4)],
            "begin": {"told": now, "joined": 200, "forked": 300, "group": 500, "first_step": 2500},
            "forks": {"ranks": 4, "why": None, "learned": ["torch", "numpy"]},
            "hang": None,
            "lost_peers": [],
            "unreached_s": 0.0,
            "boundary": None,
            "draining": False,
            "uploads": 0,
            "completed": False,
            "checked": None,
            "run": 1,
            "resumed_from": None,
            "progress": {"position": self.seq, "total_steps": 100_000, "epoch": 1, **at},
            "effort": {"saved": 1500, "checkpoint": 500, "stalled": 0},
            "latest": {"id": "1-1-7", "uri": "/storage/jobs/1-1-7", "bytes": 1 << 30, **at},
            "best": {"id": "1-1-7", "uri": "/storage/jobs/1-1-7", "bytes": 1 << 30, **at},
            "checkpoint_count": 3,
            "warning": None,
            "checkpoint_trouble": None,
        }
        return json.dumps(report, separators=(",", ":")).encode()


async def _spent_s(now: Stand, rounds: int = ROUNDS) -> list[float]:
    """Processor seconds of each round of reports, from agents whose connections are open."""
    context = trust(now.endpoint, now.ca)
    leaders = [Leader(now, agent, context) for agent in now.agents if agent["said"]["slot"] == 0]
    for _ in range(3):
        await asyncio.gather(*(leader.report() for leader in leaders))
    spent = []
    for _ in range(rounds):
        before = now.cpu_s()
        for begin in range(0, REPORTS, AT_ONCE):
            those = (leaders[number % len(leaders)] for number in range(begin, begin + AT_ONCE))
            await asyncio.gather(*(leader.report() for leader in those))
        spent.append(now.cpu_s() - before)
    for leader in leaders:
        if leader.open is not None:
            leader.open.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await leader.open
    return spent


async def _crowd(now: Stand) -> int:
    """So many strangers at once, from some addresses, with a token that nobody signed and a body as large as may be;
    how many got to read why they are refused.
    """
    context = trust(now.endpoint, now.ca)
    head = f"POST /v1/sync HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer bad\r\nContent-Length: {BODY}\r\n\r\n"

    async def stranger(number: int) -> bool:
        place = (ADDRESSES[number % len(ADDRESSES)], 0)
        try:
            async with asyncio.timeout(STRANGER_S):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", now.endpoint.port, ssl=context, server_hostname=now.endpoint.host, local_addr=place
                )
                writer.write(head.encode() + b"x" * BODY)
                answer = await reader.readline()
                writer.transport.abort()
                return b" 401 " in answer
        except (OSError, TimeoutError):
            return False

    return sum(await asyncio.gather(*(stranger(number) for number in range(STRANGERS))))


def reports() -> Iterator[Figure]:
    """Processor time of the coordinator for each report of progress; how its memory's peak grows with strangers."""
    with stand(JOBS) as now:
        spent = asyncio.run(_spent_s(now))
    yield Figure("report_cpu", "ms", [1000.0 * s / REPORTS for s in spent])
    raise_open_files()
    with stand(JOBS) as now:
        asyncio.run(_spent_s(now, rounds=1))  # what agents take is there already
        before = now.peak_mib()
        answered = asyncio.run(_crowd(now))
        yield Figure(f"strangers_memory_{STRANGERS}", "MiB", [now.peak_mib() - before])
        yield Figure(f"strangers_refused_{STRANGERS}", "answered", [float(answered)])
