"""The HTTP layer over a real loopback socket: routes, limits, open connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from cluster.ports import free_port
from support.clusters import NAMESPACE, manifest
from support.patience import HANG_S
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.agents import endpoint, gate
from trainjob_operator.agents.callers import bearer
from trainjob_operator.agents.coordinator import Coordinator
from trainjob_operator.clock import SystemClock
from trainjob_operator.cluster import JobKey
from trainjob_operator.core.model import PodPhase, PodView

TOKEN = "token"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


async def no_owner(key: JobKey) -> str | None:
    return None


def report(slot: int = 0, seq: int = 1, **fields: Any) -> dict[str, Any]:
    identity = {
        "namespace": NAMESPACE,
        "job": "digits",
        "job_uid": "job-uid",
        "slot": slot,
        "pod": f"digits-{slot}",
        "pod_uid": f"pod-{slot}",
    }
    return {**identity, "boot": 1, "seq": seq, "address": f"10.0.0.{slot}:7000", **fields}


def job(version: str = "1", slots: str = "0-199") -> TrainJob:
    metadata = {"name": "digits", "namespace": NAMESPACE, "uid": "job-uid", "resourceVersion": version}
    return TrainJob.model_validate({**manifest(), "metadata": metadata, "status": {"slots": slots}})


def pods(count: int) -> list[PodView]:
    return [
        PodView(slot=slot, name=f"digits-{slot}", uid=f"pod-{slot}", phase=PodPhase.RUNNING) for slot in range(count)
    ]


def served(test: Callable[[Coordinator, str, aiohttp.ClientSession], Any]) -> None:
    async def main() -> None:
        coordinator = Coordinator(
            clock=SystemClock(), authenticate=bearer(TOKEN), find_owner=no_owner, master_key=b"key"
        )
        url = await coordinator.start("127.0.0.1", 0)
        try:
            async with aiohttp.ClientSession(headers=HEADERS, connector=aiohttp.TCPConnector(limit=0)) as session:
                await asyncio.wait_for(test(coordinator, url, session), HANG_S)
        finally:
            await asyncio.wait_for(coordinator.stop(), HANG_S)

    asyncio.run(main())


def test_a_sync_and_the_health() -> None:
    async def test(coordinator: Coordinator, url: str, session: aiohttp.ClientSession) -> None:
        coordinator.commit(job(), pods(1))
        async with session.post(f"{url}/v1/sync", json=report()) as response:
            assert response.status == 200
            body = await response.json()
            assert body["transition"] == 0 and body["instruction"]["do"] == contract.DO_HOLD
        async with session.get(f"{url}/healthz") as response:
            assert response.status == 200 and (await response.json())["ok"] is True

    served(test)


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{}", {"Authorization": "Bearer wrong"}, 401),
        (b"{}", {"Authorization": "Basic dG9rZW4="}, 401),
        (b"no report", HEADERS, 400),
        (b" " * (contract.SYNC_BODY_LIMIT + 1), HEADERS, 413),
    ],
)
def test_refusals_are_sentences(body: bytes, headers: dict[str, str], status: int) -> None:
    async def test(coordinator: Coordinator, url: str, session: aiohttp.ClientSession) -> None:
        async with session.post(f"{url}/v1/sync", data=body, headers=headers) as response:
            assert response.status == status
            assert len((await response.json())["error"].split()) > 3
        assert sum(coordinator.refusals.values()) == 1

    served(test)


def test_a_body_without_a_length_is_not_read() -> None:
    async def endless() -> Any:
        for _ in range(64):
            yield b" " * 16384

    async def test(coordinator: Coordinator, url: str, session: aiohttp.ClientSession) -> None:
        async with session.post(f"{url}/v1/sync", data=endless()) as response:
            assert response.status == 411 and "Content-Length" in (await response.json())["error"]
        assert coordinator.syncs == 0

    served(test)


async def raw(
    url: str, token: str, length: int, sent: bytes, *headers: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request whose body does not come whole."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    sized = ("Host: x", f"Authorization: Bearer {token}", f"Content-Length: {length}", *headers)
    writer.write("".join(f"{line}\r\n" for line in ("POST /v1/sync HTTP/1.1", *sized, "")).encode() + sent)
    await writer.drain()
    return reader, writer


def test_a_bad_token_is_refused_before_its_body_has_come() -> None:
    async def test(coordinator: Coordinator, url: str, session: aiohttp.ClientSession) -> None:
        reader, writer = await raw(url, "wrong", 200_000, b"{")
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")
        writer.close()

    served(test)


def test_who_asks_whether_the_body_is_wanted_is_told() -> None:
    async def test(coordinator: Coordinator, url: str, session: aiohttp.ClientSession) -> None:
        coordinator.commit(job(), pods(1))
        body = json.dumps(report()).encode()
        reader, writer = await raw(url, TOKEN, len(body), b"", "Expect: 100-Continue")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        reader, writer = await raw(url, "wrong", len(body), b"", "Expect: 100-continue")
        assert (await reader.readline()).startswith(b"HTTP/1.1 401"), "not before the token was checked"
        writer.close()

    served(test)


def test_a_body_that_came_with_its_head_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "SYNC_BODY_LIMIT", 100)

    async def test(coordinator: Coordinator, url: str, session: aiohttp.ClientSession) -> None:
        for length, status in ((100, b"400"), (101, b"413")):
            reader, writer = await raw(url, TOKEN, length, b" " * length)
            assert (await reader.readline()).startswith(b"HTTP/1.1 " + status)
            writer.close()
        assert coordinator.refusals["too large"] == 1

    served(test)


def test_all_bodies_together_are_bounded() -> None:
    async def test(coordinator: Coordinator, url: str, session: aiohttp.ClientSession) -> None:
        coordinator.commit(job(), pods(1))
        coordinator._endpoint._room = endpoint._Room(300_000)
        slow = [await raw(url, TOKEN, 200_000, b"{") for _ in range(2)]
        await until(lambda: len(coordinator._endpoint._room._waiting) == 1)
        body = json.dumps(report()).encode()
        reader, writer = await raw(url, TOKEN, len(body), body[:1])
        await until(lambda: len(coordinator._endpoint._room._waiting) == 2)
        writer.write(body[1:])
        for _, other in slow:
            other.close()
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        assert coordinator._endpoint._room._left == 300_000

    served(test)


def test_a_body_that_came_with_its_head_waits_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all do; it is here already, so it takes neither room nor a timer."""
    rooms = []
    monkeypatch.setattr(endpoint._Room, "take", lambda self, count: rooms.append(count))

    async def test(coordinator: Coordinator, url: str, session: aiohttp.ClientSession) -> None:
        coordinator.commit(job(), pods(1))
        body = json.dumps(report()).encode()
        reader, writer = await raw(url, TOKEN, len(body), body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()

    served(test)
    assert not rooms


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/", 404), ("POST", "/v1/other", 404), ("GET", "/v1/sync", 405)]
)
def test_other_routes_are_refused(method: str, path: str, status: int) -> None:
    async def test(coordinator: Coordinator, url: str, session: aiohttp.ClientSession) -> None:
        async with session.request(method, f"{url}{path}") as response:
            assert response.status == status
            assert len((await response.json())["error"].split()) > 3
        assert coordinator.syncs == 0

    served(test)


def test_two_hundred_open_polls_are_answered_by_one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    # However few files this process may open: those that come at once would be more than it lets in.
    monkeypatch.setattr(gate, "bounds_of", lambda files: gate.Bounds())

    async def test(coordinator: Coordinator, url: str, session: aiohttp.ClientSession) -> None:
        count = 200
        coordinator.commit(job(), pods(count))

        async def sync(slot: int, seq: int, acknowledged: Any) -> Any:
            async with session.post(f"{url}/v1/sync", json=report(slot, seq, acknowledged=acknowledged)) as response:
                return (await response.json())["instruction"]

        holds = await asyncio.gather(*(sync(slot, 1, None) for slot in range(count)))
        polls = [asyncio.ensure_future(sync(slot, 2, holds[slot])) for slot in range(count)]
        await until(lambda: len(coordinator._polls) == count)
        coordinator.commit(job(version="2", slots=""), pods(count))
        words = await asyncio.gather(*polls)
        assert {word["do"] for word in words} == {contract.DO_EXIT}

    served(test)


def test_a_client_that_hangs_up_leaves_no_poll_behind() -> None:
    async def test(coordinator: Coordinator, url: str, session: aiohttp.ClientSession) -> None:
        coordinator.commit(job(), pods(1))
        hold = {"do": contract.DO_HOLD, "grace_s": 0.0}
        poll = asyncio.ensure_future(session.post(f"{url}/v1/sync", json=report(acknowledged=hold)))
        await until(lambda: len(coordinator._polls) > 0)
        poll.cancel()
        await until(lambda: len(coordinator._polls) == 0)

    served(test)


def test_stop_frees_the_port_and_does_not_wait_for_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "LONG_POLL_S", 2 * HANG_S)

    async def main() -> None:
        coordinator = Coordinator(
            clock=SystemClock(), authenticate=bearer(TOKEN), find_owner=no_owner, master_key=b"key"
        )
        url = await coordinator.start("127.0.0.1", free_port())
        coordinator.commit(job(), pods(1))
        async with aiohttp.ClientSession(headers=HEADERS) as session:
            poll = asyncio.ensure_future(
                session.post(f"{url}/v1/sync", json=report(acknowledged={"do": contract.DO_HOLD, "grace_s": 0.0}))
            )
            await until(lambda: len(coordinator._polls) > 0)
            await asyncio.wait_for(coordinator.stop(), HANG_S)
            assert (await poll).status == 200
        second = Coordinator(clock=SystemClock(), authenticate=bearer(TOKEN), find_owner=no_owner, master_key=b"key")
        assert await second.start("127.0.0.1", int(url.rsplit(":", 1)[1])) == url
        await second.stop()

    asyncio.run(main())


def test_a_taken_port_is_an_error_and_leaves_nothing_open() -> None:
    async def test(coordinator: Coordinator, url: str, session: aiohttp.ClientSession) -> None:
        other = Coordinator(clock=SystemClock(), authenticate=bearer(TOKEN), find_owner=no_owner, master_key=b"key")
        with pytest.raises(OSError):
            await other.start("127.0.0.1", int(url.rsplit(":", 1)[1]))

    served(test)


async def until(condition: Callable[[], bool]) -> None:
    """Real time: wait for a condition with a deadline."""
    async with asyncio.timeout(HANG_S):
        while not condition():  # noqa: ASYNC110 (the condition is inside the coordinator)
            await asyncio.sleep(0.01)


def test_the_report_of_the_contract_is_what_is_read() -> None:
    """Every field of the contract's AgentReport is read here under the same name."""
    from trainjob_operator.agents.reports import Report

    assert set(contract.AgentReport.__annotations__) == set(Report.model_fields)
    assert json.dumps(report())
