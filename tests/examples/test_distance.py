"""The relay of the S3 benchmark: bytes arrive whole, never earlier than the distance allows, and so do endings.
Lower bounds only: a busy machine is late.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.patience import HANG_S

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
Serve = Callable[[socket.socket], None]


@contextlib.contextmanager
def relay(to: str, delay_s: float, rate: float) -> Iterator[tuple[subprocess.Popen[str], tuple[str, int]]]:
    """The relay and its address."""
    words = [sys.executable, "-m", "benchmarks.distance", "--to", to, "--delay", str(delay_s), "--rate", str(rate)]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        try:
            host, _, port = process.stdout.readline().strip().rpartition(":")
            yield process, (host, int(port))
        finally:
            process.stdin.close()
            try:
                process.wait(HANG_S)
            finally:
                process.kill()


@contextlib.contextmanager
def server(serve: Serve) -> Iterator[tuple[str, Callable[[], None]]]:
    """The address of a server of one client, and what waits for its end and raises what it raised."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(HANG_S)
                serve(connection)
        except BaseException as error:
            failed.append(error)

    def ended() -> None:
        thread.join(HANG_S)
        assert not thread.is_alive()
        if failed:
            raise failed[0]

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(HANG_S)
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", ended


@contextlib.contextmanager
def distant(serve: Serve, delay_s: float, rate: float) -> Iterator[socket.socket]:
    """A connection to such a server through the relay."""
    with server(serve) as (to, ended), relay(to, delay_s, rate) as (_, address):
        with socket.create_connection(address, HANG_S) as client:
            yield client
        ended()  # before the relay goes, and with it what is on its way


def received(connection: socket.socket, arrivals: list[tuple[float, int]] | None = None) -> bytes:
    """Everything until the end, noting when how much was there."""
    data = bytearray()
    while block := connection.recv(65536):
        data += block
        if arrivals is not None:
            arrivals.append((time.monotonic(), len(data)))
    return bytes(data)


def break_off(connection: socket.socket) -> None:
    """Close with a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def test_bytes_arrive_whole_and_in_order_and_each_way_ends_by_itself() -> None:
    content = random.Random(1).randbytes(5 * MIB)  # more than the relay holds

    def back_once_it_has_ended(connection: socket.socket) -> None:
        connection.sendall(received(connection)[::-1])

    with distant(back_once_it_has_ended, 0.002, 400) as client:
        client.sendall(content)
        client.shutdown(socket.SHUT_WR)
        assert received(client) == content[::-1]


def test_both_ways_are_under_way_at_once() -> None:
    content = random.Random(2).randbytes(
        16 * MIB
    )  # more than all the buffers between: neither end may wait for the other

    def echo(connection: socket.socket) -> None:
        while block := connection.recv(65536):
            connection.sendall(block)

    with distant(echo, 0.002, 400) as client:

        def send() -> None:
            client.sendall(content)
            client.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        assert received(client) == content
        sender.join(HANG_S)


def test_a_reply_takes_a_round_trip_and_connecting_another() -> None:
    def echo(connection: socket.socket) -> None:
        while block := connection.recv(16):
            connection.sendall(block)

    delay_s = 0.05
    with server(echo) as (to, ended), relay(to, delay_s, 10) as (_, address):
        before = time.monotonic()
        with socket.create_connection(address, HANG_S) as client:
            client.sendall(b"a")
            assert client.recv(16) == b"a"
            assert time.monotonic() - before >= 4 * delay_s
            before = time.monotonic()
            client.sendall(b"b")
            assert client.recv(16) == b"b"
            assert time.monotonic() - before >= 2 * delay_s
        ended()


def test_a_connection_is_never_faster_than_its_rate_in_either_direction() -> None:
    delay_s, rate, size = 0.02, 2e6, 500_000
    there: list[tuple[float, int]] = []
    back: list[tuple[float, int]] = []
    before = time.monotonic()

    def send_and_receive(connection: socket.socket) -> None:
        connection.sendall(bytes(size))
        connection.shutdown(socket.SHUT_WR)
        received(connection, there)

    with distant(send_and_receive, delay_s, rate / 1e6) as client:
        client.sendall(bytes(size))
        client.shutdown(socket.SHUT_WR)
        received(client, back)
    for arrivals in (there, back):
        assert arrivals[-1][1] == size
        assert [count for when, count in arrivals if count > rate * (when - before - delay_s) + 1] == []


def test_a_sender_waits_once_the_relay_holds_what_it_may() -> None:
    rate, size = 4e6, 5 * MIB
    ring, of_receiver, of_sender = 1 * MIB, 1 * MIB, MIB // 4
    with distant(lambda connection: assert_size(received(connection), size), 0.0, rate / 1e6) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, of_sender // 2)
        before = time.monotonic()
        client.sendall(bytes(size))
        assert time.monotonic() - before >= (size - ring - of_receiver - of_sender) / rate


def assert_size(data: bytes, size: int) -> None:
    assert len(data) == size


def test_the_client_hears_that_the_server_broke_off_and_not_that_it_ended() -> None:
    def one_byte(connection: socket.socket) -> None:
        connection.recv(1)
        break_off(connection)

    with distant(one_byte, 0.002, 40) as client:
        client.sendall(b"x")
        with pytest.raises(ConnectionResetError):
            client.recv(16)


def test_the_server_hears_that_the_client_broke_off() -> None:
    def broken(connection: socket.socket) -> None:
        connection.sendall(b"x")
        with pytest.raises(ConnectionResetError):
            connection.recv(16)

    with distant(broken, 0.002, 40) as client:
        assert client.recv(16) == b"x"
        break_off(client)


def test_a_server_that_is_not_there_resets_the_connection() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody else gets the port, and nobody listens there
        with (
            relay(f"127.0.0.1:{taken.getsockname()[1]}", 0.002, 40) as (_, address),
            socket.create_connection(address, HANG_S) as client,
            pytest.raises(ConnectionResetError),
        ):
            client.recv(16)


def test_it_ends_with_its_stdin_and_its_connections_with_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(HANG_S)
        to = f"127.0.0.1:{listener.getsockname()[1]}"
        with (
            relay(to, 0.002, 40) as (process, address),
            socket.create_connection(address, HANG_S) as client,
            listener.accept()[0] as far,
        ):
            far.settimeout(HANG_S)
            assert process.poll() is None and process.stdin
            process.stdin.close()
            assert process.wait(HANG_S) == 0
            assert far.recv(16) == client.recv(16) == b""
