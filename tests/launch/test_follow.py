"""Following a job on a real API server that goes away, and a name that changes hands."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cluster.apiserver import ApiServer
from support.apiserver import on_apiserver
from support.cluster_cli import attempt, condition
from support.log_kubelet import LogKubelet
from support.trainjobs import document
from trainjob.launch.cluster import follow, pod_log
from trainjob.launch.cluster.api import Api, ApiError
from trainjob.launch.outcome import log_choice as ranks

pytestmark = on_apiserver


@pytest.fixture
def api(apiserver: ApiServer) -> Api:
    return Api.connect(kubeconfig=str(apiserver.kubeconfig))


def jobs(namespace: str) -> str:
    return f"/apis/trainjob.dev/v1alpha1/namespaces/{namespace}/trainjobs"


def status(server: ApiServer, namespace: str, **fields: Any) -> None:
    server.request("PATCH", f"{jobs(namespace)}/digits/status", {"status": fields})


def until(updates: Iterator[follow.Update], kind: str) -> follow.Update:
    return next(update for update in updates if update.kind == kind)


def test_a_job_that_nobody_knows_is_an_error_at_once(api: Api, api_namespace: str) -> None:
    with pytest.raises(ApiError, match="there is no TrainJob digits") as raised:
        next(follow.follow(api, follow.Wanted(namespace=api_namespace, name="digits")))
    assert raised.value.status == 404


def test_another_job_of_the_name_ends_it(apiserver: ApiServer, api: Api, api_namespace: str) -> None:
    apiserver.request("POST", jobs(api_namespace), document())
    updates = follow.follow(api, follow.Wanted(namespace=api_namespace, name="digits"))
    until(updates, "status")
    apiserver.request("DELETE", f"{jobs(api_namespace)}/digits")
    apiserver.request("POST", jobs(api_namespace), document())
    assert "a new one of that name" in until(updates, "gone").text
    assert list(updates) == []


def test_an_api_server_that_is_away_is_waited_for_and_no_line_is_lost(
    apiserver: ApiServer, api: Api, api_namespace: str, tmp_path: Path
) -> None:
    job = apiserver.request("POST", jobs(api_namespace), document({"spec.workers": 1}))
    with LogKubelet(apiserver, api_namespace) as kubelet:
        kubelet.pod(job, 0)
        status(apiserver, api_namespace, slots="0", attempt=attempt(1, "0", 1))
        kubelet.write("digits-0", "r00 | before")
        updates = follow.follow(
            api, follow.Wanted(namespace=api_namespace, name="digits", logs=True, selection=ranks.ALL)
        )
        assert until(updates, "line").text == "r00 | before"
        apiserver.stop_server()
        kubelet.write("digits-0", "r00 | meanwhile")
        assert "gives no answer" in until(updates, "note").text
        until(updates, "away")
        apiserver.start_server()
        kubelet.write("digits-0", "r00 | after")
        assert [until(updates, "line").text, until(updates, "line").text] == ["r00 | meanwhile", "r00 | after"]
        kubelet.finish("digits-0")
        status(apiserver, api_namespace, conditions=[condition("Complete", "True", "AllRanksSucceeded")])
        last = list(updates)
        assert [update.kind for update in last if update.kind == "line"] == []
        assert last[-1].job is not None
        assert last[-1].job.status.finished


@pytest.fixture
def wanted(apiserver: ApiServer, api_namespace: str) -> Iterator[follow.Wanted]:
    """A job of two pods, each of which has written a line."""
    job = apiserver.request("POST", jobs(api_namespace), document({"spec.workers": 2}))
    with LogKubelet(apiserver, api_namespace) as kubelet:
        for slot in (0, 1):
            kubelet.pod(job, slot)
            kubelet.write(f"digits-{slot}", f"r0{slot} | begins")
        status(apiserver, api_namespace, slots="0-1", attempt=attempt(1, "0-1", 1))
        yield follow.Wanted(namespace=api_namespace, name="digits", logs=True, selection=ranks.ALL)


def test_a_reader_that_can_go_on_no_longer_says_so_and_others_go_on(
    api: Api, wanted: follow.Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = pod_log.PodLog.follow

    def fails_for_one(self: pod_log.PodLog, emit: Callable[[str], None]) -> None:
        if self._target.pod == "digits-0":
            raise ValueError("no such line")
        read(self, emit)

    monkeypatch.setattr(pod_log.PodLog, "follow", fails_for_one)
    with closing(follow.follow(api, wanted)) as updates:
        told = [next(update for update in updates if update.kind in ("note", "line")).text for _ in range(2)]
    assert sorted(told) == ["r01 | begins", "the log of digits-0 is followed no longer: ValueError: no such line"]


def test_a_machine_without_room_for_a_thread_is_told_once_and_tried_again(
    api: Api, wanted: follow.Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "POLL_S", 0.01)
    start, refused = threading.Thread.start, iter(range(3))

    def is_refused(self: threading.Thread) -> None:
        if self.name.startswith("log of ") and next(refused, None) is not None:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", is_refused)
    with closing(follow.follow(api, wanted)) as updates:
        told = [next(update for update in updates if update.kind in ("note", "line")).text for _ in range(3)]
    assert told[0] == "not every log can be followed now: can't start new thread"
    assert sorted(told[1:]) == ["r00 | begins", "r01 | begins"]
