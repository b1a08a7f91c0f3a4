"""kubeapi.py against a real API server: what each trouble becomes, tokens that change, pages, the hook that counts."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.apiserver import ApiServer
from cluster.ports import free_port
from support.apiserver import on_apiserver
from support.kube_world import frozen
from support.trainjobs import document
from trainjob_operator.cluster import ClusterError, Conflict, NotFound, NotServed, Rejected, Unavailable
from trainjob_operator.k8s import kubeapi
from trainjob_operator.k8s.kubeapi import Api, Expired

MAPS = "/api/v1/namespaces/{}/configmaps"


@asynccontextmanager
async def connected(kubeconfig: Path | str | None) -> AsyncIterator[Api]:
    api = await Api.connect(kubeconfig=None if kubeconfig is None else str(kubeconfig))
    try:
        yield api
    finally:
        await api.close()


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


# --- With a real server -----------------------------------------------------------------------------------------------


@on_apiserver
def test_the_verbs(apiserver: ApiServer, api_namespace: str) -> None:
    async def main() -> None:
        async with connected(apiserver.kubeconfig) as api:
            path = MAPS.format(api_namespace)
            created = await api.create(path, config_map("one", a="1"))
            patched = await api.merge_patch(f"{path}/one", {"data": {"a": None, "b": "2"}})
            assert patched["data"] == {"b": "2"}
            with pytest.raises(Conflict):
                await api.replace(f"{path}/one", created)
            replaced = await api.replace(f"{path}/one", {**patched, "data": {"c": "3"}})
            assert replaced["data"] == {"c": "3"} == (await api.get(f"{path}/one"))["data"]
            with pytest.raises(Conflict):
                await api.delete(f"{path}/one", {"preconditions": {"uid": "another"}})
            await api.delete(f"{path}/one")
            with pytest.raises(NotFound, match='configmaps "one" not found'):
                await api.get(f"{path}/one")

    asyncio.run(main())


@on_apiserver
def test_refusals_carry_the_servers_words(apiserver: ApiServer, api_namespace: str) -> None:
    async def main() -> None:
        async with connected(apiserver.kubeconfig) as api:
            path = MAPS.format(api_namespace)
            await api.create(path, config_map("one"))
            with pytest.raises(Conflict, match="already exists"):
                await api.create(path, config_map("one"))
            with pytest.raises(Rejected, match="must be Never"):
                jobs = f"/apis/trainjob.dev/v1alpha1/namespaces/{api_namespace}/trainjobs"
                await api.create(jobs, document({"spec.template.spec.restartPolicy": "Always"}))
            with pytest.raises(Rejected, match="Invalid value"):
                await api.create(path, config_map("Not A Name"))
            with pytest.raises(NotServed):
                await api.get("/apis/trainjob.dev/v9/trainjobs")
            with pytest.raises(NotFound):
                await api.get(f"{path}/nobody")

    asyncio.run(main())


@on_apiserver
def test_what_the_role_does_not_allow_is_rejected_by_name(apiserver: ApiServer, api_namespace: str) -> None:
    async def main() -> None:
        async with connected(apiserver.service_account_kubeconfig(api_namespace, "default")) as api:
            with pytest.raises(
                Rejected, match=f'User "system:serviceaccount:{api_namespace}:default" cannot list resource "pods"'
            ):
                await api.list(f"/api/v1/namespaces/{api_namespace}/pods")

    asyncio.run(main())


@on_apiserver
def test_a_token_that_is_not_accepted_is_said_so(apiserver: ApiServer) -> None:
    async def main() -> None:
        async with connected(apiserver.kubeconfig_for("not-a-token")) as api:
            with pytest.raises(Unavailable, match="does not accept the token"):
                await api.get("/api/v1/namespaces/default")

    asyncio.run(main())


@on_apiserver
def test_a_token_that_the_kubelet_changed_is_read_again(
    apiserver: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ca.crt").write_bytes(apiserver.ca.read_bytes())
    monkeypatch.setattr(kubeapi, "SERVICE_ACCOUNT_FOLDER", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(apiserver.port))
    token = tmp_path / "token"
    token.write_text("an-old-one\n")

    async def main() -> None:
        async with connected(None) as api:
            with pytest.raises(Unavailable, match="does not accept"):
                await api.get("/api/v1/namespaces/default")
            token.write_text(apiserver.admin_token + "\n")
            assert (await api.get("/api/v1/namespaces/default"))["kind"] == "Namespace"
            token.unlink()  # the moment in which the kubelet swaps it
            assert (await api.get("/api/v1/namespaces/default"))["kind"] == "Namespace"

    asyncio.run(main())


@on_apiserver
def test_documents_of_another_media_type_are_read_too(apiserver: ApiServer) -> None:
    async def main() -> None:
        async with connected(apiserver.kubeconfig) as api:
            assert (await api.document("/openid/v1/jwks"))["keys"]
            assert (await api.document("/openapi/v3"))["paths"]

    asyncio.run(main())


@on_apiserver
def test_a_list_is_read_page_by_page(apiserver: ApiServer, api_namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeapi, "PAGE", 2)

    async def main() -> None:
        async with connected(apiserver.kubeconfig) as api:
            path = MAPS.format(api_namespace)
            for number in range(5):
                await api.create(
                    path,
                    {**config_map(f"page-{number}"), "metadata": {"name": f"page-{number}", "labels": {"page": "yes"}}},
                )
            calls: list[tuple[str, str, int]] = []
            api.on_call = lambda method, path, status, seconds: calls.append((method, path, status))
            names = [found["metadata"]["name"] for found in await api.list(path, {"labelSelector": "page=yes"})]
            assert names == [f"page-{number}" for number in range(5)]
            assert calls == [("GET", path, 200)] * 3

    asyncio.run(main())


@on_apiserver
def test_a_server_that_answers_nothing_is_given_up(apiserver: ApiServer) -> None:
    async def main() -> None:
        calls: list[tuple[int, float]] = []
        async with connected(apiserver.kubeconfig) as api:
            await api.get("/api/v1/namespaces/default")
            api.on_call = lambda method, path, status, seconds: calls.append((status, seconds))
            with frozen(apiserver, api), pytest.raises(Unavailable, match="no answer from https://"):
                await api.get("/api/v1/namespaces/default")
        assert calls[0][0] == 0 and calls[0][1] > 0.4

    asyncio.run(main())


@on_apiserver
@pytest.mark.slow
def test_a_server_that_goes_and_comes_back(apiserver: ApiServer) -> None:
    async def main() -> None:
        async with connected(apiserver.kubeconfig) as api:
            assert await api.get("/api/v1/namespaces/default")
            apiserver.stop_server()
            try:
                for _ in range(2):
                    with pytest.raises(Unavailable, match="no connection"):
                        await api.get("/api/v1/namespaces/default")
            finally:
                apiserver.start_server()
            assert await api.get("/api/v1/namespaces/default")

    asyncio.run(main())


# --- Without one ------------------------------------------------------------------------------------------------------

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def kubeconfig(folder: Path, server: str) -> Path:
    path = folder / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": server}}
    context = {"name": "c", "context": {"cluster": "c", "user": "c"}}
    user = {"name": "c", "user": {"token": "t"}}
    path.write_text(
        yaml.safe_dump({"clusters": [cluster], "contexts": [context], "users": [user], "current-context": "c"})
    )
    return path


@asynccontextmanager
async def answering(folder: Path, answer: bytes) -> AsyncIterator[Api]:
    """One call: this is what comes back."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, connected(kubeconfig(folder, address)) as api:
        yield api


def answered(folder: Path, answer: bytes) -> ClusterError:
    """What a call raises when this is what comes back."""

    async def main() -> ClusterError:
        async with answering(folder, answer) as api:
            with pytest.raises(ClusterError) as caught:
                await api.create("/api/v1/namespaces/x/pods", {})
            return caught.value

    return asyncio.run(main())


def reply(status: int, body: str, date: str | None = None) -> bytes:
    dated = "" if date is None else f"Date: {date}\r\n"
    return (
        f"HTTP/1.1 {status} X\r\n{dated}Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: "
        f"close\r\n\r\n{body}"
    ).encode()


@pytest.mark.parametrize("date", [None, "", "yesterday", "Wed, 25 Nov 99999 22:00:00 GMT"])
def test_an_answer_without_a_date_says_nothing_of_the_servers_clock(tmp_path: Path, date: str | None) -> None:
    async def main() -> None:
        async with answering(tmp_path, reply(200, "{}", date)) as api:
            assert await api.document("/version") == {} and api.shows() is None

    asyncio.run(main())


@pytest.mark.parametrize("status", [200, 404])
def test_what_the_servers_clock_shows_is_known_from_its_answers(tmp_path: Path, status: int) -> None:
    async def main() -> None:
        async with answering(tmp_path, reply(status, "{}", "Fri, 25 Nov 2050 22:00:00 GMT")) as api:
            assert api.shows() is None
            with contextlib.suppress(NotServed):
                await api.document("/version")
            first, then = api.shows(), datetime(2050, 11, 25, 22, tzinfo=UTC)
            await asyncio.sleep(0.01)
            later = api.shows()
            assert first is not None and later is not None and then <= first < later, "it goes on"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Rejected),
        (401, Unavailable),
        (403, Rejected),
        (405, Rejected),
        (409, Conflict),
        (410, Expired),
        (413, Rejected),
        (422, Rejected),
        (429, Unavailable),
        (500, Unavailable),
        (503, Unavailable),
        (504, Unavailable),
    ],
)
def test_what_a_status_becomes(tmp_path: Path, status: int, kind: type[ClusterError]) -> None:
    error = answered(tmp_path, reply(status, '{"kind": "Status", "message": "quota exceeded: pods"}'))
    assert type(error) is kind
    assert status == 401 or "quota exceeded: pods" in str(error)


def status_of(details: dict[str, str]) -> str:
    return json.dumps({"kind": "Status", "message": "it is not here", "reason": "NotFound", "details": details})


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (status_of({"name": "digits", "group": "trainjob.dev", "kind": "trainjobs"}), NotFound),
        (status_of({}), NotServed),
        ("404 page not found\n", NotServed),
        ("<html><h1>404 Not Found</h1>nginx</html>", NotServed),
        ("{}", NotServed),
        ('{"details": "none"}', NotServed),
        ('{"details": {"name": "digits"}}', NotServed),
        ("", NotServed),
    ],
    ids=[
        "an object",
        "a kind that is not served",
        "a path that is not",
        "a proxy",
        "no Status",
        "odd",
        "another's",
        "no words",
    ],
)
def test_only_what_names_an_object_says_that_it_is_gone(tmp_path: Path, body: str, kind: type[ClusterError]) -> None:
    """Agents of a job that is gone are sent home."""
    error = answered(tmp_path, reply(404, body))
    assert type(error) is kind and (kind is NotFound) != isinstance(error, Unavailable)
    if kind is NotServed:
        assert "POST /api/v1/namespaces/x/pods: 404" in str(error)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n<html>please log in</html>",
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 13\r\n\r\n<html></html>",
        b"SSH-2.0-OpenSSH\r\n",
        reply(200, "[1, 2]"),
        reply(400, "<html>Bad Request</html>"),
        reply(403, "RBAC: access denied"),
        reply(409, '{"error": "busy"}'),
        reply(422, ""),
    ],
    ids=[
        "nothing",
        "half an answer",
        "a login page",
        "a proxy's error",
        "another protocol",
        "no object",
        "a proxy's refusal",
        "a firewall",
        "another's conflict",
        "no words",
    ],
)
def test_what_no_api_server_says_is_unavailable(tmp_path: Path, answer: bytes) -> None:
    """The same call is worth another try: nothing was refused by the cluster."""
    error = answered(tmp_path, answer)
    assert type(error) is Unavailable and "POST /api/v1/namespaces/x/pods" in str(error)


PODS = "/api/v1/namespaces/x/pods"
VERBS: dict[str, Callable[[Api], Awaitable[object]]] = {
    "get": lambda api: api.get(f"{PODS}/a"),
    "list": lambda api: api.list(PODS),
    "page": lambda api: api.page(PODS, {"limit": "5"}),
    "create": lambda api: api.create(PODS, {}),
    "merge patch": lambda api: api.merge_patch(f"{PODS}/a", {}),
    "replace": lambda api: api.replace(f"{PODS}/a", {}),
    "delete": lambda api: api.delete(f"{PODS}/a"),
}


LISTS = "list", "page"
NO_ANSWERS = [(verb, body) for verb in VERBS for body in ("{}", '{"status": "ok"}', '{"items": []}')] + [
    (verb, '{"kind": "PodList", "apiVersion": "v1"}') for verb in LISTS
]


@pytest.mark.parametrize(("verb", "body"), NO_ANSWERS)
def test_an_answer_that_does_not_say_what_it_is_says_nothing(tmp_path: Path, verb: str, body: str) -> None:
    """A health page, another service: no list of it is an empty one, no object of it was read, written or removed."""

    async def main() -> None:
        async with answering(tmp_path, reply(200, body)) as api:
            with pytest.raises(Unavailable, match="something between here and the API server answers in its place"):
                await VERBS[verb](api)

    asyncio.run(main())


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("create", "delete")])
def test_what_is_read_or_changed_is_not_answered_with_a_status(tmp_path: Path, verb: str) -> None:
    async def main() -> None:
        body = '{"kind": "Status", "apiVersion": "v1", "status": "Success", "items": []}'
        async with answering(tmp_path, reply(200, body)) as api:
            assert (await api.delete(f"{PODS}/a"))["status"] == "Success"
        async with answering(tmp_path, reply(201, body)) as api:
            assert (await api.create(f"{PODS}/a/binding", {}))["status"] == "Success"
        async with answering(tmp_path, reply(200, body)) as api:
            with pytest.raises(Unavailable, match="answers in its place"):
                await VERBS[verb](api)

    asyncio.run(main())


def test_a_list_that_never_ends_is_none(tmp_path: Path) -> None:
    async def main() -> None:
        body = '{"kind": "PodList", "apiVersion": "v1", "metadata": {"continue": "again"}, "items": []}'
        async with answering(tmp_path, reply(200, body)) as api:
            calls = 0

            def on_call(method: str, path: str, status: int, seconds: float) -> None:
                nonlocal calls
                calls += 1
                assert calls < 10, "it would go on for ever"

            api.on_call = on_call
            with pytest.raises(Unavailable, match="goes on where it has been"):
                await api.list(PODS)

    asyncio.run(main())


@pytest.mark.parametrize("items", ["[]", "null"])
def test_an_empty_list_is_one(tmp_path: Path, items: str) -> None:
    async def main() -> None:
        body = f'{{"kind": "PodList", "apiVersion": "v1", "metadata": {{}}, "items": {items}}}'
        async with answering(tmp_path, reply(200, body)) as api:
            assert await api.list(PODS) == [] == await api.page(PODS, {})

    asyncio.run(main())


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_nobody_is_followed_elsewhere(tmp_path: Path, status: int) -> None:
    """To a balancer that sends everything on, a POST arrived as a GET: the list that it brings is no pod that was made."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).partition(b" HTTP/")[0])
        made = '{"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}}'
        elsewhere = reply(status, "").replace(b" X\r\n", b" X\r\nLocation: /elsewhere\r\n")
        writer.write(reply(200, made) if b"/elsewhere" in asked[-1] else elsewhere)
        await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, connected(kubeconfig(tmp_path, address)) as api:
            with pytest.raises(Unavailable, match=f"the answer is {status}, a redirect"):
                await api.create(PODS, {})

    asyncio.run(main())
    assert asked == [b"POST " + PODS.encode()]


def test_nobody_listens(tmp_path: Path) -> None:
    async def main() -> None:
        address = f"http://127.0.0.1:{free_port()}"
        async with connected(kubeconfig(tmp_path, address)) as api:
            with pytest.raises(Unavailable, match=f"no connection to the API server {address}"):
                await api.get("/api/v1/pods")

    asyncio.run(main())


@pytest.mark.parametrize(
    "content", [None, "", "clusters: [", "current-context: nowhere\nclusters: []\ncontexts: []\nusers: []\n"]
)
def test_a_kubeconfig_that_cannot_be_used(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)

    async def main() -> None:
        with pytest.raises(Rejected, match="no API server to talk to") as caught:
            await Api.connect(kubeconfig=str(path))
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)

    asyncio.run(main())


def test_a_pod_without_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeapi, "SERVICE_ACCOUNT_FOLDER", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    with pytest.raises(Rejected, match="the pod's service account cannot be used"):
        asyncio.run(Api.connect())
