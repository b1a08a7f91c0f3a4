"""What is refused: bad manifests with words that help, and agents that are not who they say, counted and without
effect.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from support import e2e, gated, rogue
from support.bad_manifests import BY_CONDITION, BY_SERVER, Bad
from support.kube_proxy import Proxy, Refused, jobs, proxy
from support.release import operator
from support.trainjobs import document
from trainjob_api import contract

__all__ = ["operator"]

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.timeout(900)]


T = TypeVar("T")


@pytest.fixture(scope="module")
def api() -> Iterator[Proxy]:
    with proxy() as made:
        yield made


def called(case: Bad) -> str:
    """A job's name made of the case's."""
    return re.sub(r"[^a-z0-9]+", "-", case.name.lower())


# --- Manifests --------------------------------------------------------------------------------------------------------


def test_there_are_enough_bad_manifests() -> None:
    assert len(BY_SERVER) + len(BY_CONDITION) >= 40


@pytest.mark.parametrize("case", BY_SERVER, ids=lambda case: case.name)
def test_the_api_server_refuses(api: Proxy, case: Bad) -> None:
    """As `kubectl apply --dry-run=server` asks it."""
    with pytest.raises(Refused) as refused:
        api.request("POST", jobs("default") + "?dryRun=All&fieldValidation=Strict", document(case.changes))
    for words in case.words:
        assert words in str(refused.value)


@pytest.fixture(scope="module")
def accepted(api: Proxy) -> Iterator[str]:
    """A namespace with all manifests that the API server takes, though they cannot run."""
    name = e2e.create_namespace("bad-manifests")
    for case in BY_CONDITION:
        api.request(
            "POST", jobs(name) + "?fieldValidation=Strict", document(case.changes | {"metadata.name": called(case)})
        )
    yield name
    e2e.delete_namespace(name)


@pytest.mark.parametrize("case", BY_CONDITION, ids=lambda case: case.name)
def test_the_operator_refuses(api: Proxy, accepted: str, case: Bad) -> None:
    def refusal() -> dict[str, Any] | None:
        conditions = api.request("GET", jobs(accepted, called(case))).get("status", {}).get("conditions", [])
        return next(
            (entry for entry in conditions if entry["type"] == "ResourcesCreated" and entry["reason"] == "InvalidSpec"),
            None,
        )

    told = e2e.eventually("the condition tells", refusal)
    assert told["status"] == "False"
    for words in case.words:
        assert words in told["message"]
    assert e2e.pods(called(case), accepted) == []


def test_kubectl_says_what_to_do() -> None:
    """The words of the rule come through to the user's terminal."""
    bad = e2e.training_job("digits", "default", spec={"template": {"spec": {"restartPolicy": "Always"}}})
    with pytest.raises(e2e.KubectlError, match=r"spec\.template\.spec\.restartPolicy: .*must be Never or left out"):
        e2e.apply(bad)


def test_a_refused_job_starts_once_it_is_mended(api: Proxy, accepted: str) -> None:
    mended = e2e.training_job(
        "hostname", accepted, workers=1, command=["python", "-c", "print('mended')"], storage=False
    )
    template = mended["spec"]["template"]
    with pytest.raises(Refused, match="can be changed only while the job is suspended"):
        api.request(
            "PATCH",
            jobs(accepted, "hostname"),
            {"spec": {"template": {**template, "spec": {**template["spec"], "hostname": None}}}},
        )
    change = {"suspend": True, "workers": 1, "template": {**template, "spec": {**template["spec"], "hostname": None}}}
    api.request("PATCH", jobs(accepted, "hostname"), {"spec": change})
    api.request("PATCH", jobs(accepted, "hostname"), {"spec": {"suspend": False}})
    e2e.wait_for_condition("hostname", accepted, "Complete")


# --- Agents -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Neighbours:
    """Two jobs that stand still at a gate: `victim`, and `other`, whose pod is in a rogue's hands."""

    namespace: str
    job: dict[str, Any]
    """The victim before anything was tried."""
    pods: dict[str, str]

    def knock(self, **asked: Any) -> tuple[int, str]:
        return rogue.knock("other-0", self.namespace, **asked)

    def lie(self) -> dict[str, Any]:
        """That a rank of the victim has broken in a way that ends the job."""
        identity = {
            "job": "victim",
            "job_uid": self.job["metadata"]["uid"],
            "slot": 0,
            "pod": "victim-0",
            "pod_uid": self.pods["victim-0"],
        }
        end = {"rank": 0, "state": contract.RANK_ENDED, "kind": contract.END_START, "exit_code": 127}
        return {**identity, "boot": 99, "seq": 99, "attempt": 1, "joined": True, "ranks": [end]}


def counted(why: str, knock: Callable[[], T]) -> T:
    """What a knock is answered, which is refused and counted once. Pods of other tests may be refused in that
    moment, and each leader begins to count anew: then it is tried once more.
    """
    seen = []
    for _ in range(5):
        before = rogue.refusals().get(why, 0)
        answer = knock()
        after = rogue.refusals().get(why, 0)
        if after == before + 1:
            return answer
        seen.append((before, after))
    raise AssertionError(f"refused as {why}, counted {seen}")


SETTLED_S = 15.0
"""Longer than from one write of what has been done to the next."""


def settled(namespace: str) -> dict[str, Any]:
    """The victim once all that it has done is written."""
    seen: list[tuple[float, dict[str, Any]]] = []

    def look() -> dict[str, Any] | None:
        found = e2e.job("victim", namespace)
        status = {**found["status"], "progress": {}}
        if not seen or seen[-1][1] != status:
            seen.append((time.monotonic(), status))
        told = (
            found["status"].get("progress", {}).get("step") == 3
            and found["status"].get("checkpoint", {}).get("latest", {}).get("step") == 3
        )
        return found if told and time.monotonic() > seen[-1][0] + SETTLED_S else None

    return e2e.eventually("all is told of the victim", look)


@pytest.fixture(scope="module")
def neighbours() -> Iterator[Neighbours]:
    namespace = e2e.create_namespace("neighbours")
    for name in ("victim", "other"):
        gated.start(name, namespace, "--gates", "3", "--steps", "5", workers=1)
    for name in ("victim", "other"):
        gated.wait_for_step(name, namespace, 2)
    yield Neighbours(
        namespace,
        settled(namespace),
        e2e.uids("victim", namespace),
    )
    e2e.delete_namespace(namespace)


def test_a_pod_speaks_only_for_itself(neighbours: Neighbours) -> None:
    status, said = counted("foreign pod", lambda: neighbours.knock(report=neighbours.lie()))
    assert status == 403 and "may not speak for the pod" in said
    own_uid = e2e.uids("other", neighbours.namespace)["other-0"]
    status, said = neighbours.knock(report={**neighbours.lie(), "pod_uid": own_uid})
    assert status == 403 and f"this token is of pod {neighbours.namespace}/other-0" in said


@pytest.mark.parametrize("audience", ["https://kubernetes.default.svc.cluster.local", "vault"])
def test_a_token_for_somebody_else_is_refused(neighbours: Neighbours, audience: str) -> None:
    token = rogue.token("other-0", neighbours.namespace, audience)
    status, said = counted("wrong token", lambda: neighbours.knock(token=token, report=neighbours.lie()))
    assert status == 401 and "bearer token is not accepted" in said


def test_an_expired_token_is_refused(neighbours: Neighbours) -> None:
    """It differs from one that is accepted in its time alone."""
    if not e2e.has_own_nodes():
        pytest.skip("the key that signs this cluster's tokens is out of reach")
    status, said = neighbours.knock(token=rogue.signed_anew("other-0", neighbours.namespace, expires_in_s=600))
    assert status == 409 and "older than" in said, "the token is good, the report of an honest beginner is not news"
    expired = rogue.signed_anew("other-0", neighbours.namespace, expires_in_s=-120)
    status, said = counted("wrong token", lambda: neighbours.knock(token=expired))
    assert status == 401 and "expired" in said


@pytest.mark.parametrize("shown", ["", "nonsense", "a.b.c"])
def test_no_token_is_no_entrance(neighbours: Neighbours, shown: str) -> None:
    assert neighbours.knock(token=shown, report=neighbours.lie())[0] == 401


def test_an_oversized_body_is_refused(neighbours: Neighbours) -> None:
    status, said = counted("too large", lambda: neighbours.knock(bytes=contract.SYNC_BODY_LIMIT))
    assert status == 413 and f"larger than {contract.SYNC_BODY_LIMIT} bytes" in said


def test_what_is_no_report_is_refused(neighbours: Neighbours) -> None:
    assert counted("malformed", lambda: neighbours.knock(body="[" * 1000))[0] == 400
    assert counted("malformed", lambda: neighbours.knock(report={"seq": "many"}))[0] == 400


def test_a_pod_that_asks_too_often_has_to_wait(neighbours: Neighbours) -> None:
    before = rogue.refusals()
    # Of those that go on asking, now and then one is heard again.
    status, said = neighbours.knock(body="{}", times=1000, until=429)
    assert status == 429 and f"pod {neighbours.namespace}/other-0 asks too often" in said
    assert rogue.refusals()["too often"] > before.get("too often", 0)


def test_a_pod_that_is_called_like_a_worker_is_none(neighbours: Neighbours) -> None:
    """Somebody's pod with the next worker's name, a token of its own, and a lie about rank 0."""
    namespace = neighbours.namespace
    worker = e2e.get("pod", "victim-0", namespace)
    spec = {key: worker["spec"][key] for key in ("containers", "initContainers", "volumes")}
    spec["containers"][0] |= {"command": ["sleep", "600"]}
    made = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "victim-1", "namespace": namespace},
        "spec": spec | {"restartPolicy": "Never"},
    }
    e2e.apply(made)
    e2e.eventually("the stranger runs", lambda: e2e.get("pod", "victim-1", namespace)["status"]["phase"] == "Running")
    uid = e2e.get("pod", "victim-1", namespace)["metadata"]["uid"]
    lie = {**neighbours.lie(), "slot": 1, "pod": "victim-1", "pod_uid": uid, "acknowledged": None}
    status, said = rogue.knock("victim-1", namespace, report=lie)
    assert (status, '"do": "wait"' in said) == (200, True) and "secret" not in said
    e2e.kubectl("delete", "pod", "victim-1", "-n", namespace, "--grace-period=0", "--force")


def test_nothing_has_changed_by_all_that(neighbours: Neighbours) -> None:
    """Runs last: not even a write was made, and the victim ends as if nothing had been."""
    namespace, before = neighbours.namespace, neighbours.job
    after = e2e.job("victim", namespace)
    assert {**after["status"], "progress": {}} == {**before["status"], "progress": {}} and e2e.uids(
        "victim", namespace
    ) == neighbours.pods
    gated.open_gate("victim", namespace, 3)
    e2e.wait_for_condition("victim", namespace, "Complete")
    after = e2e.job("victim", namespace)
    assert after["status"]["attempt"]["number"] == 1 and gated.counted(after) == 0
    gated.wait_for_steps("victim", namespace, range(5))
