"""Bytes between agents and to the coordinator: strangers, answers in pieces, files that come damaged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from trainjob.agent.attempts import master_port
from trainjob.agent.config import Endpoint
from trainjob.agent.control.http_post import Answer, PostConnection, PostError
from trainjob.agent.wire import peer_protocol
from trainjob.agent.wire.frames import FrameConnection
from trainjob.agent.wire.peers import PeerServer
from trainjob_api import wire

PATIENCE_S = 10.0


class Guest:
    """A leader that remembers who came."""

    def __init__(self) -> None:
        self.members: list[int] = []
        self.frames: list[tuple[int, wire.Message]] = []
        self.left: list[int] = []

    def attach(self, index: int, connection: FrameConnection) -> None:
        self.members.append(index)

    def take(self, index: int, message: wire.Message, blob: bytes) -> None:
        self.frames.append((index, message))

    def detach(self, index: int, connection: FrameConnection) -> None:
        self.left.append(index)


async def until(condition: Callable[[], Any]) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.005)


def with_server(test: Callable[[PeerServer, Guest], Awaitable[None]]) -> None:
    async def run() -> None:
        server, guest = PeerServer(lambda connection, message: None), Guest()
        await server.start("127.0.0.1")
        try:
            await test(server, guest)
        finally:
            server.close()

    asyncio.run(run())


async def ends(reader: asyncio.StreamReader) -> bool:
    return await asyncio.wait_for(reader.read(), PATIENCE_S) == b""


def test_who_does_not_know_the_secret_is_sent_away_unheard() -> None:
    async def test(server: PeerServer, guest: Guest) -> None:
        server.know("right", 1, guest)
        for first in (peer_protocol.hello("wrong", "member", 1, 1), {"op": "hello", "attempt": 1}, {"op": "arrive"}):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(wire.encode(first) + wire.encode({"op": "arrive"}))
            try:
                assert await ends(reader)
            except ConnectionResetError:
                pass
            writer.close()
        assert guest.members == [] and guest.frames == []

    with_server(test)


def test_a_stranger_cannot_make_us_buffer() -> None:
    async def test(server: PeerServer, guest: Guest) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"\0\x10\0\0\0\0\0\0" + b"x" * 8000)
        try:
            assert await ends(reader)
        except ConnectionResetError:
            pass
        writer.close()

    with_server(test)


def test_a_member_that_is_ahead_waits_until_we_have_heard_of_the_attempt() -> None:
    async def test(server: PeerServer, guest: Guest) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(wire.encode(peer_protocol.hello("right", "member", 2, 1)))
        server.know("right", 1, None)
        late, late_writer = await asyncio.open_connection("127.0.0.1", server.port)
        server.know("right", 2, guest)
        await until(lambda: guest.members == [1])
        assert await reader.read(64)
        late_writer.write(wire.encode(peer_protocol.hello("right", "member", 1, 1)))
        assert await ends(late), "who is behind is sent away"
        writer.close()
        await until(lambda: guest.left == [1])
        late_writer.close()

    with_server(test)


class Answering:
    """An HTTP server that answers with given bytes, in given pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces
        self.requests: list[bytes] = []

    async def __aenter__(self) -> Endpoint:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                except asyncio.IncompleteReadError:
                    break
                length = int(
                    next(
                        line.split(b":")[1]
                        for line in head.split(b"\r\n")
                        if line.lower().startswith(b"content-length")
                    )
                )
                self.requests.append(await reader.readexactly(length))
                for piece in self._pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.01)
                if b"close" in b"".join(self._pieces):
                    break
            writer.close()

        self._server = await asyncio.start_server(serve, "127.0.0.1", 0)
        return Endpoint(False, "127.0.0.1", self._server.sockets[0].getsockname()[1], "")

    async def __aexit__(self, *_: object) -> None:
        self._server.close()


@pytest.mark.parametrize(
    "pieces",
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",),
        (b"HTTP/1.1 200 OK\r\nContent-Le", b"ngth: 5\r\n\r\nhe", b"llo"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n", b"2\r\nlo\r\n0\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",),
    ],
)
def test_answers_are_read_however_they_come(pieces: tuple[bytes, ...]) -> None:
    async def run() -> None:
        async with Answering(*pieces) as endpoint:
            for _ in range(2):
                connection = PostConnection(endpoint)
                await connection.open()
                assert await connection.post("/", {}, b"{}") == Answer(200, b"hello")
                connection.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "pieces",
    [(b"no http at all\r\n\r\n",), (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort, close",), (b"close",)],
)
def test_what_is_no_answer_is_an_error(pieces: tuple[bytes, ...]) -> None:
    async def run() -> None:
        async with Answering(*pieces) as endpoint:
            connection = PostConnection(endpoint)
            await connection.open()
            with pytest.raises(PostError):
                await asyncio.wait_for(connection.post("/", {}, b"{}"), PATIENCE_S)
            connection.close()

    asyncio.run(run())


def test_picked_master_ports_differ_and_are_given_back() -> None:
    held = [master_port.picked("127.0.0.1") for _ in range(20)]
    assert len({p.port for p in held}) == 20
    for port in held:
        port.release()
    assert master_port.computed(29500, 65).port == 29501
