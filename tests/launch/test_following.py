"""Following a job whose ranks write without end, or whose name changes hands."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.cluster_cli import attempt
from support.patience import HANG_S
from support.trainjobs import document
from trainjob.launch.cluster import follow, jobs_api, pod_log
from trainjob.launch.cluster.api import Api, ApiError
from trainjob.launch.outcome import log_choice as ranks
from trainjob_api import contract

WANTED = follow.Wanted(namespace="default", name="digits", logs=True, selection=ranks.ALL)


def job(uid: str) -> Any:
    found = document({"spec.workers": 1, "status": {"slots": "0", "attempt": attempt(1, "0", 1)}})
    found["metadata"].update(uid=uid, namespace="default")
    return found


POD = {
    "metadata": {
        "name": "digits-0",
        "namespace": "default",
        "uid": "pod",
        "labels": {contract.LABEL_SLOT: "0"},
        "ownerReferences": [{"uid": "first"}],
    },
    "spec": {"containers": [{"name": "trainer"}]},
}


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    """A job of one pod."""
    monkeypatch.setattr(jobs_api, "get", lambda *_: job("first"))
    monkeypatch.setattr(jobs_api, "pods", lambda *_: [POD])
    monkeypatch.setattr(follow, "POLL_S", 0.001)
    return cast(Api, SimpleNamespace(get=lambda *_: POD))


def test_who_writes_faster_than_it_is_taken_hides_no_state(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = threading.Semaphore(0)

    def writes(self: pod_log.PodLog, emit: Callable[[str], None]) -> None:
        while not self._stopped.is_set():
            emit("r00 | again")
            waiting.release()

    monkeypatch.setattr(pod_log.PodLog, "follow", writes)
    lines = 0
    with closing(follow.follow(api, WANTED)) as updates:
        assert next(updates).kind == "status"
        for update in itertools.islice(updates, 3 * follow.LINES_WAITING):
            if update.kind == "status":
                break
            lines += 1
            waiting.acquire()
            waiting.acquire()  # there is another by now
            waiting.release()
        else:
            pytest.fail("the job was looked at once")
    assert lines


def test_another_job_of_the_name_takes_no_line_of_the_one_before(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    looks_again, written = threading.Event(), threading.Event()

    def writes(self: pod_log.PodLog, emit: Callable[[str], None]) -> None:
        assert looks_again.wait(HANG_S)
        emit("r00 | the last")
        written.set()

    def looks() -> Iterator[Any]:
        yield job("first")
        looks_again.set()
        assert written.wait(HANG_S)
        yield job("second")

    looked = looks()
    monkeypatch.setattr(follow, "POLL_S", 0.0)
    monkeypatch.setattr(pod_log.PodLog, "follow", writes)
    monkeypatch.setattr(jobs_api, "get", lambda *_: next(looked))
    with closing(follow.follow(api, WANTED)) as updates:
        told = [update.kind for update in updates if update.kind != "status"]
    assert told == ["line", "gone"]


def test_a_log_that_may_not_be_read_is_said(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> Iterator[str]:
        raise ApiError("pods/log of digits-0 is forbidden", next_step="ask for it", status=403)

    monkeypatch.setattr(pod_log, "read", forbidden)
    with closing(follow.follow(api, WANTED)) as updates:
        told = next(update for update in itertools.islice(updates, 1000) if update.kind == "note")
    assert told.text == "the log of digits-0 is followed no longer: ApiError: pods/log of digits-0 is forbidden"
