"""What rank 0's agent of a large job costs in CPU time: 512 workers of 8 ranks, its own objects, a real socket for each
member. The members are a process of their own, which is not measured; nothing is measured in wall-clock time.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import multiprocessing.connection
import selectors
import socket
import time
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from benchmarks.figures import Figure
from support.bare_site import bare_site
from trainjob.agent.attempts.leader import Leader
from trainjob.agent.wire.arrive import Arrive, Callers
from trainjob.agent.wire.frames import FrameConnection
from trainjob.agent.wire.from_leader import FromLeader, Joined, Persist, Release, Stage
from trainjob.agent.wire.from_member import FROM_MEMBER, Join, Persisted, Staged
from trainjob.agent.wire.packed import Held, pack
from trainjob_api import contract

WORKERS, PROCESSES = 512, 8
FILES = 3
"""Of each rank."""
CALLS = 10


def measure(rounds: int) -> list[Figure]:
    """CPU milliseconds of the agent; every round joins, reports and saves. Memory is that of another join, whose every
    allocation is counted.
    """
    samples: dict[str, list[float]] = {"join_ms": [], "join_mib": [], "report_ms": [], "save_ms": []}
    # No agent has torch, which other measurements have imported here: a collection would look at all of it.
    gc.freeze()
    for _ in range(rounds):
        for name, values in asyncio.run(_round()).items():
            samples[name] += values
        samples["join_mib"].append(asyncio.run(_round(counts_memory=True))["join_mib"][0])
    gc.unfreeze()
    at = f"{WORKERS}x{PROCESSES}"
    return [
        Figure(f"agent_join_{at}", "ms", samples["join_ms"]),
        Figure(f"agent_join_memory_{at}", "MiB", samples["join_mib"]),
        Figure(f"agent_report_{at}", "ms", samples["report_ms"]),
        Figure(f"agent_save_{at}", "ms", samples["save_ms"]),
    ]


def _listing(rank: int) -> tuple[tuple[str, int], ...]:
    return tuple((f"shards/rank-{rank:05d}/part-{part}.safetensors", 1 << 30) for part in range(FILES))


def _staged(n: int, index: int) -> Staged:
    return Staged(n, {rank: _listing(rank) for rank in range(index * PROCESSES, (index + 1) * PROCESSES)}, ())


def _note() -> dict[str, Any]:
    files = [[path, size, rank] for rank in range(WORKERS * PROCESSES) for path, size in _listing(rank)]
    head = {"id": "1-1-7", "parent": None, "step": 7, "total_steps": None, "epoch": None, "metrics": {"loss": 0.5}}
    return {**head, "time": 0.0, "world_size": WORKERS * PROCESSES, "position": 7, "metadata": {}, "files": files}


def _said(what: str, n: int) -> list[list[bytes]]:
    """By step of a call: what each member but rank 0's own says."""
    mode = contract.UPLOAD_ASYNC if what == "save" else None
    if what == "join":
        note = _note()
        mine = [[f[0] for f in note["files"] if f[2] // PROCESSES == index] for index in range(1, WORKERS)]
        joins = [Join(f"10.0.0.1:{i}", (Held.of(note, paths),)) for i, paths in enumerate(mine, 1)]
        return [[FROM_MEMBER.encode(join) for join in joins]]
    callers = [Callers(tuple(range(i * PROCESSES, (i + 1) * PROCESSES)), None, mode) for i in range(1, WORKERS)]
    arrivals = [FROM_MEMBER.encode(Arrive(n, "report", (one,), 0.0)) for one in callers]
    if what == "report":
        return [arrivals]
    stages = [FROM_MEMBER.encode(_staged(n, index)) for index in range(1, WORKERS)]
    return [arrivals, stages, [FROM_MEMBER.encode(Persisted(n))] * (WORKERS - 1)]


def _members(ends: list[socket.socket], orders: multiprocessing.connection.Connection) -> None:
    """Take whatever comes, and say what is ordered; None: it is over."""
    selector = selectors.DefaultSelector()
    selector.register(orders, selectors.EVENT_READ)
    for end in ends:
        end.setblocking(False)
        selector.register(end, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is orders:
                frames = orders.recv()
                if frames is None:
                    return
                for end, frame in zip(ends, frames, strict=True):
                    end.setblocking(True)
                    end.sendall(frame)
                    end.setblocking(False)
            elif not key.fileobj.recv(1 << 20):  # type: ignore[union-attr]
                return


async def _round(counts_memory: bool = False) -> dict[str, list[float]]:
    loop, pairs = asyncio.get_running_loop(), [socket.socketpair() for _ in range(WORKERS - 1)]
    orders, ordered = multiprocessing.Pipe()
    members = multiprocessing.get_context("fork").Process(target=_members, args=([b for _, b in pairs], ordered))
    members.start()
    told: list[FromLeader] = []
    heard = asyncio.Event()

    def own(word: FromLeader) -> None:
        told.append(word)
        heard.set()

    note = _note()
    leader = Leader(
        bare_site(_Storage(note), SimpleNamespace(shown_note=lambda sha: pack(note))), 1, WORKERS, PROCESSES, own
    )
    for index, (mine, theirs) in enumerate(pairs, 1):
        theirs.close()

        def take(c: FrameConnection, m: dict[str, Any], b: bytes, index: int = index) -> None:
            leader.take(index, FROM_MEMBER.parse(m, b))

        _, connection = await loop.create_connection(lambda take=take: FrameConnection(take, lambda c: None), sock=mine)
        leader.attach(index, connection)
    everyone = list(leader._links._links.values())

    async def step(frames: list[bytes], own_word: Callable[[], Any], answer: type) -> float:
        """CPU milliseconds from the members' word to the end of the answer's way out. Of the loop's thread: it takes
        what comes while another one still hands out what the members are to say.
        """
        cpu = time.thread_time()
        sending = loop.run_in_executor(None, orders.send, frames)
        own_word()
        while not told or type(told[-1]) is not answer:
            heard.clear()
            await heard.wait()
        told.clear()
        for connection in everyone:
            await connection.drained()
        await sending
        return (time.thread_time() - cpu) * 1000

    out: dict[str, list[float]] = {"join_ms": [], "join_mib": [], "report_ms": [], "save_ms": []}
    (frames,) = _said("join", 0)
    if counts_memory:
        tracemalloc.start()
    spent = await step(frames, lambda: leader.take(0, Join("10.0.0.1:0")), Joined)
    if counts_memory:
        out["join_mib"].append(tracemalloc.get_traced_memory()[1] / 2**20)
        tracemalloc.stop()
    out["join_ms"].append(spent)
    for n in range(1, CALLS + 1):
        what = "save" if n == CALLS else "report"
        mode = contract.UPLOAD_ASYNC if what == "save" else None
        mine = Arrive(n, "report", (Callers(tuple(range(PROCESSES)), None, mode),), 0.0, {"metrics": {"loss": 0.5}})
        words: list[tuple[Any, type]] = [(mine, Release)]
        if what == "save":
            words = [(mine, Stage), (_staged(n, 0), Persist), (Persisted(n), Release)]
        spent = 0.0
        for frames, (word, answer) in zip(_said(what, n), words, strict=True):
            spent += await step(frames, lambda word=word: leader.take(0, word), answer)
        out[f"{what}_ms"].append(spent)
    leader.close()
    for connection in everyone:
        connection.abort()
    orders.send(None)
    members.join(30)
    return out


class _Storage:
    """Settles on what the members hold."""

    probed = True

    def __init__(self, note: dict[str, Any]) -> None:
        self._note = note

    async def call(self, op: str, request: Any, *_: Any) -> dict[str, Any]:
        if op != "settle":
            return {"count": 0, "latest": None, "best": None}
        chosen = {"id": self._note["id"], "source": "staged", "uri": None, "note": self._note, "stored": []}
        return {"run": 1, "completed": False, "checkpoint": chosen, "claim": None}
