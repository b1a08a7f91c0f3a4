"""`tj logs` against a real API server and a node that serves logs."""

from __future__ import annotations

import pytest

from support.apiserver import on_apiserver
from support.cluster_cli import User, attempt, condition, until
from support.log_kubelet import LogKubelet
from trainjob_api import contract

pytestmark = on_apiserver


def opened(kubelet: LogKubelet, pod: str, count: int = 1) -> bool:
    """Whether the pod's log has been followed that often."""
    return sum(reader.startswith(f"{pod}?") and "follow=true" in reader for reader in kubelet.readers) >= count


def complete(user: User) -> None:
    user.status(conditions=[condition("Complete", "True", "AllRanksSucceeded")], phase="Complete")


def test_all_ranks_are_merged_by_time_and_chosen_by_rank(user: User, kubelet: LogKubelet) -> None:
    job = user.create()
    user.status(slots="0-1", attempt=attempt(1, "0-1", 2), phase="Running")
    for slot in (0, 1):
        kubelet.pod(job, slot)
    kubelet.write("digits-0", "agent | up", "r00 | one")
    kubelet.write("digits-1", "r01 | two")
    kubelet.write("digits-0", "r00 | three")
    assert user.tj("logs", "digits").out.splitlines() == ["digits-0 | up", "r00 | one", "r01 | two", "r00 | three"]
    assert user.tj("logs", "digits", "--rank", "1").out == "r01 | two\n"
    assert user.tj("logs", "tj/digits", "--rank", "0", "--tail", "1").out == "r00 | three\n"
    wrong = user.tj("logs", "digits", "--rank", "2-1")
    assert wrong.code == contract.CLI_USAGE
    assert "0,3-5" in wrong.err
    none = user.tj("logs", "digits", "--rank", "2-5")
    assert (none.code, "has 2 ranks, from 0 to 1" in none.err) == (contract.CLI_USAGE, True)


def test_a_large_job_shows_rank_0_and_says_so(user: User, kubelet: LogKubelet) -> None:
    job = user.create({"spec.workers": 2, "spec.processesPerWorker": 8})
    user.status(slots="3,5", attempt=attempt(1, "3,5", 2, worldSize=16))
    for slot in (3, 5):
        kubelet.pod(job, slot)
    kubelet.write("digits-3", "r00 | first", "r07 | last of the first")
    kubelet.write("digits-5", "r08 | other pod")
    shown = user.tj("logs", "digits")
    assert shown.out == "r00 | first\n"
    assert "rank 0 of 16; --rank all" in shown.err
    assert user.tj("logs", "digits", "--rank", "7-8").out == "r07 | last of the first\nr08 | other pod\n"


def test_following_waits_for_pods_survives_a_replaced_pod_and_ends_with_the_job(
    user: User, kubelet: LogKubelet
) -> None:
    job = user.create()

    def begin() -> None:
        user.status(
            slots="0-1", conditions=[condition("PodsScheduled", "False", "WaitingForNodes", "0/3 nodes are available")]
        )
        kubelet.pod(job, 0)
        kubelet.pod(job, 1, phase="Pending")
        user.status(attempt=attempt(1, "0-1", 2), phase="Running", conditions=[])
        kubelet.status("digits-1", "Running")
        kubelet.write("digits-0", "r00 | a")
        kubelet.write("digits-1", "r01 | a")
        until(lambda: opened(kubelet, "digits-0") and opened(kubelet, "digits-1"))

    def replace() -> None:
        kubelet.remove("digits-1")
        kubelet.pod(job, 2)
        user.status(slots="0,2", attempt=attempt(2, "0,2", 2, cause="PodLost"))
        kubelet.write("digits-2", "r01 | b")
        until(lambda: opened(kubelet, "digits-2"))

    def end() -> None:
        complete(user)
        for pod in ("digits-0", "digits-2"):
            kubelet.write(pod, f"{'r00' if pod == 'digits-0' else 'r01'} | last words")
            kubelet.finish(pod)

    with user.meanwhile(begin, replace, end):
        shown = user.tj("logs", "digits", "-f")
    assert shown.code == contract.CLI_OK, shown.err
    assert sorted(shown.out.splitlines()) == ["r00 | a", "r00 | last words", "r01 | a", "r01 | b", "r01 | last words"]
    assert "attempt 2 started" in shown.err
    assert "digits completed" in shown.err


def test_a_broken_connection_and_a_restarted_container_lose_and_repeat_nothing(user: User, kubelet: LogKubelet) -> None:
    job = user.create({"spec.workers": 1})
    kubelet.pod(job, 0)
    user.status(slots="0", attempt=attempt(1, "0", 1), phase="Running")

    def go() -> None:
        kubelet.write("digits-0", "r00 | 1", "r00 | 2")
        until(lambda: opened(kubelet, "digits-0"))
        kubelet.write("digits-0", "r00 | 3")
        kubelet.cut()
        kubelet.write("digits-0", "r00 | 4")
        until(lambda: opened(kubelet, "digits-0", 2))
        kubelet.write("digits-0", "r00 | 5")
        kubelet.restart("digits-0", 1)
        kubelet.write("digits-0", "r00 | 6")
        until(lambda: opened(kubelet, "digits-0", 3))
        complete(user)
        kubelet.finish("digits-0")

    with user.meanwhile(go):
        shown = user.tj("logs", "digits", "-f", "--rank", "0")
    assert shown.out.splitlines() == [f"r00 | {n}" for n in range(1, 7)]
    assert user.tj("logs", "digits", "--previous").out.splitlines() == [f"r00 | {n}" for n in range(1, 6)]


def test_a_failed_job_ends_the_following_with_its_first_cause_and_code(user: User, kubelet: LogKubelet) -> None:
    job = user.create({"spec.workers": 1})
    kubelet.pod(job, 0)
    kubelet.write("digits-0", "r00 | Traceback")
    kubelet.finish("digits-0", "Failed")
    failure = {
        "attempt": 1,
        "time": "2026-01-01T00:00:00Z",
        "reason": "UserCodeError",
        "rank": 0,
        "message": "rank 0 on digits-0 raised ValueError: bad batch",
    }
    user.status(
        slots="0",
        lastFailure=failure,
        conditions=[condition("Failed", "True", "RestartLimitExceeded", "1 failure")],
        phase="Failed",
    )
    shown = user.tj("logs", "digits", "-f")
    assert shown.code == contract.CLI_JOB_FAILED
    assert shown.out == "r00 | Traceback\n"
    assert "ValueError: bad batch" in shown.err
    assert f"tj submit ... --name digits --replace -n {user.namespace}" in shown.err


def test_attach_shows_the_ranks_lines_and_a_shown_traceback_once(user: User, kubelet: LogKubelet) -> None:
    job = user.create({"spec.workers": 1})
    kubelet.pod(job, 0)
    traceback = [
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        "ValueError: bad batch",
    ]
    user.status(slots="0", attempt=attempt(1, "0", 1), phase="Running")

    def begin() -> None:
        kubelet.write("digits-0", "r00 | hello", *(f"r00 | {line}" for line in traceback))
        until(lambda: opened(kubelet, "digits-0"))

    def end() -> None:
        failure = {
            "attempt": 1,
            "time": "2026-01-01T00:00:00Z",
            "reason": "UserCodeError",
            "rank": 0,
            "message": "rank 0 on digits-0 raised ValueError: bad batch",
            "traceback": "\n".join(traceback),
        }
        verdict = condition("Failed", "True", "RestartLimitExceeded", "1 failure")
        user.status(lastFailure=failure, conditions=[verdict], phase="Failed")
        kubelet.finish("digits-0", "Failed")

    with user.meanwhile(begin, end):
        shown = user.tj("attach", "digits", "--plain")
    assert shown.code == contract.CLI_JOB_FAILED
    assert shown.out.splitlines() == ["r00 | hello", *(f"r00 | {line}" for line in traceback)]
    assert "its traceback is above" in shown.err and traceback[1].strip() not in shown.err


def test_attach_shows_the_end_of_what_was_written_before(user: User, kubelet: LogKubelet) -> None:
    job = user.create({"spec.workers": 1})
    kubelet.pod(job, 0)
    kubelet.write("digits-0", *(f"r00 | {n}" for n in range(1000)))
    user.status(slots="0", attempt=attempt(1, "0", 1))
    kubelet.finish("digits-0")
    complete(user)
    assert user.tj("attach", "digits", "--plain").out.splitlines() == [f"r00 | {n}" for n in range(900, 1000)]


def test_who_may_not_list_pods_is_shown_the_job_without_lines(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    user.create()
    complete(user)
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{user.namespace}"
    rule = {"apiGroups": ["trainjob.dev"], "resources": ["trainjobs"], "verbs": ["get", "list"]}
    user.server.request("POST", f"{rbac}/roles", {"metadata": {"name": "looks"}, "rules": [rule]})
    who = {"kind": "ServiceAccount", "name": "default", "namespace": user.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "looks"}
    user.server.request(
        "POST", f"{rbac}/rolebindings", {"metadata": {"name": "looks"}, "subjects": [who], "roleRef": role}
    )
    accounts = f"/api/v1/namespaces/{user.namespace}/serviceaccounts"
    if not any(one["metadata"]["name"] == "default" for one in user.core("serviceaccounts")):
        user.server.request("POST", accounts, {"metadata": {"name": "default"}})
    monkeypatch.setenv("KUBECONFIG", str(user.server.service_account_kubeconfig(user.namespace, "default")))
    shown = user.tj("attach", "digits", "--plain")
    assert shown.code == contract.CLI_OK, shown.err
    assert f"you may not list pods in {user.namespace}" in shown.err and "digits completed" in shown.err


def test_a_cancelled_and_a_deleted_job_end_the_following(user: User, kubelet: LogKubelet) -> None:
    user.create()
    with user.meanwhile(
        lambda: user.server.request(
            "PATCH",
            user.path("digits"),
            {"spec": {"suspend": True}, "metadata": {"annotations": {contract.ANNOTATION_CANCELLED: "now"}}},
        )
    ):
        shown = user.tj("logs", "digits", "-f")
    assert (shown.code, "digits was cancelled" in shown.err) == (contract.CLI_STOPPED, True)
    user.create({"metadata.name": "other"})
    with user.meanwhile(lambda: until(lambda: True), lambda: user.server.request("DELETE", user.path("other"))):
        shown = user.tj("logs", "other", "-f")
    assert shown.code in (contract.CLI_STOPPED, contract.CLI_NOT_FOUND)


def test_following_goes_on_when_the_api_server_was_away(user: User, kubelet: LogKubelet) -> None:
    job = user.create({"spec.workers": 1})
    kubelet.pod(job, 0)
    user.status(slots="0", attempt=attempt(1, "0", 1), phase="Running")

    def go() -> None:
        kubelet.write("digits-0", "r00 | before")
        until(lambda: opened(kubelet, "digits-0"))
        user.server.freeze()
        kubelet.write("digits-0", "r00 | meanwhile")
        user.server.thaw()
        kubelet.write("digits-0", "r00 | after")
        complete(user)
        kubelet.finish("digits-0")

    with user.meanwhile(go):
        shown = user.tj("logs", "digits", "-f")
    assert shown.code == contract.CLI_OK
    assert shown.out.splitlines() == ["r00 | before", "r00 | meanwhile", "r00 | after"]


@pytest.mark.parametrize(
    ("finished", "said"), [(False, "-f waits for them"), (True, "gone, and their lines with them")]
)
def test_without_pods_it_says_why_there_is_nothing(user: User, finished: bool, said: str) -> None:
    user.create()
    if finished:
        complete(user)
    shown = user.tj("logs", "digits")
    assert (shown.code, shown.out) == (contract.CLI_OK, "")
    assert said in shown.err


def test_plain_pods_get_their_rank_put_in_front(user: User, kubelet: LogKubelet) -> None:
    job = user.create({"spec.runtime.agent": "Disabled"})
    user.status(slots="4,7", attempt=attempt(1, "4,7", 2))
    for slot in (4, 7):
        kubelet.pod(job, slot)
        kubelet.write(f"digits-{slot}", f"from {slot}")
    assert user.tj("logs", "digits").out.splitlines() == ["r00 | from 4", "r01 | from 7"]
