"""What is made of answers that are not the API server's: a balancer that has no way to it, a page to log in at, another
service. None of them says that a job is gone, that there are none, or that something was done.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.trainjobs import document
from trainjob.cli.cluster import connect
from trainjob.launch.cluster import cluster_run, follow, jobs_api
from trainjob.launch.cluster.api import Api, ApiError
from trainjob_api import contract

JOB = {**document(), "metadata": {"name": "digits", "namespace": "team", "uid": "u", "resourceVersion": "1"}}
Answer = tuple[int, str]


class Server:
    """Answers each request with the next of `answers`; the last one for ever."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.asked.append(f"{self.command} {self.path}")
                assert len(outer.asked) < 50, "it would go on for ever"
                status, text = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            do_POST = do_PATCH = do_DELETE = do_GET

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def api(server: Server, tmp_path: Path) -> Api:
    path = tmp_path / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server.server_port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
    }
    path.write_text(json.dumps(config))
    return Api.connect(kubeconfig=str(path))


def said(code: int, **fields: Any) -> Answer:
    return code, json.dumps({"kind": "Status", "apiVersion": "v1", **fields})


GONE = said(404, message='trainjobs "digits" not found', reason="NotFound", details={"name": "digits"})
OTHERS = {
    "a balancer": (404, "<html><h1>404 Not Found</h1></html>"),
    "nothing": (404, ""),
    "an ingress": (404, "default backend - 404"),
    "another service": (404, '{"details": {"name": "digits"}}'),
    "no name": said(404, message="no such thing", reason="NotFound", details={}),
    "a firewall": (403, "RBAC: access denied"),
    "a gateway": (400, "<html>Bad Request</html>"),
    "a health page": (200, '{"status": "ok"}'),
    "items alone": (200, '{"items": []}'),
    "a list": (200, "[]"),
    "a page": (200, "<html>please log in</html>"),
    "a word": said(200, status="Success"),
}
VERBS: dict[str, Callable[[Api], object]] = {
    "get": lambda api: jobs_api.get(api, "team", "digits"),
    "list": lambda api: api.items(jobs_api.collection(None)),
    "create": lambda api: api.create(jobs_api.collection("team"), {}),
    "patch": lambda api: jobs_api.restart(api, "team", "digits"),
}


@pytest.mark.parametrize("answer", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_what_somebody_else_answers_is_no_word_of_the_api_servers(
    server: Server, api: Api, verb: Callable[[Api], object], answer: Answer
) -> None:
    server.answers = [answer]
    with pytest.raises(ApiError, match="something between here and the API server answers in its place") as raised:
        verb(api)
    assert raised.value.passing and not raised.value.absent
    assert connect.code_of(raised.value) == contract.CLI_NO_ACCESS, "not the code of a job that is not there"


def test_what_is_removed_may_be_answered_with_a_status(server: Server, api: Api) -> None:
    server.answers = [OTHERS["a word"], OTHERS["a health page"]]
    jobs_api.delete(api, "team", "digits")
    with pytest.raises(ApiError, match="answers in its place"):
        jobs_api.delete(api, "team", "digits")


def test_a_list_that_never_ends_is_none(server: Server, api: Api) -> None:
    page = {"kind": "PodList", "apiVersion": "v1", "metadata": {"continue": "again"}, "items": []}
    server.answers = [(200, json.dumps(page))]
    with pytest.raises(ApiError, match="goes on where it has been"):
        api.items("/api/v1/pods")


@pytest.mark.parametrize("answer", [OTHERS["a balancer"], OTHERS["a firewall"], OTHERS["a health page"]])
def test_a_job_that_is_followed_is_gone_only_in_the_api_servers_words(
    server: Server, api: Api, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    monkeypatch.setattr(follow, "POLL_S", 0.01)
    there = (200, json.dumps(JOB))
    server.answers = [there, answer, there, GONE]
    updates = list(follow.follow(api, follow.Wanted(namespace="team", name="digits")))
    assert [update.kind for update in updates] == ["status", "note", "away", "note", "status", "gone"]
    assert "answers in its place" in updates[1].text and "was deleted" in updates[-1].text


def test_a_kind_that_is_not_served_says_of_no_job_that_it_is_gone(server: Server, api: Api) -> None:
    server.answers = [(200, json.dumps(JOB)), (404, "404 page not found\n")]
    updates = follow.follow(api, follow.Wanted(namespace="team", name="digits"))
    assert next(updates).kind == "status"
    with pytest.raises(ApiError, match="does not know TrainJobs"):
        list(updates)


def test_a_name_is_free_only_in_the_api_servers_words(
    server: Server, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_run, "RETRY_S", 0.01)
    server.answers = [OTHERS["a balancer"], OTHERS["a health page"], (200, json.dumps(JOB)), GONE]
    assert cluster_run.gone(api, "team", "digits", "u", None) and len(server.asked) == 4
    server.answers = [OTHERS["a balancer"]]
    with pytest.raises(ApiError, match="answers in its place"):
        cluster_run.make_room(api, "team", "digits")
