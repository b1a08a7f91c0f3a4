"""Bytes between agents and to the coordinator: strangers, answers in pieces, files that come damaged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from support.patience import HANG_S
from trainjob.agent.attempts import master_port
from trainjob.agent.config import Endpoint
from trainjob.agent.control.http_post import Answer, PostConnection, PostError
from trainjob.agent.wire import handshake, leader_link, peers
from trainjob.agent.wire.frames import FrameConnection
from trainjob.agent.wire.from_member import FromMember, Persisted
from trainjob.agent.wire.leader_link import LeaderLink
from trainjob.agent.wire.peers import PeerServer
from trainjob_api import wire


class Guest:
    """A leader that remembers who came."""

    def __init__(self) -> None:
        self.members: list[int] = []
        self.words: list[tuple[int, FromMember]] = []
        self.left: list[int] = []

    def attach(self, index: int, connection: FrameConnection) -> None:
        self.members.append(index)

    def take(self, index: int, word: FromMember) -> None:
        self.words.append((index, word))

    def detach(self, index: int, connection: FrameConnection) -> None:
        self.left.append(index)


async def until(condition: Callable[[], Any]) -> None:
    deadline = asyncio.get_running_loop().time() + HANG_S
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


class Caller:
    """What reaches the port: frame by frame, with a clock."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def at(cls, server: PeerServer) -> Caller:
        return cls(*await asyncio.open_connection("127.0.0.1", server.port))

    def say(self, *messages: wire.Message) -> None:
        self._writer.write(b"".join(map(wire.encode, messages)))

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def hear(self) -> wire.Message:
        head = await asyncio.wait_for(self._reader.readexactly(8), HANG_S)
        message: wire.Message = json.loads(await self._reader.readexactly(int.from_bytes(head[:4], "big")))
        return message

    async def prove(self, secret: str, attempt: int, index: int = 1) -> wire.Message:
        """Through the whole handshake; what is answered."""
        hello = handshake.hello("member", attempt, index)
        self.say(hello.to_message())
        self.say(handshake.answer(secret, hello, await self.hear()))
        return await self.hear()

    async def is_closed(self) -> bool:
        try:
            while await asyncio.wait_for(self._reader.read(65536), HANG_S):
                pass
        except ConnectionResetError:
            pass
        return True

    def close(self) -> None:
        self._writer.close()


def test_who_knows_the_secret_is_let_in_and_nobody_has_sent_it() -> None:
    async def test(server: PeerServer, guest: Guest) -> None:
        server.know("right", 3, guest)
        caller = await Caller.at(server)
        assert await caller.prove("right", 3) == {"op": "hello"} and guest.members == [1]
        caller.say({"op": "persisted", "n": 7})
        await until(lambda: guest.words == [(1, Persisted(7))])
        caller.close()

    with_server(test)
    hello = handshake.hello("member", 3, 1)
    said = [hello.to_message(), handshake.challenge("right", hello, handshake.nonce())]
    said.append(handshake.answer("right", hello, said[1]))
    assert "right" not in json.dumps(said)


def test_who_does_not_know_the_secret_is_sent_away_unheard() -> None:
    async def test(server: PeerServer, guest: Guest) -> None:
        server.know("right", 1, guest)
        hello = handshake.hello("member", 1, 1)
        nonsense = ({"op": "hello", "attempt": 1}, {"op": "arrive"}, {**hello.to_message(), "attempt": "1"})
        for first in (*nonsense, {**hello.to_message(), "nonce": "short"}):
            caller = await Caller.at(server)
            caller.say(first, {"op": "arrive"})
            assert await caller.is_closed()
        guessing = await Caller.at(server)
        guessing.say(hello.to_message())
        challenge = await guessing.hear()
        # Its own proof back at it, and one made with another secret.
        guessing.say({"op": "proof", "proof": challenge["proof"]}, {"op": "arrive"})
        assert await guessing.is_closed()
        other = await Caller.at(server)
        with pytest.raises(ValueError, match="does not know the secret of this attempt"):
            await other.prove("wrong", 1)
        assert guest.members == [] and guest.words == []

    with_server(test)


def test_a_recorded_proof_is_worth_nothing() -> None:
    async def test(server: PeerServer, guest: Guest) -> None:
        server.know("right", 1, guest)
        hello, first = handshake.hello("member", 1, 1), await Caller.at(server)
        first.say(hello.to_message())
        proof = handshake.answer("right", hello, await first.hear())
        again = await Caller.at(server)
        again.say(hello.to_message())
        await again.hear()
        again.say(proof)
        assert (await again.hear())["op"] == "refused" and guest.members == []

    with_server(test)


def test_nothing_is_told_to_one_that_is_not_of_this_attempt() -> None:
    """Whoever has the old address of rank 0's agent now."""
    heard: list[wire.Message] = []

    async def test() -> None:
        async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readexactly(8)
            hello = json.loads(await reader.readexactly(int.from_bytes(head[:4], "big")))
            heard.append(hello)
            given = handshake.parse(hello)
            writer.write(wire.encode(handshake.challenge("of an older attempt", given, handshake.nonce())))
            heard.extend([{"more": True}] if await reader.read(1) else [])
            writer.close()

        said: list[str] = []
        listening = await asyncio.start_server(stranger, "127.0.0.1", 0)
        link = LeaderLink(
            leader_link.Caller("right", 2, 1),
            lambda: heard.append({"up": True}),
            lambda word: heard.append({"word": word}),
            lambda lost: None,
            lambda text, lasting: said.append(text),
        )
        link.connect(f"127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        await until(lambda: len(heard) >= 2)
        link.close()
        listening.close()
        assert {message["op"] for message in heard} == {"hello"}, "nothing but greetings"
        assert "right" not in json.dumps(heard)
        assert len(said) == 1 and "it does not know the secret of this attempt" in said[0]

    asyncio.run(test())


@pytest.mark.parametrize("known", [True, False], ids=["secret known", "secret not known"])
def test_a_stranger_cannot_make_us_buffer(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither before its hello nor after one that has to wait for us to hear of its attempt. It is its frame, not its
    time, for which it is sent away.
    """
    for name in ("STRANGER_S", "WAITING_S"):
        monkeypatch.setattr(peers, name, 2 * HANG_S)

    async def test(server: PeerServer, guest: Guest) -> None:
        if known:
            server.know("right", 1, guest)
        large = (1 << 20).to_bytes(4, "big")
        for before in (b"", wire.encode(handshake.hello("member", 10**9, 1).to_message())):
            for lengths in (large + bytes(4), bytes(4) + large):
                caller = await Caller.at(server)
                caller.write(before + lengths + b"x" * 8000)
                assert await caller.is_closed()
        nested = b"[" * 2000
        deep = await Caller.at(server)
        deep.write(len(nested).to_bytes(4, "big") + bytes(4) + nested)
        assert await deep.is_closed()

    with_server(test)


def test_strangers_are_limited_and_never_lock_a_member_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "STRANGERS_LIMIT", 8)

    async def test(server: PeerServer, guest: Guest) -> None:
        strangers = [await Caller.at(server) for _ in range(12)]
        for stranger in strangers[:8]:
            stranger.say(handshake.hello("member", 10**9, 1).to_message())
        for stranger in strangers[:4]:
            assert await stranger.is_closed(), "the oldest make way"
        server.know("right", 1, guest)
        for index in range(1, 20):
            member = await Caller.at(server)
            assert await member.prove("right", 1, index) == {"op": "hello"}
        assert len(server._strangers) <= 8

    with_server(test)


def test_a_stranger_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "STRANGER_S", 0.05)
    monkeypatch.setattr(peers, "WAITING_S", 0.05)

    async def test(server: PeerServer, guest: Guest) -> None:
        server.know("right", 1, guest)
        silent, ahead, unproven = [await Caller.at(server) for _ in range(3)]
        ahead.say(handshake.hello("member", 2, 1).to_message())
        unproven.say(handshake.hello("member", 1, 1).to_message())
        for caller in (silent, ahead, unproven):
            assert await caller.is_closed()
        assert not server._strangers

    with_server(test)


def test_a_member_that_is_ahead_waits_until_we_have_heard_of_the_attempt() -> None:
    async def test(server: PeerServer, guest: Guest) -> None:
        caller = await Caller.at(server)
        proving = asyncio.ensure_future(caller.prove("of 2", 2))
        await asyncio.sleep(0)
        server.know("of 1", 1, None)
        server.know("of 2", 2, guest)
        assert await proving == {"op": "hello"} and guest.members == [1]
        caller.close()
        await until(lambda: guest.left == [1])

    with_server(test)


@pytest.mark.parametrize("purpose", ["member", "files"])
def test_who_missed_a_newer_attempt_is_sent_away_with_a_word(purpose: str) -> None:
    async def test(server: PeerServer, guest: Guest) -> None:
        server.know("of 1", 1, guest)
        slow, hello = await Caller.at(server), handshake.hello(purpose, 1, 1)
        slow.say(hello.to_message())
        proof = handshake.answer("of 1", hello, await slow.hear())
        server.know("of 2", 2, guest)
        slow.say(proof)
        assert (await slow.hear())["op"] == "refused", "proven for an attempt that is over by now"
        late = await Caller.at(server)
        late.say(handshake.hello(purpose, 1, 1).to_message())
        assert "attempt 1 is over" in (await late.hear())["message"]
        assert await late.is_closed() and guest.members == []

    with_server(test)


def test_a_leader_that_takes_connections_and_says_nothing_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is frozen: its kernel answers for it."""
    monkeypatch.setattr(peers, "WAITING_S", 0.05)
    monkeypatch.setattr(peers, "STRANGER_S", 0.05)
    monkeypatch.setattr(leader_link, "LOST_AFTER_S", 0.0)
    since: list[float | None] = []

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        link = LeaderLink(
            leader_link.Caller("right", 1, 1),
            lambda: None,
            lambda word: None,
            since.append,
            lambda why, lasting: None,
        )
        link.connect(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await until(lambda: len(since) >= 2)
        link.close()
        server.close()

    asyncio.run(run())
    assert None not in since and since[0] == since[1], "it counts from the begin"


def test_an_address_that_is_wanted_no_more_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is refused in the very moment in which rank 0's agent is heard of somewhere else: `wait_for` of
    Python 3.11 forgets that it was cancelled. The agent that was restarted stayed a lost peer for ever.
    """
    monkeypatch.setattr(leader_link, "LOST_AFTER_S", 0.0)
    monkeypatch.setattr(leader_link, "RETRY_S", 0.01)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        missed: list[float | None] = []
        tried: list[tuple[str, asyncio.Event]] = []

        async def refusing(_protocol: object, host: str, port: int) -> None:
            tried.append((host, asyncio.Event()))
            await tried[-1][1].wait()
            raise ConnectionRefusedError

        monkeypatch.setattr(loop, "create_connection", refusing)
        link = LeaderLink(leader_link.Caller("s", 1, 1), lambda: None, lambda word: None, missed.append)
        link.connect("10.0.0.1:1")
        await until(lambda: tried)
        tried[0][1].set()
        await asyncio.sleep(0)  # it is refused, and nobody has looked yet
        link.connect("10.0.0.2:1")
        await until(lambda: len(tried) == 2)
        await asyncio.sleep(0.1)
        assert [host for host, _ in tried] == ["10.0.0.1", "10.0.0.2"] and missed == []
        link.close()

    asyncio.run(run())


def test_one_that_is_wanted_no_more_in_the_moment_in_which_it_is_there_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 0's agent would keep a place for it that nobody takes."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        lines: list[Line] = []
        there = asyncio.Event()

        async def connecting(protocol: Callable[[], asyncio.BaseProtocol], *_: object) -> tuple[Any, Any]:
            await there.wait()
            lines.append(Line(protocol()))
            return lines[-1], lines[-1].protocol

        monkeypatch.setattr(loop, "create_connection", connecting)
        link = LeaderLink(leader_link.Caller("s", 1, 1), lambda: None, lambda word: None, lambda since: None)
        link.connect("10.0.0.1:1")
        await asyncio.sleep(0.01)
        there.set()
        await asyncio.sleep(0)  # it is there, and nobody has looked yet
        assert [line.open for line in lines] == [True]
        link.close()
        await asyncio.sleep(0.01)
        assert [line.open for line in lines] == [False]

    asyncio.run(run())


class Line(asyncio.Transport):
    """To nobody."""

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self.open, self.protocol = True, protocol
        protocol.connection_made(self)

    def abort(self) -> None:
        self.open = False

    def is_closing(self) -> bool:
        return not self.open


def test_an_agent_of_another_version_is_told_what_to_do() -> None:
    said: list[tuple[str, bool]] = []

    async def run() -> None:
        server = PeerServer(lambda connection, message: None, lambda text, lasting: said.append((text, lasting)))
        await server.start("127.0.0.1")
        server.know("right", 1, Guest())
        older = {"op": "hello", "secret": "of the job", "purpose": "member", "attempt": 1, "index": 1}
        for hello in (older, {**handshake.hello("member", 1, 1).to_message(), "version": handshake.VERSION + 1}):
            caller = await Caller.at(server)
            caller.say(hello)
            refusal = await caller.hear()
            assert refusal["kind"] == "version" and "Suspend the job and resume it" in refusal["message"]
            assert await caller.is_closed()
        server.close()

    asyncio.run(run())
    assert len(said) == 1, "whoever reaches the port can make us say it"
    assert said[0][1] and "another version of TrainJob" in said[0][0]


def test_a_leader_of_an_older_version_is_named_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """It closes the connection without a word: it does not find the secret in our hello."""
    monkeypatch.setattr(leader_link, "RETRY_S", 0.001)
    monkeypatch.setattr(leader_link, "RETRY_CAP_S", 0.001)
    said: list[tuple[str, bool]] = []

    async def test() -> None:
        async def older(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.close()

        listening = await asyncio.start_server(older, "127.0.0.1", 0)
        link = LeaderLink(
            leader_link.Caller("right", 1, 1),
            lambda: None,
            lambda word: None,
            lambda lost: None,
            lambda text, lasting: said.append((text, lasting)),
        )
        link.connect(f"127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        await until(lambda: said)
        link.close()
        listening.close()

    asyncio.run(test())
    assert said[0][1] and "closes each connection without a word" in said[0][0]


def test_an_attempt_that_is_over_is_told_of_only_where_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two agents the one that hears of the next attempt first refuses the other: that is how a restart goes."""
    monkeypatch.setattr(leader_link, "RETRY_S", 0.001)
    monkeypatch.setattr(leader_link, "RETRY_CAP_S", 0.001)
    said: list[tuple[str, bool]] = []
    refused: list[int] = []

    async def test() -> None:
        server = PeerServer(lambda connection, message: None)
        await server.start("127.0.0.1")
        server.know("right", 2, Guest())
        refuse = server._refuse

        def counted(connection: FrameConnection, text: str, kind: str) -> None:
            refused.append(len(said))
            refuse(connection, text, kind)

        monkeypatch.setattr(server, "_refuse", counted)
        link = LeaderLink(
            leader_link.Caller("right", 1, 1),
            lambda: None,
            lambda word: None,
            lambda lost: None,
            lambda text, lasting: said.append((text, lasting)),
        )
        link.connect(f"127.0.0.1:{server.port}")
        await until(lambda: said)
        link.close()
        server.close()

    asyncio.run(test())
    assert refused[: leader_link.PATIENT_TRIES] == [0] * leader_link.PATIENT_TRIES, "not at the first"
    assert said == [(said[0][0], False)] and "attempt 1 is over: this agent is in attempt 2" in said[0][0]


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


@pytest.mark.parametrize("turns", range(8))
def test_one_that_nobody_waits_for_any_more_is_closed(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll that is superseded is cancelled, at whatever moment of its connecting."""
    lines: list[Line] = []

    async def connecting(protocol: Callable[[], asyncio.BaseProtocol], *_: object, ssl: None) -> tuple[Any, Any]:
        await asyncio.sleep(0)
        lines.append(Line(protocol()))
        return lines[-1], lines[-1].protocol

    async def run() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", connecting)
        opening = asyncio.ensure_future(PostConnection(Endpoint(False, "10.0.0.1", 1, "")).open(HANG_S))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        assert len(lines) == (turns > 1)
        assert all(line.open != opening.cancelled() for line in lines)

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
                await asyncio.wait_for(connection.post("/", {}, b"{}"), HANG_S)
            connection.close()

    asyncio.run(run())


def test_picked_master_ports_differ_and_are_given_back() -> None:
    held = [master_port.picked("127.0.0.1") for _ in range(20)]
    assert len({p.port for p in held}) == 20
    for port in held:
        port.release()
    assert master_port.computed(29500, 65).port == 29501
