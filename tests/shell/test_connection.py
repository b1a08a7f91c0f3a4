"""One client's connection, over a real loopback socket: what comes whole, in pieces, too much or not at all."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from support.patience import HANG_S
from support.trust import MemoryApi, client_context
from trainjob_api import contract
from trainjob_operator.agents import connection, endpoint
from trainjob_operator.agents.answers import Answer, Held, Known, Read, refusal
from trainjob_operator.agents.endpoint import Endpoint
from trainjob_operator.agents.request_head import HEAD_LIMIT
from trainjob_operator.agents.tls import READ_BYTES
from trainjob_operator.trust.certificates import ensure

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def request(body: str = "", token: str = "good", *fields: str, length: int | None = None) -> bytes:
    length = len(body) if length is None else length
    lines = ("POST /v1/sync HTTP/1.1", "Host: x", f"Authorization: Bearer {token}", f"Content-Length: {length}")
    return "".join(f"{line}\r\n" for line in (*lines, *fields, "")).encode() + body.encode()


class Waiting:
    """A request that is held until the test answers it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.answered: Callable[[Answer], None] | None = None
        self.asked_for = 0
        """Times that it was to be answered now."""

    def then(self, answered: Callable[[Answer], None]) -> None:
        self.answered = answered

    def hang_up(self) -> None:
        self.site.hung_up += 1

    def answer(self) -> None:
        self.asked_for += 1
        self.say("now")

    def say(self, said: object) -> None:
        assert self.answered is not None
        self.answered(Answer(200, {"said": said}))


class Site:
    """An endpoint whose answers repeat the body. Token `bad`: refused before it is read; `hold`: held; `broken`: a
    fault; `never`: not answered.
    """

    def __init__(self) -> None:
        self.port = 0
        self.client: ssl.SSLContext | None = None
        """With which to connect, if it speaks TLS."""
        self.waiting: list[Waiting] = []
        self.hung_up = 0
        self.says: object = None
        """In place of the body."""
        self.served: list[str] = []
        self.refused: list[str] = []
        self.begun = 0
        self.endpoint = Endpoint(self.serve, lambda: {"ok": True}, self.refused.append)

    async def serve(self, token: str, read: Read, known: Known) -> Answer | Held:
        if token == "bad":
            return refusal(401, "this token is not accepted here")
        if token == "broken":
            raise RuntimeError("planted")
        known(None)
        self.begun += 1
        body = (await read()).decode()
        self.served.append(body)
        if token == "never":
            await asyncio.Event().wait()
        if token == "hold":
            self.waiting.append(Waiting(self))
            return self.waiting[-1]
        return Answer(200, {"said": body if self.says is None else self.says})

    async def connect(self) -> Stream:
        name = "localhost" if self.client is not None else None
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.client, server_hostname=name)


def on_site(test: Callable[[Site], Awaitable[None]], tls: bool = False) -> None:
    async def main() -> None:
        site, server = Site(), None
        if tls:
            trust = await ensure(MemoryApi(), "system", "coordinator", ("localhost",))
            site.client, server = client_context(trust.ca_pem), trust.ssl_context
        site.port = int((await site.endpoint.start("127.0.0.1", 0, server)).rpartition(":")[2])
        try:
            await asyncio.wait_for(test(site), HANG_S)
        finally:
            await asyncio.wait_for(site.endpoint.stop(), HANG_S)

    asyncio.run(main())


async def answer(stream: Stream) -> tuple[int, dict[str, Any], str]:
    """Status, body and the head's text."""
    head = (await stream[0].readuntil(b"\r\n\r\n")).decode()
    length = int(head.partition("Content-Length: ")[2].split("\r\n")[0])
    return int(head.split()[1]), json.loads(await stream[0].readexactly(length)), head


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_S):
        while not condition():  # noqa: ASYNC110 (real sockets)
            await asyncio.sleep(0.01)


def test_a_request_that_comes_byte_by_byte_is_read_as_one_that_comes_whole() -> None:
    async def test(site: Site) -> None:
        stream = await site.connect()
        for byte in request("hello"):
            stream[1].write(bytes([byte]))
            await stream[1].drain()
            await asyncio.sleep(0)
        assert await answer(stream) == (200, {"said": "hello"}, _HEAD.format(17))

    on_site(test)


@pytest.mark.parametrize("length", range(HEAD_LIMIT - 2, HEAD_LIMIT + 1))
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_the_largest_head_may_be_cut_anywhere(length: int, cut: int) -> None:
    async def test(site: Site) -> None:
        stream = await site.connect()
        spare = length - len(request()) + 4 - len("\r\nX: ")
        whole = request("", "good", "X: " + "x" * spare)
        assert whole.index(b"\r\n\r\n") == length
        stream[1].write(whole[:-cut])
        await stream[1].drain()
        await asyncio.sleep(0.05)  # read apart; if not, the test says less
        stream[1].write(whole[-cut:])
        assert (await answer(stream))[0] == 200

    on_site(test)


def test_a_body_in_a_thousand_pieces_is_not_copied_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = [0]

    class Counted(bytearray):
        def __init__(self, made_of: bytes) -> None:
            copied[0] += 1
            super().__init__(made_of)

    monkeypatch.setattr(connection, "bytearray", Counted, raising=False)

    async def test(site: Site) -> None:
        stream = await site.connect()
        body = "x" * 1000
        head, whole = request(length=len(body)), body.encode()
        stream[1].write(head)
        await until(lambda: site.begun == 1)
        for at in range(len(whole)):
            stream[1].write(whole[at : at + 1])
            await stream[1].drain()
            await asyncio.sleep(0)
        assert (await answer(stream))[:2] == (200, {"said": body})
        assert copied[0] <= 1

    on_site(test)


_HEAD = "HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: {}\r\n\r\n"


def test_requests_that_come_at_once_are_answered_one_after_the_other() -> None:
    async def test(site: Site) -> None:
        stream = await site.connect()
        stream[1].write(request("1", "hold") + request("2") + request("3", "bad") + request("4"))
        await until(lambda: len(site.waiting) == 1)
        assert site.served == ["1"], "the next waits for the answer to the first"
        site.waiting[0].say("first")
        assert [(await answer(stream))[:2] for _ in range(4)] == [
            (200, {"said": "first"}),
            (200, {"said": "2"}),
            (401, {"error": "this token is not accepted here"}),
            (200, {"said": "4"}),
        ]

    on_site(test)


def test_a_request_that_is_held_has_no_task() -> None:
    """Thousands wait: each task would hold what it runs in."""

    async def test(site: Site) -> None:
        before = len(asyncio.all_tasks())
        streams = [await site.connect() for _ in range(20)]
        for stream in streams:
            stream[1].write(request("x", "hold"))
        await until(lambda: len(site.waiting) == 20 and len(asyncio.all_tasks()) <= before)
        for number, waiting in enumerate(site.waiting):
            waiting.say(str(number))
        answers = [await answer(stream) for stream in streams]
        assert {status for status, _, _ in answers} == {200}
        assert {body["said"] for _, body, _ in answers} == {str(number) for number in range(20)}

    on_site(test)


@pytest.mark.parametrize(
    ("tls", "sent"),
    [
        (False, request("x", length=10_000)),
        (True, request("x", length=10_000)),
        (True, request("x", "hold")),
        (True, request("x", "never")),
    ],
    ids=["in its body", "in its body, TLS", "held, TLS", "in a task, TLS"],
)
def test_who_hangs_up_is_waited_for_no_longer(tls: bool, sent: bytes) -> None:
    async def test(site: Site) -> None:
        before = len(asyncio.all_tasks())
        stream = await site.connect()
        stream[1].write(sent)
        await until(lambda: site.begun == 1 and (len(site.served) == 1 or b"10000" in sent))
        stream[1].close()
        await until(lambda: not site.endpoint._connections and len(asyncio.all_tasks()) <= before)
        assert site.hung_up == len(site.waiting)
        assert site.endpoint._room._left == endpoint.BODIES_LIMIT

    on_site(test, tls)


def test_without_tls_who_hangs_up_while_it_is_held_is_answered_at_once() -> None:
    """It may be there still, and only send no more."""

    async def test(site: Site) -> None:
        stream = await site.connect()
        stream[1].write(request("x", "hold"))
        await until(lambda: len(site.waiting) == 1)
        stream[1].close()
        await until(lambda: site.waiting[0].asked_for == 1 and not site.endpoint._connections)

    on_site(test)


@pytest.mark.parametrize("token", ["good", "hold", "bad"])
def test_who_sends_no_more_gets_its_answers(token: str) -> None:
    async def test(site: Site) -> None:
        stream = await site.connect()
        stream[1].write(request("1", token) + request("2"))
        stream[1].write_eof()
        status, body, _ = await answer(stream)
        refused = {"error": "this token is not accepted here"}
        assert (status, body) == (
            (401, refused) if token == "bad" else (200, {"said": "now" if token == "hold" else "1"})
        )
        assert (await answer(stream))[1] == {"said": "2"}
        assert await _end(stream)
        await until(lambda: not site.endpoint._connections)

    on_site(test)


def test_who_sends_no_more_while_it_is_held_is_answered_at_once() -> None:
    async def test(site: Site) -> None:
        stream = await site.connect()
        stream[1].write(request("x", "hold"))
        await until(lambda: len(site.waiting) == 1)
        stream[1].write_eof()
        assert (await answer(stream))[:2] == (200, {"said": "now"})
        assert await _end(stream)

    on_site(test)


@pytest.mark.parametrize("sent", [b"", request("x")[:20], request("x", length=10)], ids=["nothing", "a head", "a body"])
def test_who_ends_in_the_middle_of_a_request_gets_the_end(sent: bytes) -> None:
    async def test(site: Site) -> None:
        stream = await site.connect()
        stream[1].write(sent)
        stream[1].write_eof()
        assert await _end(stream)
        await until(lambda: not site.endpoint._connections)

    on_site(test)


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("late", [False, True], ids=["with the request", "while it is held"])
def test_behind_a_request_that_is_held_comes_no_more_than_a_little(tls: bool, late: bool) -> None:
    """What a client sends meanwhile is read, or nobody would see it hang up; and kept, until its turn comes."""

    async def test(site: Site) -> None:
        little, much, allowed = await site.connect(), await site.connect(), connection.READ_BUFFER
        for held, (stream, count) in enumerate([(little, allowed), (much, allowed + 1)], 1):
            sent, rest = request("x", "hold"), b"x" * count
            stream[1].write(sent if late else sent + rest)
            await until(lambda held=held: len(site.waiting) == held)  # type: ignore[misc]
            if late:
                stream[1].write(rest)
        status, body, head = await answer(much)
        assert status == 413 and "more than 4096 bytes" in body["error"] and "Connection: close" in head
        assert site.hung_up == 1 and len(site.waiting) == 2
        site.waiting[0].say("still here")
        assert (await answer(little))[1] == {"said": "still here"}

    on_site(test, tls)


@pytest.mark.parametrize("tls", [False, True])
def test_who_hangs_up_is_noticed_behind_what_it_sent_while_it_was_held(tls: bool) -> None:
    """Before its body was taken, more had come than is read unasked."""

    async def test(site: Site) -> None:
        stream = await site.connect()
        stream[1].write(request("x", "hold") + b"x" * connection.READ_BUFFER)
        await until(lambda: len(site.waiting) == 1)
        stream[1].close()
        await until(lambda: site.hung_up + site.waiting[0].asked_for >= 1)

    on_site(test, tls)


def test_what_a_client_sends_while_nobody_reads_does_not_pile_up_before_tls() -> None:
    async def test(site: Site) -> None:
        stream = await site.connect()
        stream[1].write(request("x", "never"))
        await until(lambda: site.served == ["x"])
        stream[1].write(b"x" * 2**20)
        (one,) = site.endpoint._connections
        await until(lambda: len(one._received) > connection.READ_BUFFER)
        most = 0
        for _ in range(50):
            await asyncio.sleep(0.01)
            transport: Any = one._transport
            most = max(most, len(one._received) + transport.get_read_buffer_size())
        # A record of TLS has up to 16 KiB, and is read whole.
        assert most <= connection.READ_BUFFER + 16 * 1024 + 3 * READ_BYTES
        stream[1].transport.abort()

    on_site(test, tls=True)


@pytest.mark.parametrize("token", ["good", "hold"])
@pytest.mark.parametrize("said", [float("nan"), 2**70000, object()], ids=["NaN", "too many digits", "no JSON at all"])
def test_an_answer_that_cannot_be_written_is_a_fault_that_is_told(
    token: str, said: object, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(site: Site) -> None:
        stream = await site.connect()
        site.says = said
        stream[1].write(request("x", token))
        if token == "hold":
            await until(lambda: len(site.waiting) == 1)
            site.waiting[0].say(said)
        assert (await answer(stream))[0] == 500
        site.says = None
        stream[1].write(request("y"))
        assert (await answer(stream))[:2] == (200, {"said": "y"})

    on_site(test)
    assert "could not be written" in caplog.text


def test_half_a_character_is_answered_as_it_is() -> None:
    async def test(site: Site) -> None:
        stream = await site.connect()
        site.says = "\ud800"
        stream[1].write(request("x"))
        assert (await answer(stream))[:2] == (200, {"said": "\ud800"})

    on_site(test)


def test_an_answer_to_who_has_hung_up_meanwhile_is_dropped() -> None:
    async def test(site: Site) -> None:
        stream = await site.connect()
        stream[1].write(request("x", "hold"))
        await until(lambda: len(site.waiting) == 1)
        stream[1].close()
        await until(lambda: site.hung_up == 1)
        site.waiting[0].say("too late")
        other = await site.connect()
        other[1].write(request("y"))
        assert (await answer(other))[1] == {"said": "y"}

    on_site(test, tls=True)


def test_the_rest_of_a_body_that_nobody_wants_is_thrown_away_and_the_connection_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "LINGER_S", HANG_S)

    async def test(site: Site) -> None:
        stream = await site.connect()
        stream[1].write(request("x" * 100, "bad", length=200_100))
        status, _, head = await answer(stream)
        assert status == 401 and "close" not in head
        stream[1].write(b"x" * 200_000 + request("next"))
        assert (await answer(stream))[1] == {"said": "next"}

    on_site(test)


def test_the_rest_of_a_body_that_nobody_wants_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LINGER_S", 0.1)

    async def test(site: Site) -> None:
        stream = await site.connect()
        stream[1].write(request("x", "bad", length=200_000))
        assert (await answer(stream))[0] == 401
        assert await _end(stream)

    on_site(test)


async def _end(stream: Stream) -> bool:
    """Whether it was closed, with nothing more said."""
    try:
        return await stream[0].read() == b""
    except ConnectionError:
        return True


def test_a_connection_without_a_request_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "IDLE_S", 0.1)

    async def test(site: Site) -> None:
        for begun in (b"", b"POST /v1/sync HTTP/1.1\r\n"):
            stream = await site.connect()
            stream[1].write(request("x"))
            assert (await answer(stream))[0] == 200
            stream[1].write(begun)
            assert await _end(stream)

    on_site(test)


def test_a_connection_that_waits_for_an_answer_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "IDLE_S", 0.5)

    async def test(site: Site) -> None:
        stream = await site.connect()
        stream[1].write(request("x", "hold"))
        await until(lambda: len(site.waiting) == 1)
        await asyncio.sleep(1.5)
        site.waiting[0].say("here")
        assert (await answer(stream))[1] == {"said": "here"}

    on_site(test)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST /v1/sync HTTP/1.1\r\nX: " + b"x" * HEAD_LIMIT + b"\r\n\r\n", 431),
        (b"x" * (HEAD_LIMIT + 1), 431),
        (b"POST /v1/sync HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 411),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ],
    ids=["a large head", "no head", "chunks", "TLS"],
)
def test_after_what_is_no_request_the_connection_ends(
    sent: bytes, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LINGER_S", 0.1)

    async def test(site: Site) -> None:
        stream = await site.connect()
        stream[1].write(sent + request("smuggled"))
        said, body, head = await answer(stream)
        assert said == status and len(body["error"].split()) > 3 and "Connection: close" in head
        assert await _end(stream) and not site.served

    on_site(test)


def test_who_wants_no_other_answer_gets_the_end() -> None:
    async def test(site: Site) -> None:
        for token in ("good", "hold"):
            stream = await site.connect()
            stream[1].write(request("x", token, "Connection: close"))
            if token == "hold":
                await until(lambda: len(site.waiting) == 1)
                site.waiting[0].say("x")
            status, body, head = await answer(stream)
            assert (status, body) == (200, {"said": "x"}) and "Connection: close" in head
            assert await _end(stream)

    on_site(test)


def test_a_head_alone_is_answered_with_a_head_alone() -> None:
    async def test(site: Site) -> None:
        stream = await site.connect()
        for _ in range(2):
            stream[1].write(b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            head = (await stream[0].readuntil(b"\r\n\r\n")).decode()
            assert head == _HEAD.format(len('{"ok": true}'))

    on_site(test)


def test_a_fault_is_answered_and_told(caplog: pytest.LogCaptureFixture) -> None:
    async def test(site: Site) -> None:
        stream = await site.connect()
        stream[1].write(request("x", "broken") + request("y"))
        assert (await answer(stream))[0] == 500
        assert (await answer(stream))[1] == {"said": "y"}

    on_site(test)
    assert "planted" in caplog.text


def test_who_reads_no_answers_is_asked_nothing_more() -> None:
    """Else its answers would pile up here."""

    async def test(site: Site) -> None:
        client = socket.create_connection(("127.0.0.1", site.port))
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        many = request("x" * 2000) * 50

        async def ask() -> None:
            while True:
                await loop.sock_sendall(client, many)

        asking = asyncio.ensure_future(ask())
        try:
            async with asyncio.timeout(HANG_S):
                served = -1
                while not served or served != len(site.served):
                    served = len(site.served)
                    await asyncio.sleep(0.5)
                    assert not asking.done()
                    for one in site.endpoint._connections:
                        assert one._transport is not None
                        assert one._transport.get_write_buffer_size() < 256 * 1024
                        assert len(one._received) < 512 * 1024
        finally:
            asking.cancel()
            await asyncio.wait({asking})
            client.close()

    on_site(test)


def test_stop_waits_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "SHUTDOWN_S", HANG_S)

    async def test(site: Site) -> None:
        held, idle = await site.connect(), await site.connect()
        held[1].write(request("x", "hold"))
        await until(lambda: len(site.waiting) == 1 and len(site.endpoint._connections) == 2)
        stopping = asyncio.ensure_future(site.endpoint.stop())
        assert await _end(idle)
        site.waiting[0].say("last")
        status, body, head = await answer(held)
        assert (status, body) == (200, {"said": "last"}) and "Connection: close" in head
        await stopping
        assert not site.endpoint._connections

    on_site(test)


def test_stop_waits_for_a_body_no_longer_than_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "SHUTDOWN_S", 0.1)

    async def test(site: Site) -> None:
        slow = await site.connect()
        slow[1].write(request("x", length=contract.SYNC_BODY_LIMIT))
        await until(lambda: site.begun == 1)
        await site.endpoint.stop()
        assert await _end(slow) and not site.endpoint._connections

    on_site(test)
