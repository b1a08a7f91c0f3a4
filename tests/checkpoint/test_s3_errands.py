"""Many small requests in one thread: each done or left undone, always an end, whatever the other side does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.patience import HANG_S
from trainjob.checkpoint.stores.s3 import errands
from trainjob.checkpoint.stores.s3.errands import HEAD_LIMIT, LIMIT, TOLERATED, Origin, run

FINE = b"HTTP/1.1 200 OK\r\nETag: x\r\nContent-Length: 2\r\n\r\nok"
Answer = Callable[[socket.socket, int], bool]
"""Is told how many requests there were before; whether the connection stays."""


class Asked:
    """A request, and what came of it."""

    def __init__(self, request: bytes = b"GET / HTTP/1.1\r\n\r\n", wanted: bool = True) -> None:
        self._request, self._wanted = request, wanted
        self.came: list[bytes] = []

    def request(self) -> bytes:
        return self._request

    def take(self, contents: memoryview) -> bool:
        self.came.append(bytes(contents))
        return self._wanted


class Server:
    """Answers requests without contents as it is told, each connection in a thread."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.answer: Answer = says(FINE)
        self.connections = 0
        self.requests = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def origin(self, timeout_s: float = 20.0) -> Origin:
        host, port = self._listener.getsockname()
        return Origin(host, port, None, timeout_s, timeout_s)

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            came = b""
            while block := connection.recv(65536):
                came += block
                while b"\r\n\r\n" in came:
                    came = came.partition(b"\r\n\r\n")[2]
                    with self._lock:
                        before, self.requests = self.requests, self.requests + 1
                    if not self.answer(connection, before):
                        return


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def says(reply: bytes, stays: bool = True) -> Answer:
    def answer(connection: socket.socket, before: int) -> bool:
        connection.sendall(reply)
        return stays

    return answer


def test_all_are_done_over_a_few_connections(server: Server) -> None:
    asked = [Asked() for _ in range(500)]
    assert sorted(map(id, run(server.origin(), asked))) == sorted(map(id, asked))
    assert all(one.came == [b"ok"] for one in asked)
    assert (server.requests, server.connections) == (500, errands.AT_ONCE)


def test_a_reply_may_come_byte_by_byte_and_be_empty(server: Server) -> None:
    def slowly(connection: socket.socket, before: int) -> bool:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in FINE if before % 2 else b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\netag: y\r\n\r\n":
            connection.sendall(bytes([byte]))
        return True

    server.answer = slowly
    asked = [Asked() for _ in range(20)]
    assert len(run(server.origin(), asked)) == 20
    assert {b"".join(one.came) for one in asked} == {b"ok", b""}


def test_a_server_that_ends_each_connection_is_connected_to_again(server: Server) -> None:
    server.answer = says(FINE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), stays=False)
    asked = [Asked() for _ in range(150)]
    assert len(run(server.origin(), asked)) == 150 == server.connections


def test_a_reply_that_comes_before_the_opening_is_told_to_be_over_leaves_nothing_undone(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy loop tells late that a connection stands: it has had its request, its reply and its end by then."""
    plain = asyncio.wait_for

    async def late(opening: Any, timeout_s: float) -> Any:
        transport, protocol = await plain(opening, timeout_s)
        while not transport.is_closing():  # noqa: ASYNC110 (nothing tells of it)
            await asyncio.sleep(0)
        return transport, protocol

    monkeypatch.setattr(asyncio, "wait_for", late)
    monkeypatch.setattr(errands, "AT_ONCE", 1)
    server.answer = says(FINE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), stays=False)
    assert len(run(server.origin(), [Asked() for _ in range(3)])) == 3


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno",
        b"HTTP/1.1 206 Partial Content\r\nETag: x\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nETag: x\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nETag: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nETag: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nETag: x\r\nContent-Length: -2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nETag: x\r\nContent-Length: " + str(LIMIT + 1).encode() + b"\r\n\r\nok",
        FINE + b"more than was said",
        FINE.replace(b"ETag", b"Server"),
        b"HTTP/1.1 200 OK\r\nETag: x\r\nX: " + b"x" * (HEAD_LIMIT + 10) + b"\r\nContent-Length: 2\r\n\r\nok",
        b"x" * (HEAD_LIMIT + LIMIT + 10),
        b"not HTTP at all\r\n\r\n",
        b"\r\n\r\n",
    ],
)
def test_what_is_no_plain_yes_is_left_undone(server: Server, reply: bytes) -> None:
    """And costs the others nothing: every third request is answered so."""
    fine, odd = says(FINE), says(reply)
    server.answer = lambda connection, before: (odd if before % 3 == 1 else fine)(connection, before)
    asked = [Asked() for _ in range(12)]
    done = run(server.origin(), asked)
    assert len(done) == 8 and all(one.came == [b"ok"] for one in done)
    assert not any(one.came for one in asked if one not in done) or reply.startswith(FINE)


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 200 OK\r\nConte", FINE[:-1]])
def test_a_connection_that_ends_takes_only_its_own_errand_with_it(server: Server, reply: bytes) -> None:
    fine, broken = says(FINE), says(reply, stays=False)
    server.answer = lambda connection, before: (broken if before % 3 == 1 else fine)(connection, before)
    asked = [Asked() for _ in range(12)]
    assert len(run(server.origin(), asked)) == 8


def test_it_gives_up_where_nothing_goes_well(server: Server) -> None:
    server.answer = says(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n")
    assert run(server.origin(), [Asked() for _ in range(5000)]) == []
    assert server.requests <= TOLERATED + errands.AT_ONCE + 1, (
        "a store that is overloaded is not asked thousands of times"
    )


def test_nobody_there(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        origin = server.origin()._replace(port=closed.getsockname()[1])
    assert run(origin, [Asked() for _ in range(200)]) == []
    assert run(origin._replace(host="no-such-host.invalid"), [Asked()]) == []


def test_what_stands_still_or_trickles_is_cut(server: Server) -> None:
    """The others go on meanwhile."""

    def still(connection: socket.socket, before: int) -> bool:
        if before % 4 == 1:
            connection.sendall(FINE[:10])
            deadline = time.monotonic() + HANG_S
            while time.monotonic() < deadline:
                time.sleep(0.05)
                connection.sendall(b"x")  # raises once the other side has hung up
            return False
        connection.sendall(FINE)
        return True

    server.answer = still
    began = time.monotonic()
    assert len(run(server.origin(timeout_s=5.0), [Asked() for _ in range(16)])) == 12
    assert time.monotonic() - began < HANG_S


def test_what_an_errand_raises_ends_all_and_is_raised(server: Server) -> None:
    raised, fine = threading.Event(), server.answer

    class Raises(Asked):
        def take(self, contents: memoryview) -> bool:
            raised.set()
            raise ValueError("no room")

    # However late its reply comes: before the last ones.
    server.answer = lambda connection, before: (before < 1000 or raised.wait(HANG_S)) and fine(connection, before)
    asked = [Raises() if n == 3 else Asked() for n in range(2000)]
    with pytest.raises(ValueError, match="no room"):
        run(server.origin(), asked)
    assert server.requests < 2000


def test_an_errand_may_step_back_or_not_want_what_came(server: Server) -> None:
    asked = [Asked(), Asked(request=b""), Asked(wanted=False), Asked()]
    assert {id(one) for one in run(server.origin(), asked)} == {id(asked[0]), id(asked[3])}
    assert run(server.origin(), [Asked(request=b"") for _ in range(100)]) == [] == run(server.origin(), [])


def test_it_works_where_a_loop_runs_already(server: Server) -> None:
    """As in a notebook."""

    async def cell() -> int:
        return len(run(server.origin(), [Asked() for _ in range(3)]))

    assert asyncio.run(cell()) == 3
