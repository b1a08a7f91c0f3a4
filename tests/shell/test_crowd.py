"""More strangers at the coordinator's door than it may open files: it keeps its descriptors for agents, and its memory."""

from __future__ import annotations

import http.client
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from support.patience import HANG_S
from trainjob_operator.agents.gate import Bounds, bounds_of
from trainjob_operator.process.limits import raise_open_files

FILES = 200
STRANGERS = 130
NODES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
"""Where the strangers come from."""
AGENT = "127.0.0.5"
GROWTH_KIB = 16 * 1024
SERVER = f"""
import asyncio, resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}))
from trainjob_operator.agents.answers import Answer, refusal
from trainjob_operator.agents.endpoint import Endpoint

async def serve(token, read, known):
    if token != "good":
        return refusal(401, "who are you?")
    known("pod")
    await read()
    return Answer(200, {{"in": True}})

async def main():
    endpoint = Endpoint(serve, lambda: {{}}, lambda why: None)
    print(await endpoint.start("127.0.0.1", 0), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


class Server:
    """A coordinator's endpoint as a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.pid = process.pid
        self.port = int(process.stdout.readline().rsplit(":", 1)[1])
        self.ask()
        self.files, self.memory = self.open_files(), self.resident_kib()

    def ask(self) -> int:
        """As an agent does."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, HANG_S, source_address=(AGENT, 0))
        with closing(connection):
            connection.request("POST", "/v1/sync", json.dumps({}), {"Authorization": "Bearer good"})
            return connection.getresponse().status

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def resident_kib(self) -> int:
        return int(Path(f"/proc/{self.pid}/status").read_text().split("VmHWM:")[1].split()[0])


@pytest.fixture
def server() -> Iterator[Server]:
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as process:
        yield Server(process)
        process.kill()


def test_strangers_beyond_its_descriptors_leave_room_for_an_agent(server: Server) -> None:
    head = b"POST /v1/sync HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer bad\r\nContent-Length: 1000000\r\n"
    begins = (b"", b"POST /v1/sync HTTP/1.1\r\nX: " + b"x" * 4000, head, head + b"\r\n" + b"x" * 100_000)
    with ExitStack() as open_ones:
        for n in range(STRANGERS):
            place, node = ("127.0.0.1", server.port), (NODES[n % len(NODES)], 0)
            stranger = open_ones.enter_context(closing(socket.create_connection(place, source_address=node)))
            stranger.setblocking(False)
            try:
                stranger.send(begins[n % len(begins)])
            except (BlockingIOError, ConnectionError):
                pass
        assert server.ask() == 200
        assert server.open_files() < FILES // 2
    while server.open_files() > server.files + 2:
        server.ask()
    assert server.resident_kib() - server.memory < GROWTH_KIB


def test_who_is_not_known_gets_a_quarter_at_most() -> None:
    assert bounds_of(-1) == bounds_of(1 << 20) == Bounds()
    assert (bounds_of(1024).connections, bounds_of(1).connections) == (256, 1)


@pytest.mark.parametrize("files", [-1, 8, 40, 1024, 2048, 1 << 20])
def test_no_address_takes_more_than_half_of_the_places(files: int) -> None:
    bounds = bounds_of(files)
    assert 1 <= bounds.per_address <= bounds.connections // 2


def test_the_operator_may_open_as_many_files_as_it_is_allowed() -> None:
    words = "import resource, trainjob_operator.process.limits as l; resource.setrlimit(7, (64, 512)); "
    words += f"l.{raise_open_files.__name__}(); print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    ran = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["512", "512"]


@pytest.mark.parametrize("error", [ValueError("not allowed to raise maximum limit"), OSError(22, "Invalid argument")])
def test_where_more_files_are_refused_it_goes_on_with_what_it_has(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(which: int, limits: tuple[int, int]) -> None:
        raise error

    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    raise_open_files()
    (line,) = caplog.messages
    assert "1024" in line and "unlimited" in line and str(error) in line
