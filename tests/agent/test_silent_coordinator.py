"""A coordinator that stands still with its connections open (a frozen machine): its successor behind the same
address is found after one poll.
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
from pathlib import Path

import pytest

from support import lone_agent
from support.patience import HANG_S
from trainjob.agent.config import Endpoint
from trainjob.agent.control import sync
from trainjob.agent.control.http_post import SILENT_S, PostConnection, PostError
from trainjob.agent.control.sync import Sync
from trainjob_api import contract

POLL_S = 0.3
"""In place of the coordinator's 20 s."""


class Leaders:
    """First one that answers nothing, but keeps what is open; then its successor, which answers new connections."""

    def __init__(self) -> None:
        self.succeeded = False
        self.silent = 0
        """Requests that the first one took in."""
        self.asked = asyncio.Event()
        self.answered = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        successor = self.succeeded
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next(
                int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
            )
            await reader.readexactly(length)
            if not successor:
                self.silent += 1
                self.asked.set()
                continue
            self.answered.set()
            body = json.dumps({"transition": 2, "instruction": {"do": contract.DO_WAIT}}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def test_all_its_connections_are_given_up_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "LONG_POLL_S", POLL_S)
    monkeypatch.setattr(sync, "MARGIN_S", POLL_S)
    monkeypatch.setattr(sync, "LEAVING_S", HANG_S)

    async def run() -> int:
        leaders = Leaders()
        server = await asyncio.start_server(leaders.serve, "127.0.0.1")
        made = lone_agent.asking(server, tmp_path)
        talking = Sync(made, lambda: {"slot": 0}, lambda instruction: None, lambda text: None)
        for _ in range(3):  # three that are open and free: as after changes that superseded polls
            await talking._connect()
        task = asyncio.create_task(talking.run())
        await asyncio.wait_for(leaders.asked.wait(), HANG_S)
        leaders.succeeded = True
        await asyncio.wait_for(leaders.answered.wait(), HANG_S)
        task.cancel()
        await asyncio.wait({task})
        talking.close()
        server.close()
        return leaders.silent

    assert asyncio.run(run()) == 1, "one poll was spent on it"


@pytest.mark.parametrize("urgent", [False, True], ids=["polling", "leaving"])
@pytest.mark.parametrize("turns", range(6))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the test's server, in Python 3.13.0
def test_a_connection_that_ends_while_the_agent_stops_is_no_fault(tmp_path: Path, turns: int, urgent: bool) -> None:
    """The launcher of a local job goes when its agents are told to: nobody waits for the answer any more."""
    faults: list[object] = []

    def fault(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        if isinstance(context.get("exception"), PostError):  # others are the server's of this test
            faults.append(context)

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(fault)
        leaders = Leaders()
        server = await asyncio.start_server(leaders.serve, "127.0.0.1")
        made = lone_agent.asking(server, tmp_path)
        talking = Sync(made, lambda: {"slot": 0}, lambda instruction: None, lambda text: None)
        task = asyncio.create_task(talking.run())
        await asyncio.wait_for(leaders.asked.wait(), HANG_S)
        if urgent:
            talking.changed(urgent=True)
        else:
            talking._connections[0].connection_lost(None)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        talking.close()
        await asyncio.wait({task})
        server.close()
        for _ in range(3):
            await asyncio.sleep(0)
        del task, talking
        gc.collect()

    asyncio.run(run())
    assert faults == []


def test_small_changes_open_no_connection_more_to_a_coordinator_that_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two polls of which none is answered: the newest state waits for one of them, what matters does not."""
    monkeypatch.setattr(sync, "QUIET_CHANGE_S", 0.0)

    async def run() -> list[int]:
        asked: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(head.lower().split(b"content-length:")[1].split()[0]))
                await asked.put(writer)

        def answer(writer: asyncio.StreamWriter) -> None:
            body = json.dumps({"transition": 2, "instruction": {"do": contract.DO_WAIT}}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

        server = await asyncio.start_server(serve, "127.0.0.1")
        made = lone_agent.asking(server, tmp_path)
        talking = Sync(made, lambda: {"slot": 0}, lambda instruction: None, lambda text: None)
        task = asyncio.create_task(talking.run())
        first = await asyncio.wait_for(asked.get(), HANG_S)
        talking.changed(urgent=False)
        second = await asyncio.wait_for(asked.get(), HANG_S)
        talking.changed(urgent=False)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asked.get(), 0.3)
        answer(first)
        third = await asyncio.wait_for(asked.get(), HANG_S)
        talking.changed(urgent=True)
        fourth = await asyncio.wait_for(asked.get(), HANG_S)
        task.cancel()
        await asyncio.wait({task})
        talking.close()
        server.close()
        return [[first, second, third, fourth].index(writer) for writer in (first, second, third, fourth)]

    assert asyncio.run(run()) == [0, 1, 0, 3], "the third goes where the first was answered; what matters, on a new one"


class Pacing:
    """Answers each post at once, and wants progress once in so many seconds."""

    def __init__(self, pace_s: object) -> None:
        self._pace_s = pace_s
        self.posts: asyncio.Queue[None] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = True
        while head := await reader.readuntil(b"\r\n\r\n"):
            await reader.readexactly(int(head.lower().split(b"content-length:")[1].split()[0]))
            await self.posts.put(None)
            if first:  # what comes then is held, as a coordinator does
                reply = {"transition": 2, "instruction": {"do": contract.DO_WAIT}, "pace_s": self._pace_s}
                body = json.dumps(reply).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                first = False


@pytest.mark.parametrize(
    ("pace_s", "waits"), [(40.0, True), (1e9, True), (0.0, False), ("soon", False), (True, False), (None, False)]
)
def test_progress_is_posted_as_often_as_the_coordinator_wants_it(tmp_path: Path, pace_s: object, waits: bool) -> None:
    """A small change that is no progress is posted within a second all the same, and carries it."""

    async def run() -> int:
        coordinator = Pacing(pace_s)
        server = await asyncio.start_server(coordinator.serve, "127.0.0.1")
        made = lone_agent.asking(server, tmp_path)
        talking = Sync(made, lambda: {"slot": 0}, lambda instruction: None, lambda text: None)
        task = asyncio.create_task(talking.run())
        for _ in range(2):
            await asyncio.wait_for(coordinator.posts.get(), HANG_S)
        talking.progressed()
        if waits:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(coordinator.posts.get(), 2 * sync.QUIET_CHANGE_S)
            talking.changed(urgent=False)
        await asyncio.wait_for(coordinator.posts.get(), HANG_S)
        task.cancel()
        await asyncio.wait({task})
        talking.close()
        server.close()
        return coordinator.posts.qsize()

    assert asyncio.run(run()) == 0


def test_the_last_word_says_that_it_is_the_last(tmp_path: Path) -> None:
    """A coordinator holds it no longer than it takes to read."""

    async def run() -> list[bool]:
        said: list[bool] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for _ in range(2):
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(int(head.lower().split(b"content-length:")[1].split()[0]))
                said.append(json.loads(body)["last"])
                reply = json.dumps({"transition": 1, "instruction": {"do": contract.DO_EXIT}}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(reply) + reply)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1")
        made = lone_agent.asking(server, tmp_path)
        talking = Sync(made, lambda: {"slot": 0}, lambda instruction: None, lambda text: None)
        await talking._turn()
        await talking.last_word(HANG_S)
        talking.close()
        server.close()
        return said

    assert asyncio.run(run()) == [False, True]


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel has no such time-out")
def test_a_machine_that_acknowledges_nothing_is_given_up_before_the_poll_ends() -> None:
    async def run() -> tuple[int, int, int]:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1")
        connection = PostConnection(Endpoint(False, "127.0.0.1", server.sockets[0].getsockname()[1], ""))
        await connection.open()
        assert connection._transport is not None
        made = connection._transport.get_extra_info("socket")
        found = tuple(
            made.getsockopt(level, name)
            for level, name in (
                (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
                (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            )
        )
        connection.close()
        server.close()
        return found[0], found[1], found[2]

    keeps, ms, idle = asyncio.run(run())
    assert keeps == 1 and ms == 1000 * SILENT_S and idle < SILENT_S < contract.LONG_POLL_S


def test_where_no_connection_comes_the_two_likely_causes_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the agent's log there was an empty TimeoutError while a cluster's DNS was on a node that was lost."""
    monkeypatch.setattr(sync, "MARGIN_S", 0.05)

    async def run() -> str:
        said, told = asyncio.Event(), []

        def say(text: str) -> None:
            told.append(text)
            said.set()

        async def nobody(*_: object, **__: object) -> None:
            await asyncio.get_running_loop().create_future()

        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1")
        talking = Sync(lone_agent.asking(server, tmp_path), lambda: {"slot": 0}, lambda instruction: None, say)
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", nobody)
        task = asyncio.create_task(talking.run())
        await asyncio.wait_for(said.wait(), HANG_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        server.close()
        return told[0]

    said = asyncio.run(run())
    assert "does not answer (no connection in time: the cluster's DNS" in said and "TimeoutError" not in said
