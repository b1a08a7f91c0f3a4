"""What strangers can do over real TLS sockets: nothing. Each is refused with a sentence, counted, and changes
nothing.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from support.patience import HANG_S
from support.trust import CoordinatorThread, MemoryApi, client_context
from trainjob_api import contract
from trainjob_operator.agents.rate_limit import BURST_PER_POD
from trainjob_operator.cluster import Unavailable
from trainjob_operator.trust.certificates import Trust, ensure
from trainjob_operator.trust.tokens import TokenCheck

PODS = {0: "pod-0", 1: "pod-1"}
OTHERS = {0: "other-pod"}


class Site:
    """A coordinator with two jobs, `digits` and `other`, and clients."""

    def __init__(self, namespaces: tuple[str, ...]) -> None:
        self.api = MemoryApi()
        self.trust: Trust = asyncio.run(ensure(MemoryApi(), "system", "coordinator", ("127.0.0.1",)))
        self.thread = CoordinatorThread(TokenCheck(self.api, contract.TOKEN_AUDIENCE, namespaces), self.trust)
        self.thread.commit(PODS)
        self.thread.commit(OTHERS, name="other", uid="uid-2")

    def token(self, pod: str = "digits-0", uid: str = "pod-0", **arguments: Any) -> str:
        return self.api.signers[0].token(pod, uid, **{"now": time.time(), **arguments})

    def post(
        self, token: str, body: bytes | dict[str, Any] | None = None, times: int = 1
    ) -> tuple[int, dict[str, Any], Any]:
        """The last answer: status, body, headers."""
        content = body if isinstance(body, bytes) else json.dumps(body or report()).encode()

        async def go() -> tuple[int, dict[str, Any], Any]:
            async with aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=client_context(self.trust.ca_pem))
            ) as session:
                for _ in range(times):
                    async with session.post(
                        f"{self.thread.url}/v1/sync", data=content, headers={"Authorization": f"Bearer {token}"}
                    ) as answer:
                        last = answer.status, await answer.json(), answer.headers
                return last

        return asyncio.run(go())


@pytest.fixture(params=[(), ("default",)], ids=["by review", "by keys"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    made = Site(request.param)
    yield made
    made.thread.stop()


def report(job: str = "digits", slot: int = 0, uid: str = "pod-0", **fields: Any) -> dict[str, Any]:
    identity = {
        "namespace": "default",
        "job": job,
        "job_uid": "uid-1",
        "slot": slot,
        "pod": f"{job}-{slot}",
        "pod_uid": uid,
    }
    return {**identity, "boot": 1, "seq": 1, "address": "10.0.0.1:7000", **fields}


def test_the_right_pod_is_answered(site: Site) -> None:
    status, body, _ = site.post(site.token())
    assert status == 200 and body["instruction"]["do"] == contract.DO_HOLD
    assert set(site.thread.views()) == {"pod-0"} and site.thread.refusals == {}


@pytest.mark.parametrize(
    ("token", "body", "status", "why"),
    [
        ({"now": time.time() - 7200}, {}, 401, "wrong token"),
        ({"aud": ["https://kubernetes.default.svc"]}, {}, 401, "wrong token"),
        ({"pod": "other-0", "uid": "other-pod"}, {}, 403, "foreign pod"),
        # Its own UID, another job's name: UIDs are unique, names of jobs are free to say.
        ({"pod": "other-0", "uid": "other-pod"}, {"uid": "other-pod"}, 403, "foreign pod"),
        # An older pod of the same name: its token lives longer than it.
        ({"pod": "digits-0", "uid": "zombie"}, {}, 403, "foreign pod"),
        ({"pod": "digits-1", "uid": "pod-1"}, {"uid": "pod-1"}, 403, "foreign pod"),
        ({"pod": "digits-x", "uid": "stray"}, {"uid": "stray"}, 403, "foreign pod"),
        ({}, {"job": "other"}, 403, "foreign pod"),
        ({}, {"namespace": "kube-system"}, 403, "foreign pod"),
    ],
    ids=[
        "expired",
        "audience",
        "other's pod",
        "other's pod under its UID",
        "zombie",
        "another slot",
        "no worker's name",
        "own pod for another job",
        "another namespace",
    ],
)
def test_strangers_are_refused_counted_and_change_nothing(
    site: Site, token: dict[str, Any], body: dict[str, Any], status: int, why: str
) -> None:
    answered, text, _ = site.post(site.token(**token), report(**body))
    assert answered == status and len(text["error"].split()) > 5
    assert "instruction" not in text
    assert site.thread.refusals == {why: 1}
    assert site.thread.views() == {} and site.thread.views("other") == {}


def test_a_pod_of_its_own_name_that_the_job_does_not_own_learns_nothing(site: Site) -> None:
    """Somebody with the right to create pods there gave one the name that a worker would have."""
    site.thread.commit(PODS, slots="0-1")
    status, text, _ = site.post(site.token("digits-0", "stray"), report(uid="stray"))
    assert status == 200 and text["instruction"] == {"do": contract.DO_WAIT}


@pytest.mark.parametrize(
    "body",
    [b" " * (contract.SYNC_BODY_LIMIT + 1), b"{" * 200_000, b"[1]", b"\xff"],
    ids=["too large", "nested", "a list", "no text"],
)
def test_bodies_that_are_no_reports_are_refused(site: Site, body: bytes) -> None:
    status, text, _ = site.post(site.token(), body)
    assert status == (413 if len(body) > contract.SYNC_BODY_LIMIT else 400) and text["error"]
    assert sum(site.thread.refusals.values()) == 1 and site.thread.views() == {}


def test_one_that_asks_too_often_is_sent_away_for_a_while_and_others_are_not(site: Site) -> None:
    last = site.post(site.token(), times=int(BURST_PER_POD) + 40)
    for _ in range(20):
        if last[0] == 429:
            break
        last = site.post(site.token(), times=20)
    status, text, headers = last
    assert status == 429 and int(headers["Retry-After"]) >= 1 and "default/digits" in text["error"]
    assert site.thread.refusals["too often"] >= 1
    status, _, _ = site.post(
        site.token("other-0", "other-pod"), {**report("other", uid="other-pod"), "job_uid": "uid-2"}
    )
    assert status == 200


def test_while_tokens_cannot_be_checked_nobody_is_told_that_his_is_wrong(site: Site) -> None:
    site.api.silent = Unavailable("503 from https://10.96.0.1")
    status, text, headers = site.post(site.token())
    assert status == 503 and int(headers["Retry-After"]) == 5 and "10.96" not in text["error"]
    assert site.thread.refusals == {"token not checked": 1} and site.thread.views() == {}


def test_plain_http_is_not_answered(site: Site) -> None:
    async def go() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.thread.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        said = await asyncio.wait_for(reader.read(), HANG_S)
        writer.close()
        return said

    assert b"HTTP/1.1 200" not in asyncio.run(go())


def test_a_body_that_never_comes_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainjob_operator.agents.endpoint.BODY_TIMEOUT_S", 0.2)

    async def go() -> bytes:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", site.thread.port, ssl=client_context(site.trust.ca_pem)
        )
        shown = f"Authorization: Bearer {site.token()}\r\n".encode()
        writer.write(b"POST /v1/sync HTTP/1.1\r\nHost: x\r\n" + shown + b"Content-Length: 100\r\n\r\n{")
        said = await asyncio.wait_for(reader.readline(), HANG_S)
        writer.close()
        return said

    assert b" 408 " in asyncio.run(go())
    assert site.thread.refusals == {"too slow": 1}
