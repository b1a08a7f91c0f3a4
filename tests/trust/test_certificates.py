"""The Secret and what is made from it: create-if-absent, never anew, renewed in time, one clear error."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import itertools
import json
import socket
import ssl
import tracemalloc
from asyncio import sslproto
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from support.patience import HANG_S
from support.strict_tls import as_from_python_3_13
from support.trust import MemoryApi, client_context, decoded
from support.virtual_time import EPOCH
from trainjob_api import contract
from trainjob_operator.agents.callers import Authenticate, bearer
from trainjob_operator.agents.coordinator import Coordinator
from trainjob_operator.clock import SystemClock
from trainjob_operator.trust.certificates import CA_LIFETIME, RENEW_BEFORE, SERVER_LIFETIME, BadSecret, Trust, ensure

PATH = "/api/v1/namespaces/system/secrets/coordinator"
NAMES = ("trainjob-coordinator.system.svc", "localhost", "127.0.0.1")


def made(api: MemoryApi, names: tuple[str, ...] = NAMES, **arguments: Any) -> Trust:
    return asyncio.run(ensure(api, "system", "coordinator", names, **arguments))


def test_it_is_made_once_and_read_from_then_on() -> None:
    api = MemoryApi()
    first, second = made(api), made(api)
    assert first.ca_pem == second.ca_pem and first.master_key == second.master_key and len(first.master_key) == 32
    assert api.calls == [("GET", PATH), ("POST", PATH.rpartition("/")[0]), ("GET", PATH)]
    assert api.objects[PATH]["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "trainjob"}
    assert "PRIVATE" not in repr(first) and repr(first.master_key) not in repr(first)


def test_of_two_that_make_it_at_once_both_use_the_one_that_was_first() -> None:
    api = MemoryApi()

    async def both() -> list[Trust]:
        step = asyncio.Barrier(2)

        async def together() -> None:
            if len(api.calls) <= 4:  # both read, both find nothing, both create
                await step.wait()

        api.before = together
        return await asyncio.gather(*(ensure(api, "system", "coordinator", NAMES) for _ in range(2)))

    one, other = asyncio.run(both())
    assert one.ca_pem == other.ca_pem and one.master_key == other.master_key
    assert [verb for verb, _ in api.calls] == ["GET", "GET", "POST", "POST", "GET"]


def test_the_authority_is_good_for_ten_years_and_for_nothing_but_servers() -> None:
    api = MemoryApi()
    made(api)
    authority = x509.load_pem_x509_certificate(decoded(api.objects[PATH])["ca.crt"])
    assert authority.not_valid_after_utc - SystemClock().now() > CA_LIFETIME - timedelta(minutes=5)
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert constraints.ca and constraints.path_length == 0


async def served(trust: Trust, authenticate: Authenticate | None = None) -> tuple[Coordinator, int]:
    async def nobody(key: object) -> str | None:
        return None

    coordinator = Coordinator(
        clock=SystemClock(),
        authenticate=authenticate or bearer("t"),
        find_owner=nobody,
        master_key=trust.master_key,
    )
    url = await coordinator.start("127.0.0.1", 0, trust.ssl_context)
    assert url.startswith("https://127.0.0.1:")
    return coordinator, int(url.rpartition(":")[2])


async def shown_certificate(port: int, ca_pem: str, name: str) -> x509.Certificate:
    context = client_context(ca_pem)
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # what newer Pythons do by themselves
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(der)


@pytest.mark.parametrize("name", NAMES)
def test_a_strict_client_believes_each_name(name: str) -> None:
    async def main() -> None:
        trust = await ensure(MemoryApi(), "system", "coordinator", NAMES)
        coordinator, port = await served(trust)
        shown = await shown_certificate(port, trust.ca_pem, name)
        assert timedelta(days=89) < shown.not_valid_after_utc - SystemClock().now() <= SERVER_LIFETIME
        await coordinator.stop()

    asyncio.run(main())


def test_a_waiting_connection_is_small() -> None:
    """Thousands of agents wait; asyncio alone keeps 256 KiB for each of them."""

    async def main() -> None:
        trust = await ensure(MemoryApi(), "system", "coordinator", NAMES)
        coordinator, port = await served(trust)
        context = client_context(trust.ca_pem)

        def connected() -> ssl.SSLSocket:
            return context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="localhost")

        first = await asyncio.to_thread(connected)  # what is made once for all
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        clients = [await asyncio.to_thread(connected) for _ in range(20)]
        each = (tracemalloc.get_traced_memory()[0] - before) / 20
        tracemalloc.stop()
        for client in (first, *clients):
            client.close()
        await coordinator.stop()
        assert each < 12 * 1024, f"{each / 1024:.0f} KiB"

    asyncio.run(main())


def test_an_agent_that_waits_is_small() -> None:
    """Its open poll takes less than its connection: neither a task nor the head of its request."""

    async def main() -> None:
        trust = await ensure(MemoryApi(), "system", "coordinator", NAMES)
        coordinator, port = await served(trust)
        context, agents = client_context(trust.ca_pem), 20

        def polled(slot: int) -> ssl.SSLSocket:
            client = context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="localhost")
            identity = {"namespace": "n", "job": "j", "job_uid": "u", "slot": slot, "pod_uid": f"pod-{slot}"}
            said = {**identity, "boot": 1, "seq": 1, "acknowledged": {"do": contract.DO_WAIT}}
            body = json.dumps(said).encode()
            lines = ("POST /v1/sync HTTP/1.1", "Host: x", "Authorization: Bearer t", f"Content-Length: {len(body)}")
            client.sendall("".join(f"{line}\r\n" for line in (*lines, "")).encode() + body)
            return client

        first = await asyncio.to_thread(polled, agents)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        clients = [await asyncio.to_thread(polled, slot) for slot in range(agents)]
        async with asyncio.timeout(HANG_S):
            while coordinator.connected() <= agents:  # noqa: ASYNC110 (real sockets)
                await asyncio.sleep(0.01)
        each = (tracemalloc.get_traced_memory()[0] - before) / agents
        tracemalloc.stop()
        for client in (first, *clients):
            client.close()
        await coordinator.stop()
        assert each < 10 * 1024, f"{each / 1024:.0f} KiB"

    asyncio.run(main())


def test_what_connections_bring_at_the_same_time_is_not_mixed() -> None:
    """They read into one buffer."""

    async def main() -> None:
        trust, heard = await ensure(MemoryApi(), "system", "coordinator", NAMES), []

        async def authenticate(token: str) -> None:
            heard.append(token)

        coordinator, port = await served(trust, authenticate)
        context = client_context(trust.ca_pem)
        tokens = [f"{number:02}" * 700 for number in range(20)]
        streams = [await asyncio.open_connection("localhost", port, ssl=context) for _ in tokens]
        head = "POST /v1/sync HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nAuthorization: Bearer "
        requests = [f"{head}{token}\r\n\r\n".encode() for token in tokens]
        for begin in range(0, max(map(len, requests)), 100):
            for (_, writer), request in zip(streams, requests, strict=True):
                writer.write(request[begin : begin + 100])
            await asyncio.sleep(0)
        for reader, _ in streams:
            assert b" 401 " in await reader.readline()
        assert sorted(heard) == tokens
        for _, writer in streams:
            writer.transport.abort()
        await coordinator.stop()

    asyncio.run(main())


def test_other_parts_of_the_process_read_as_much_as_they_did() -> None:
    """The lists of an API server are long, and its connections few."""

    async def main() -> None:
        before = sslproto.SSLProtocol.max_size
        coordinator, _ = await served(await ensure(MemoryApi(), "system", "coordinator", NAMES))
        await coordinator.stop()
        assert sslproto.SSLProtocol.max_size == before >= 64 * 1024

    asyncio.run(main())


def test_other_names_and_other_authorities_are_not_believed() -> None:
    async def main() -> None:
        trust = await ensure(MemoryApi(), "system", "coordinator", NAMES)
        stranger = await ensure(MemoryApi(), "system", "coordinator", NAMES)
        coordinator, port = await served(trust)
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            await shown_certificate(port, trust.ca_pem, "trainjob-coordinator.other.svc")
        with pytest.raises(ssl.SSLCertVerificationError):
            await shown_certificate(port, stranger.ca_pem, "localhost")
        await coordinator.stop()

    asyncio.run(main())


def test_a_renewed_certificate_is_shown_to_new_connections_and_old_ones_stay() -> None:
    async def main() -> None:
        trust = await ensure(MemoryApi(), "system", "coordinator", NAMES)
        coordinator, port = await served(trust)
        connector = aiohttp.TCPConnector(ssl=client_context(trust.ca_pem))
        async with aiohttp.ClientSession(connector=connector) as session:
            url = f"https://localhost:{port}/healthz"
            assert (await session.get(url)).status == 200
            before = await shown_certificate(port, trust.ca_pem, "localhost")
            trust.renew()
            after = await shown_certificate(port, trust.ca_pem, "localhost")
            assert before.serial_number != after.serial_number and before.issuer == after.issuer
            assert (await session.get(url)).status == 200
        await coordinator.stop()

    asyncio.run(main())


class JumpingClock:
    """Each sleep is over at once; after `hours` of them the test is."""

    def __init__(self, hours: int) -> None:
        self.seconds, self.left = 0.0, hours

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep_until(self, deadline: float) -> None:
        if not self.left:
            raise asyncio.CancelledError
        self.left -= 1
        self.seconds = deadline


def test_it_is_renewed_before_it_ends() -> None:
    clock = JumpingClock(24 * 365)
    shown: list[tuple[datetime, datetime]] = []

    class Context(ssl.SSLContext):
        def load_cert_chain(self, certfile: Any, *rest: Any) -> None:
            certificate = x509.load_pem_x509_certificate(Path(certfile).read_bytes())
            shown.append((clock.now(), certificate.not_valid_after_utc))
            super().load_cert_chain(certfile, *rest)

    async def main() -> None:
        trust = await ensure(MemoryApi(), "system", "coordinator", NAMES, clock)
        await dataclasses.replace(trust, ssl_context=Context(ssl.PROTOCOL_TLS_SERVER)).keep_fresh()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    assert len(shown) == 7
    for (_, end), (renewed_at, _) in itertools.pairwise(shown):
        assert RENEW_BEFORE - timedelta(hours=2) <= end - renewed_at <= RENEW_BEFORE


def other_key() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ca.crt": None}, "ca.crt is missing"),
        ({"ca.key": None, "master.key": b""}, "ca.key and master.key are missing"),
        ({"ca.crt": b"text"}, "ca.crt is no certificate in PEM form"),
        ({"ca.key": b"text"}, "ca.key is no private key in PEM form"),
        ({"ca.key": other_key()}, "ca.key is not the key of ca.crt"),
        ({"master.key": b"short"}, "master.key has 5 bytes, 32 are the least"),
    ],
)
def test_a_secret_that_cannot_be_used_is_one_error_that_says_what_to_do(
    change: dict[str, bytes | None], words: str
) -> None:
    api = MemoryApi()
    made(api)
    data = api.objects[PATH]["data"]
    for name, value in change.items():
        data.pop(name)
        if value is not None:
            data[name] = base64.b64encode(value).decode()
    with pytest.raises(BadSecret) as raised:
        made(api)
    text = str(raised.value)
    assert (
        words in text and "Secret system/coordinator" in text and "kubectl -n system delete secret coordinator" in text
    )
    assert [verb for verb, _ in api.calls] == ["GET", "POST", "GET"], "it is never written again"


def test_what_is_no_base64_or_empty_is_the_same_error() -> None:
    for broken in ({"data": {"ca.crt": "%"}}, {"data": None}, {}):
        api = MemoryApi()
        api.put(PATH, {"metadata": {"name": "coordinator"}, **broken})
        with pytest.raises(BadSecret, match=r"missing|base64"):
            made(api)


def test_an_authority_that_ended_is_an_error() -> None:
    api = MemoryApi()
    made(api)

    class Later(SystemClock):
        def now(self) -> Any:
            return super().now() + CA_LIFETIME

    with pytest.raises(BadSecret, match=r"ca.crt ended on 2\d\d\d-"):
        made(api, clock=Later())


def test_an_authority_of_another_make_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chart, or a company's own tool, may have made it: RSA, without a subject key identifier."""
    as_from_python_3_13(monkeypatch)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Company CA")])
    now = SystemClock().now()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=10))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    content = {"ca.crt": certificate.public_bytes(serialization.Encoding.PEM), "ca.key": pem, "master.key": b"k" * 64}

    async def main() -> None:
        api = MemoryApi()
        api.put(
            PATH,
            {
                "metadata": {"name": "coordinator"},
                "data": {k: base64.b64encode(v).decode() for k, v in content.items()},
            },
        )
        trust = await ensure(api, "system", "coordinator", NAMES)
        coordinator, port = await served(trust)
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client_context(trust.ca_pem), server_hostname="localhost"
        )
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        assert x509.load_der_x509_certificate(der).not_valid_after_utc <= certificate.not_valid_after_utc, (
            "not beyond its authority's own end"
        )
        await coordinator.stop()

    asyncio.run(main())
