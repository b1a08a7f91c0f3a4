"""Files from one agent to another: whole, from where they broke off, or with the reason why not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from support.background import no_fault
from support.cut_proxy import CutProxy
from support.patience import HANG_S
from trainjob.agent.restoring import fetching
from trainjob.agent.restoring.fetching import (
    Fetcher,
    FetchError,
    NotThere,
    Peer,
    Piece,
    Stop,
    joined,
    make_room,
    pieces_of,
)
from trainjob.agent.restoring.serving import FileServer, say, serve
from trainjob.agent.storing.saving import Saving
from trainjob.agent.wire.for_files import FROM_FETCHER, FROM_SERVER, End, File, FromServer, Refused
from trainjob.agent.wire.frames import FrameConnection
from trainjob.agent.wire.peers import PeerServer
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.manifest import NoteFile, ReleaseNote
from trainjob.checkpoint.staging.area import Staging
from trainjob.checkpoint.stores import digest
from trainjob_api import wire

Answer = Callable[[FrameConnection, wire.Message], None]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PAUSE_S", 0.0)


def serving(answer: Answer, test: Callable[[str], None]) -> None:
    async def run() -> None:
        server = PeerServer(answer)
        await server.start("127.0.0.1")
        server.know("secret", 1, None)
        try:
            await asyncio.to_thread(test, f"127.0.0.1:{server.port}")
        finally:
            server.close()

    asyncio.run(run())


def giving(source: Path, asked: list[int] | None = None) -> Answer:
    """Serves one file, whatever is asked for, and notes from where on."""
    tasks = []

    def answer(connection: FrameConnection, message: wire.Message) -> None:
        if asked is not None:
            asked.append(int(message["offset"]))
        tasks.append(asyncio.ensure_future(serve(connection, str(source), FROM_FETCHER.parse(message))))

    return answer


def whole(size: int, path: str = "path") -> Piece:
    return Piece(path, size, 0, size)


def fetch(address: str, target: Path, size: int, stop: Stop | None = None) -> int:
    make_room(str(target))
    with Fetcher(Peer(address, "secret", 1), stop or Stop()) as fetcher:
        return fetcher.fetch("1-1-1", whole(size), str(target))


def send_bytes(connection: FrameConnection, size: int, data: bytes, crc32: int | None) -> None:
    """As an agent answers a GET for a whole file."""
    say(connection, File(size, len(data), "crc32"))
    assert connection._transport is not None
    connection._transport.write(data)
    say(connection, End(crc32))


@pytest.mark.parametrize("algorithm", [None, *digest.ALGORITHMS])
def test_a_file_travels_whole(tmp_path: Path, algorithm: str | None) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(5_000_000))
    expected = digest.update(algorithm or digest.best(), source.read_bytes())

    def test(address: str) -> None:
        with Fetcher(Peer(address, "secret", 1), Stop()) as fetcher:
            for name in ("a", "deep/b"):
                make_room(str(tmp_path / "got" / name))
                assert fetcher.fetch("1-1-1", whole(5_000_000), str(tmp_path / "got" / name), algorithm) == expected
                assert (tmp_path / "got" / name).read_bytes() == source.read_bytes()

    serving(giving(source), test)


def test_a_peer_that_lacks_the_algorithm_takes_crc32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no awscrt, we have."""
    (tmp_path / "source").write_bytes(b"x" * 100)
    sums: list[object] = []

    def giving_crc32(connection: FrameConnection, message: wire.Message) -> None:
        sums.append(message["sum"])
        send_bytes(connection, 100, b"x" * 100, zlib.crc32(b"x" * 100))

    monkeypatch.setattr(digest, "best", lambda: digest.CRC64NVME)
    serving(giving_crc32, lambda address: fetch(address, tmp_path / "got", 100) and None)
    assert (tmp_path / "got").read_bytes() == b"x" * 100
    assert sums == [digest.CRC64NVME]


def test_a_link_in_the_way_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"new")
    (tmp_path / "staged").write_bytes(b"old")
    (tmp_path / "target").symlink_to(tmp_path / "staged")
    serving(giving(tmp_path / "source"), lambda address: fetch(address, tmp_path / "target", 3) and None)
    assert (tmp_path / "target").read_bytes() == b"new"
    assert (tmp_path / "staged").read_bytes() == b"old"


class Tearing(CutProxy):
    """Lets so many bytes through on each connection, then breaks it."""

    def __init__(self, target: str, budget: int) -> None:
        self.budget = budget
        super().__init__(target)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        left = self.budget
        with contextlib.suppress(OSError):
            while left > 0 and (data := source.recv(min(left, 65536))):
                sink.sendall(data)
                left -= len(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def test_a_transfer_that_breaks_off_goes_on_where_it_stopped(tmp_path: Path) -> None:
    source, asked = tmp_path / "source", []
    source.write_bytes(os.urandom(6 * fetching.CHUNK))

    def test(address: str) -> None:
        proxy = Tearing(address, 5 * fetching.CHUNK // 2)
        try:
            fetch(proxy.address, tmp_path / "got", 6 * fetching.CHUNK)
        finally:
            proxy.close()

    serving(giving(source, asked), test)
    assert (tmp_path / "got").read_bytes() == source.read_bytes()
    assert asked[0] == 0 and len(asked) == 3, "each connection gave two and a half blocks"
    assert all(2 * fetching.CHUNK < later - earlier < 5 * fetching.CHUNK // 2 for earlier, later in pairwise(asked))


def test_a_peer_that_gives_no_byte_is_given_up(tmp_path: Path) -> None:
    asked: list[int] = []

    def answer(connection: FrameConnection, message: wire.Message) -> None:
        asked.append(int(message["offset"]))
        say(connection, File(100, 100, "crc32"))
        connection.close()

    def test(address: str) -> None:
        with pytest.raises(FetchError, match=r"path of checkpoint 1-1-1 from 127\.0\.0\.1"):
            fetch(address, tmp_path / "got", 100)

    serving(answer, test)
    assert asked == [0] * fetching.TRIES


def test_pieces_over_several_connections_make_the_file(tmp_path: Path) -> None:
    source, size = tmp_path / "source", 5 * fetching.PIECE + 17
    source.write_bytes(os.urandom(size))
    pieces = pieces_of("path", size)
    assert len(pieces) == fetching.STREAMS
    make_room(str(tmp_path / "got"))
    sums = []

    def test(address: str) -> None:
        def bring(piece: Piece) -> tuple[Piece, int]:
            with Fetcher(Peer(address, "secret", 1), Stop()) as fetcher:
                return piece, fetcher.fetch(
                    "1-1-1", piece, str(tmp_path / "got"), None if piece.start else digest.best()
                )

        with ThreadPoolExecutor(len(pieces)) as threads:
            sums.extend(threads.map(bring, reversed(pieces)))

    serving(giving(source), test)
    assert (tmp_path / "got").read_bytes() == source.read_bytes()
    assert joined(sums, digest.best()) == digest.update(digest.best(), source.read_bytes())


@pytest.mark.parametrize("size", [0, 1, fetching.PIECE, fetching.PIECE + 1, 4 * fetching.PIECE, 400 * fetching.PIECE])
def test_pieces_cover_a_file_once(size: int) -> None:
    pieces = pieces_of("path", size)
    assert len(pieces) <= fetching.STREAMS
    assert [p.start for p in pieces] == [sum(q.length for q in pieces[:n]) for n in range(len(pieces))]
    assert sum(p.length for p in pieces) == size


def test_a_file_that_shrinks_while_it_is_sent_does_not_come_torn(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"x" * 50)

    def answer(connection: FrameConnection, message: wire.Message) -> None:
        async def send() -> None:
            with open(tmp_path / "source", "rb") as file:  # noqa: ASYNC230 - a test
                left = 100 - int(message["offset"])
                say(connection, File(100, left, "crc32"))
                await connection.send_file(file, 100 - left, left)

        tasks.append(asyncio.ensure_future(send()))

    tasks: list[asyncio.Future[None]] = []

    def test(address: str) -> None:
        with pytest.raises(FetchError, match=r"closed|reset"):
            fetch(address, tmp_path / "got", 100)

    serving(answer, test)


def test_what_came_damaged_is_asked_for_once_more_from_its_begin(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 100)
    asked: list[int] = []
    honest = giving(source, asked)

    def answer(connection: FrameConnection, message: wire.Message) -> None:
        if asked:
            honest(connection, message)
            return
        asked.append(-1)
        send_bytes(connection, 100, b"y" * 100, zlib.crc32(b"x" * 100))

    serving(answer, lambda address: fetch(address, tmp_path / "got", 100) and None)
    assert (tmp_path / "got").read_bytes() == b"x" * 100
    assert asked == [-1, 0]


@pytest.mark.parametrize("fault", ["checksum", "nothing", "size", "refused", "gone"])
def test_a_file_that_does_not_come_is_said(tmp_path: Path, fault: str) -> None:
    content = b"x" * 100

    def answer(connection: FrameConnection, message: wire.Message) -> None:
        if fault == "gone":
            connection.abort()
        elif fault == "refused":
            say(connection, Refused("it does not lie here"))
        else:
            data = b"" if fault == "nothing" else content
            send_bytes(
                connection,
                99 if fault == "size" else 100,
                data,
                zlib.crc32(b"other") if fault == "checksum" else zlib.crc32(data),
            )

    def test(address: str) -> None:
        with pytest.raises(NotThere if fault in ("size", "refused") else FetchError, match="path"):
            fetch(address, tmp_path / "got", 100)

    serving(answer, test)


def test_who_shows_another_secret_gets_nothing(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"secret weights")

    def test(address: str) -> None:
        with Fetcher(Peer(address, "guessed", 1), Stop()) as fetcher, pytest.raises(FetchError):
            make_room(str(tmp_path / "got"))
            fetcher.fetch("1-1-1", whole(14), str(tmp_path / "got"))

    serving(giving(tmp_path / "source"), test)
    assert (tmp_path / "got").read_bytes() == b""


def test_a_stop_ends_who_waits_for_a_silent_peer(tmp_path: Path) -> None:
    stop, waiting = Stop(), threading.Event()

    def test(address: str) -> None:
        failed: list[Exception] = []

        def work() -> None:
            try:
                fetch(address, tmp_path / "got", 100, stop)
            except FetchError as error:
                failed.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        assert waiting.wait(HANG_S)
        stop.set()
        thread.join(HANG_S)
        assert not thread.is_alive()
        assert failed

    serving(lambda connection, message: waiting.set(), test)


def test_only_what_is_released_and_held_here_is_served(tmp_path: Path) -> None:
    async def run() -> None:
        saving = Saving(Staging(str(tmp_path / "staging")), None, lambda urgent: None, no_fault)
        given = tmp_path / "given"
        given.mkdir()
        (given / "part").write_bytes(b"part")
        await saving.stage("1-1-1", [(0, str(given), False)], {})
        note = ReleaseNote(
            CheckpointId(1, 1, 1), None, 1, None, None, {}, 0.0, 1, 1, (NoteFile("part", 4, 0), NoteFile("other", 4, 1))
        )
        await saving.persist(note.to_json())
        server, tasks = FileServer(saving), []
        peers = PeerServer(
            lambda connection, message: tasks.append(asyncio.ensure_future(server.give(connection, message)))
        )
        await peers.start("127.0.0.1")
        peers.know("secret", 1, None)
        address = f"127.0.0.1:{peers.port}"

        def test() -> None:
            with Fetcher(Peer(address, "secret", 1), Stop()) as fetcher:
                make_room(str(tmp_path / "got"))
                make_room(str(tmp_path / "nothing"))
                fetcher.fetch("1-1-1", whole(4, "part"), str(tmp_path / "got"))
                assert (tmp_path / "got").read_bytes() == b"part"
                for id_, path in (("1-1-1", "other"), ("1-1-1", "../released.json"), ("1-1-2", "part")):
                    with pytest.raises(NotThere, match="does not lie here"):
                        fetcher.fetch(id_, whole(4, path), str(tmp_path / "nothing"))

        try:
            await asyncio.to_thread(test)
        finally:
            peers.close()
            saving.close()

    asyncio.run(run())


@pytest.mark.parametrize("nonsense", [{"id": "no id", "path": "x"}, {"path": "x"}, {"id": "1-1-1"}])
def test_a_request_that_makes_no_sense_is_refused_and_no_fault_of_ours(
    tmp_path: Path, nonsense: dict[str, Any]
) -> None:
    sent: list[FromServer] = []

    class Connection:
        def send_frame(self, frame: bytes) -> None:
            sent.extend(FROM_SERVER.parse(*found) for found in wire.Decoder().feed(frame))

    async def run() -> None:
        saving = Saving(Staging(str(tmp_path / "staging")), None, lambda urgent: None, no_fault)
        connection: Any = Connection()
        await FileServer(saving).give(connection, {"op": "get", "start": 0, "length": 1, "offset": 0, **nonsense})
        saving.close()

    asyncio.run(run())
    assert [type(word) for word in sent] == [Refused]
