"""File contents under way: streams that trickle are cut, memory stays bounded, connections are kept, early refusals
are heard.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import s3
from support.patience import HANG_S
from support.s3_authority import Authority
from support.s3_faults import Faults
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.stores import transfer
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.s3 import parts
from trainjob.checkpoint.stores.s3 import requests as s3_requests
from trainjob.checkpoint.stores.store import Store
from trainjob.checkpoint.stores.transfer import nothing

FOREVER_S = 2 * HANG_S


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """Replies that trickle or wait for ever; streams may stand still for a third of a second."""
    made = Faults(s3.endpoint(), delay_s=FOREVER_S)
    monkeypatch.setattr(s3_requests, "_clients", {})
    s3.use(monkeypatch, made.endpoint, timeout_s=0.3)
    yield made
    made.close()


@pytest.mark.parametrize("kind", ["throttle", "delay"])
def test_a_reply_that_trickles_is_cut_and_asked_for_again(faults: Faults, tmp_path: Path, kind: str) -> None:
    """Each byte comes in time, so that no socket's time-out ever ends it."""
    store = open_store(s3.fresh_uri())
    data = os.urandom(20_000)
    store.put("f", data)
    began = time.monotonic()
    faults.spoil(1, kind)
    assert store.read("f") == data and faults.struck
    faults.spoil(1, kind)
    assert store.download("f", str(tmp_path / "f"), nothing, store.algorithm) is not None and faults.struck
    assert (tmp_path / "f").read_bytes() == data
    assert time.monotonic() - began < HANG_S


def test_over_tls_what_has_arrived_is_taken_at_once_and_a_stream_that_stands_still_is_cut(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A server that sends the half of what it is asked for at once, and of the whole file never the rest. On a busy
    machine no byte may come in time: then it is asked for all of it again.
    """
    authority, data = Authority(tmp_path / "authority"), os.urandom(200_000)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.certificate, authority.key)
    over, asked = threading.Event(), []

    def serve(plain: socket.socket) -> None:
        with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as connection:
            while head := connection.recv(65536):
                asked.append(head)
                first, last = map(int, re.findall(rb"bytes=(\d+)-(\d+)", head)[0])
                part = data[first : last + 1]
                said = (
                    f"ETag: x\r\nContent-Length: {len(part)}\r\nContent-Range: bytes "
                    f"{first}-{first + len(part) - 1}/{len(data)}\r\n\r\n"
                )
                connection.sendall(b"HTTP/1.1 206 Partial\r\n" + said.encode() + part[: len(part) // 2])
                if first == 0 and over.wait(FOREVER_S):
                    return
                connection.sendall(part[len(part) // 2 :])

    def accept(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        monkeypatch.setattr(s3_requests, "_clients", {})
        s3.use(monkeypatch, f"https://127.0.0.1:{listener.getsockname()[1]}", timeout_s=1.0, retry_s=HANG_S)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.bundle))
        store = open_store("s3://bucket/x")
        found = store.download("f", str(tmp_path / "f"), nothing, store.algorithm)
        over.set()
    assert found is not None and (tmp_path / "f").read_bytes() == data
    starts = [int(re.findall(rb"bytes=(\d+)-", head)[0]) for head in asked]
    assert starts[0] == 0 and starts == sorted(starts) and starts[-1] > 0, "it goes on where it stopped"


def test_a_store_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It accepts a connection and reads no byte: the buffers between fill, and the upload ends with a sentence."""
    file = tmp_path / "file"
    file.write_bytes(bytes(parts.SINGLE))
    place = s3.fresh_uri()
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        monkeypatch.setattr(s3_requests, "_clients", {})
        s3.use(monkeypatch, f"http://127.0.0.1:{deaf.getsockname()[1]}", timeout_s=0.3, retry_s=0.5)
        with pytest.raises(StoreError, match="the store does not answer"):
            open_store(place).upload("f", str(file), nothing)


def test_a_store_that_refuses_before_it_has_all_is_heard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It answers after the head and hangs up, while the contents are still on their way."""
    file = tmp_path / "file"
    file.write_bytes(bytes(parts.SINGLE))
    place = s3.fresh_uri()
    text = b"<Error><Code>QuotaExceeded</Code><Message>no more</Message></Error>"

    def refuse() -> None:
        with pytest.raises(OSError):
            while True:
                near, _ = server.accept()
                with near:
                    near.recv(65536)
                    near.sendall(
                        b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
                        % (len(text), text)
                    )

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=refuse, daemon=True).start()
        monkeypatch.setattr(s3_requests, "_clients", {})
        s3.use(monkeypatch, f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=5.0)
        with pytest.raises(StoreError, match=r"QuotaExceeded no more.*quota is used up"):
            open_store(place).upload("f", str(file), nothing)
        server.shutdown(socket.SHUT_RDWR)


def test_connections_are_kept(monkeypatch: pytest.MonkeyPatch, bucket_store: Store, tmp_path: Path) -> None:
    opened: list[object] = []
    connect = socket.create_connection
    monkeypatch.setattr(
        socket, "create_connection", lambda *args, **fields: opened.append(args) or connect(*args, **fields)
    )
    file = tmp_path / "file"
    file.write_bytes(b"x" * 1000)
    for number in range(20):
        bucket_store.upload(f"f{number}", str(file), nothing)
        assert bucket_store.read(f"f{number}") == b"x" * 1000 and bucket_store.read("none") is None
        assert bucket_store.download(f"f{number}", str(tmp_path / "copy"), nothing) is not None
    assert len(opened) <= 2, "refusals end none either"


def test_an_error_keeps_nothing_alive(bucket_store: Store, tmp_path: Path) -> None:
    """A cycle would hold what the callers hold, and with it downloads, until the collector runs."""
    from botocore.exceptions import ClientError

    bucket_store.read("nothing")
    gc.collect()
    gc.disable()
    try:
        assert bucket_store.read("nothing") is None and bucket_store.size("nothing") is None
        with pytest.raises(ZeroDivisionError):
            transfer.each([1, 0, 0], lambda n: 1 // n, 2)  # type: ignore[arg-type, return-value]
        assert not [found for found in gc.get_objects() if issubclass(type(found), ZeroDivisionError | ClientError)]
    finally:
        gc.enable()


_MOVE = """
import resource, sys
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.transfer import nothing
uri, small, large, copy = sys.argv[1:]
store = open_store(uri)
store.upload("small", small, nothing)
store.download("small", copy, nothing, store.algorithm)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
stored = store.upload("large", large, nothing)
assert store.download("large", copy, nothing, store.algorithm) == stored
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """A quarter of a GiB goes there and comes back through a process that holds a few MiB of it at a time."""
    small, large, copy = tmp_path / "small", tmp_path / "large", tmp_path / "copy"
    small.write_bytes(b"x")
    with large.open("wb") as file:
        file.truncate(256 << 20)
    roots = os.pathsep.join(entry for entry in sys.path if entry.endswith(("/operator", "/worker-image")))
    env = {**os.environ, **s3.environment(s3.endpoint()), "PYTHONPATH": roots}
    words = [sys.executable, "-c", _MOVE, s3.fresh_uri(), str(small), str(large), str(copy)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 48, "MiB"
    assert copy.stat().st_size == 256 << 20
