"""What a person types about a job that is there: list, status, events, the controls, wait."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from support.apiserver import on_apiserver
from support.cluster_cli import User, attempt, condition, until
from support.trainjobs import document
from trainjob.cli.main import main
from trainjob_api import contract

pytestmark = on_apiserver

PROGRESS = {
    "position": 3,
    "step": 30,
    "totalSteps": 100,
    "percent": 30,
    "lastReportTime": "2026-01-01T00:00:00Z",
    "metrics": {"loss": 0.25},
}
CHECKPOINT = {"latest": {"id": "1-1-3", "step": 30, "uri": "/ckpt/x/checkpoints/1-1-3", "bytes": 10}, "count": 3}
FAILURE = {
    "attempt": 1,
    "time": "2026-01-01T00:00:00Z",
    "reason": "UserCodeError",
    "rank": 1,
    "message": "rank 1 raised ValueError: bad",
    "traceback": "x\n",
}


def running(user: User, name: str = "digits", **changes: Any) -> None:
    user.create({"metadata.name": name, **changes})
    user.status(
        name,
        phase="Running",
        slots="0-1",
        attempt=attempt(1, "0-1", 2),
        workers={"ready": 2, "desired": 2},
        progress=PROGRESS,
        checkpoint=CHECKPOINT,
        conditions=[condition("Progressing", "True", "RanksRunning")],
    )


def failed(user: User, name: str = "digits") -> None:
    user.status(
        name,
        phase="Failed",
        lastFailure=FAILURE,
        conditions=[condition("Failed", "True", "RestartLimitExceeded", "more than 3 failures")],
    )


# --- list -------------------------------------------------------------------------------------------------------------


def test_list_shows_a_line_per_job(user: User) -> None:
    assert "there are no jobs" in user.tj("list").out
    running(user)
    user.create({"metadata.name": "fresh"})
    header, first, second = user.tj("list").out.splitlines()
    assert header.split() == ["NAME", "STATUS", "WORKERS", "STEP", "PROGRESS", "REPORT", "RESTARTS", "AGE"]
    assert first.split()[:5] == ["digits", "Running", "2/2", "30/100", "30%"]
    assert second.split()[:3] == ["fresh", "New", "0/2"]
    assert "\x1b" not in header
    wide = user.tj("list", "-o", "wide").out
    assert "loss=0.25" in wide
    assert "1-1-3 (step 30)" in wide
    assert "RanksRunning" in wide


def test_list_for_programs(user: User) -> None:
    running(user)
    assert user.tj("list", "-o", "name").out == "trainjob.trainjob.dev/digits\n"
    found = json.loads(user.tj("list", "-o", "json").out)
    assert [item["metadata"]["name"] for item in found["items"]] == ["digits"]
    assert "managedFields" not in user.tj("list", "-o", "json").out + user.tj("status", "digits", "-o", "json").out


def test_list_by_label_and_by_state(user: User) -> None:
    running(user, "one", **{"metadata.labels": {"team": "ml"}})
    user.create({"metadata.name": "two"})
    failed(user, "two")
    assert user.tj("list", "-l", "team=ml", "-o", "name").out == "trainjob.trainjob.dev/one\n"
    assert user.tj("list", "--status", "failed,cancelled", "-o", "name").out == "trainjob.trainjob.dev/two\n"
    assert "there are no such jobs" in user.tj("list", "-l", "team=other").out
    refused = user.tj("list", "-l", "a=b=c")
    assert refused.code != contract.CLI_OK and "next: " in refused.err


def test_list_everywhere_names_the_namespaces(user: User) -> None:
    running(user, "mine")
    line = next(line for line in user.tj("list", "-A").out.splitlines() if " mine " in line)
    assert line.split()[0] == user.namespace


def test_a_status_of_another_version_is_shown_as_far_as_it_is_known() -> None:
    from trainjob.launch.cluster import jobs_api

    manifest = document(
        {
            "status": {
                "phase": "Running",
                "goodput": {"ratio": 1},
                "attempt": {**attempt(2, "0", 1), "flavour": "new"},
                "slots": 7,
            }
        }
    )
    job = jobs_api.read(manifest)
    assert (job.status.phase, job.status.slots) == ("Running", "")
    assert job.status.attempt is not None
    assert job.status.attempt.number == 2


# --- status and events ------------------------------------------------------------------------------------------------


def test_status_is_one_screen(user: User) -> None:
    running(user)
    user.status(
        progress={**PROGRESS, "secondsPerStep": 0.04, "lastReportTime": datetime.now(UTC).isoformat()},
        history=[
            {
                "attempt": 1,
                "cause": "Started",
                "endCause": "PodLost",
                "startedAt": "2026-01-01T00:00:00Z",
                "worldSize": 2,
                "partsMs": {"waited": 200, "firstStep": 4000},
            }
        ],
    )
    pod = {
        "metadata": {"name": "digits-0", "labels": {contract.LABEL_JOB: "digits", contract.LABEL_SLOT: "0"}},
        "spec": {"containers": [{"name": "trainer", "image": "none"}]},
    }
    user.server.request("POST", f"/api/v1/namespaces/{user.namespace}/pods", pod)
    waiting = {
        "name": "trainer",
        "image": "none",
        "imageID": "",
        "ready": False,
        "restartCount": 2,
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
    }
    user.server.request(
        "PATCH",
        f"/api/v1/namespaces/{user.namespace}/pods/digits-0/status",
        {"status": {"phase": "Pending", "containerStatuses": [waiting]}},
    )
    shown = user.tj("status", "digits")
    assert shown.code == contract.CLI_OK
    for words in (
        "digits   namespace",
        "Running   2/2 workers",
        "step 30/100 (30%)",
        "40 ms/step",
        "last step ",
        "checkpoint 1-1-3",
        "RanksRunning",
        "ImagePullBackOff",
        "no such image",
        "PodLost",
        "4.2s",
    ):
        assert words in shown.out
    assert shown.out.splitlines()[-1] == f"next: `tj logs digits -n {user.namespace} -f` follows its ranks"
    assert json.loads(user.tj("status", "digits", "-o", "json").out)["status"]["phase"] == "Running"
    silent = datetime.now(UTC) - timedelta(minutes=2)
    user.status(
        attempt={**attempt(1, "0-1", 2), "startedAt": "2026-01-01T00:00:00Z"},
        progress={**PROGRESS, "secondsPerStep": 0.04, "lastReportTime": silent.isoformat()},
    )
    stack = f"next: `tj stack digits -n {user.namespace}` shows where its ranks are, `tj logs"
    assert user.tj("status", "digits").out.splitlines()[-1].startswith(stack)


def test_a_loss_that_became_nan_is_told_with_where_the_checkpoints_from_before_are(user: User) -> None:
    running(user, **{"spec.checkpoint": {"storage": "/ckpt"}})
    assert "became" not in user.tj("status", "digits").out
    nan = {"metric": "loss", "value": "NaN", "step": 20, "position": 2, "count": 11}
    user.status(progress={**PROGRESS, "metrics": {"loss": None}, "nonFinite": nan})
    shown = user.tj("status", "digits").out
    assert "loss=nan" in shown and "warning: loss became NaN at step 20 (11 values so far)" in shown
    assert f"`tj checkpoints list digits -n {user.namespace}` shows which checkpoints are from before" in shown
    user.status(phase="Complete", conditions=[condition("Complete", "True", "AllRanksSucceeded")])
    shown = user.tj("status", "digits").out
    assert "warning: loss became NaN at step 20" in shown and "shows which checkpoints are from before" in shown


def test_status_of_a_failed_job_explains_it(user: User) -> None:
    running(user)
    failed(user)
    shown = user.tj("status", "digits").out
    assert "digits failed: rank 1" in shown and "ValueError: bad" in shown
    assert "--replace" in shown.splitlines()[-1]


def test_status_watched_ends_with_the_job(user: User) -> None:
    running(user)
    with user.meanwhile(lambda: failed(user)):
        shown = user.tj("status", "digits", "--watch", "--plain")
    assert shown.code == contract.CLI_JOB_FAILED
    assert "digits failed: rank 1" in shown.err and "ValueError: bad" in shown.err


def test_events_of_the_job_and_its_pods_and_nothing_else(user: User) -> None:
    running(user)
    path = f"/api/v1/namespaces/{user.namespace}/events"
    about = [
        ("TrainJob", "digits", "Created", "12:00:01"),
        ("Pod", "digits-0", "Failed\nPull", "12:00:03"),
        ("Pod", "digits-eval-0", "Other", "12:00:02"),
        ("Pod", "digits", "Other", "12:00:02"),
    ]
    for number, (kind, name, message, at) in enumerate(about):
        involved = {"kind": kind, "name": name, "namespace": user.namespace}
        event = {
            "metadata": {"name": f"e{number}"},
            "involvedObject": involved,
            "reason": "R",
            "message": message,
            "type": "Normal",
            "lastTimestamp": f"2026-01-01T{at}Z",
        }
        user.server.request("POST", path, event)
    lines = user.tj("events", "digits").out.splitlines()[1:]
    assert [line.split()[4:] for line in lines] == [["trainjob/digits", "Created"], ["pod/digits-0", "Failed", "Pull"]]
    assert len(json.loads(user.tj("events", "digits", "-o", "json").out)["items"]) == 2
    assert user.tj("events", "nobody").code == contract.CLI_NOT_FOUND


# --- Controls ---------------------------------------------------------------------------------------------------------


def test_suspend_and_resume(user: User) -> None:
    running(user, **{"spec.checkpoint": {"storage": "/ckpt"}})
    assert "checkpoint 1-1-3 stays" in user.tj("suspend", "digits").out
    assert user.get()["spec"]["suspend"] is True
    assert "resumes from checkpoint 1-1-3" in user.tj("resume", "digits").out
    assert user.get()["spec"]["suspend"] is False
    assert "is not suspended" in user.tj("resume", "digits").out


def test_suspending_without_storage_says_what_is_lost(user: User) -> None:
    running(user)
    assert "without storage" in user.tj("suspend", "digits").out


def test_cancel_marks_and_resume_takes_it_back(user: User) -> None:
    running(user)
    assert "is cancelled" in user.tj("cancel", "digits").out
    stored = user.get()
    assert stored["spec"]["suspend"] is True
    assert contract.ANNOTATION_CANCELLED in stored["metadata"]["annotations"]
    assert " Cancelled " in user.tj("list").out
    assert "cancelled already" in user.tj("cancel", "digits").out
    assert user.tj("wait", "digits").code == contract.CLI_STOPPED
    user.tj("resume", "digits")
    assert contract.ANNOTATION_CANCELLED not in user.get()["metadata"].get("annotations", {})


def test_restart_asks_once_each_time(user: User) -> None:
    running(user)
    assert "attempt 2 begins" in user.tj("restart", "digits").out
    first = user.get()["metadata"]["annotations"][contract.ANNOTATION_RESTART]
    user.tj("restart", "digits")
    assert user.get()["metadata"]["annotations"][contract.ANNOTATION_RESTART] > first
    user.tj("suspend", "digits")
    refused = user.tj("restart", "digits")
    assert (refused.code, "tj resume digits" in refused.err) == (contract.CLI_ERROR, True)


def test_stack_asks_and_prints_the_answer(user: User) -> None:
    running(user)
    user.status(attempt=attempt(1, "0-1", 2, runningAt="2026-01-01T00:00:00Z"))

    def asked() -> str | None:
        return (user.get()["metadata"].get("annotations") or {}).get(contract.ANNOTATION_STACKS)

    def answer() -> None:
        until(asked)
        user.status(stacks={"request": "an older one", "attempt": 1, "stacks": "no"})
        user.status(stacks={"request": asked(), "attempt": 1, "stacks": "rank 0: train.py:7"})

    with user.meanwhile(answer):
        said = user.tj("stack", "digits", "-n", user.namespace)
    assert (said.code, said.out) == (contract.CLI_OK, "rank 0: train.py:7\n")


def annotate_stacks(user: User, request: str) -> None:
    user.server.request(
        "PATCH", user.path("digits"), {"metadata": {"annotations": {contract.ANNOTATION_STACKS: request}}}
    )


def test_of_two_who_ask_at_once_both_get_the_newer_answer(user: User) -> None:
    running(user)
    user.status(attempt=attempt(1, "0-1", 2, runningAt="2026-01-01T00:00:00Z"))
    annotate_stacks(user, "answered")
    user.status(stacks={"request": "answered", "attempt": 1, "stacks": "of yesterday"})

    def asked() -> bool:
        return bool(user.get()["metadata"]["annotations"][contract.ANNOTATION_STACKS] != "answered")

    def another() -> None:
        until(asked)
        annotate_stacks(user, "theirs")
        user.status(stacks={"request": "theirs", "attempt": 1, "stacks": "rank 0: train.py:7"})

    with user.meanwhile(another):
        said = user.tj("stack", "digits", "-n", user.namespace)
    assert (said.code, said.out) == (contract.CLI_OK, "rank 0: train.py:7\n")


@pytest.mark.parametrize(("wanted", "asked"), [("1", "@1"), ("0, 1", "@0,1"), ("all", "@0-1")])
def test_all_threads_of_some_ranks_are_asked_for_by_their_numbers(user: User, wanted: str, asked: str) -> None:
    running(user)
    user.status(attempt=attempt(1, "0-1", 2, runningAt="2026-01-01T00:00:00Z"))

    def newest() -> str:
        return str((user.get()["metadata"].get("annotations") or {}).get(contract.ANNOTATION_STACKS, ""))

    def another_comes_between() -> None:
        until(newest)
        assert newest().endswith(asked) and len(newest()) <= contract.STACKS_REQUEST_LIMIT
        annotate_stacks(user, "theirs")
        user.status(stacks={"request": "theirs", "attempt": 1, "stacks": "all ranks: train.py:7"})
        until(lambda: newest() != "theirs")
        user.status(stacks={"request": newest(), "attempt": 1, "stacks": "rank 1:\nThread"})

    with user.meanwhile(another_comes_between):
        said = user.tj("stack", "digits", "--rank", wanted, "-n", user.namespace)
    assert (said.code, said.out) == (contract.CLI_OK, "rank 1:\nThread\n")


@pytest.mark.parametrize(
    ("wanted", "code", "why"),
    [
        ("2", contract.CLI_NOT_FOUND, "no such rank of digits: it has 2"),
        ("one", contract.CLI_USAGE, "give ranks and ranges"),
        ("0," * 40 + "1", contract.CLI_USAGE, "too long for one question"),
    ],
)
def test_ranks_that_cannot_be_asked_for_are_refused(user: User, wanted: str, code: int, why: str) -> None:
    running(user)
    user.status(attempt=attempt(1, "0-1", 2, runningAt="2026-01-01T00:00:00Z"))
    refused = user.tj("stack", "digits", "--rank", wanted, "-n", user.namespace)
    assert (refused.code, why in refused.err) == (code, True), refused.err
    assert contract.ANNOTATION_STACKS not in (user.get()["metadata"].get("annotations") or {})


def test_stack_of_a_job_whose_ranks_nobody_can_ask_is_refused_at_once(user: User) -> None:
    user.create({"metadata.name": "waiting"})
    user.create({"metadata.name": "plain", "spec.runtime": {"agent": "Disabled"}})
    for name, why in (("waiting", "no rank of waiting runs"), ("plain", "runs without the agent")):
        refused = user.tj("stack", name, "-n", user.namespace)
        assert (refused.code, why in refused.err) == (contract.CLI_ERROR, True), refused.err
        assert contract.ANNOTATION_STACKS not in (user.get(name)["metadata"].get("annotations") or {})


def test_scale(user: User) -> None:
    running(user)
    assert "2 -> 3 workers" in user.tj("scale", "digits", "3").out
    assert user.get()["spec"]["workers"] == 3
    assert "already" in user.tj("scale", "digits", "3").out


WAIT = "at the next report() with a checkpoint, at the latest after 45 s (spec.boundaryTimeoutSeconds)"


@pytest.mark.parametrize("verb", [["suspend"], ["restart"], ["scale"]], ids=" ".join)
def test_a_planned_change_says_what_it_waits_for(user: User, verb: list[str]) -> None:
    running(user, **{"spec.boundaryTimeoutSeconds": 45})
    workers = ["1"] if verb == ["scale"] else []
    assert WAIT in user.tj(*verb, "digits", *workers).out
    user.create({"metadata.name": "silent", "spec.boundaryTimeoutSeconds": 45})
    user.status("silent", attempt=attempt(1, "0-1", 2))
    running(user, "hurried", **{"spec.boundaryTimeoutSeconds": 0})
    for name in ("silent", "hurried"):
        assert "report()" not in user.tj(*verb, name, *workers).out, "it has not reported, or does not wait"


def test_a_larger_size_waits_for_the_new_workers_first(user: User) -> None:
    running(user, **{"spec.boundaryTimeoutSeconds": 45})
    said = user.tj("scale", "digits", "3").out
    assert said.index("once the new workers are up") < said.index(WAIT)


def test_a_job_that_only_waited_to_be_suspended_trains_on(user: User) -> None:
    running(user, **{"spec.checkpoint": {"storage": "/ckpt"}})
    user.tj("suspend", "digits")
    user.status(boundary={"cause": "Suspended", "since": "2026-01-01T00:00:00Z"})
    said = user.tj("resume", "digits").out
    assert "was not suspended yet: training continues" in said and "from checkpoint" not in said
    assert user.get()["spec"]["suspend"] is False


def test_this_machines_verbs_mean_the_clusters_where_a_cluster_is_named(user: User) -> None:
    running(user)
    with user.meanwhile(lambda: failed(user)):
        shown = user.tj("attach", "digits", "--plain")
    assert shown.code == contract.CLI_JOB_FAILED and "digits failed: rank 1" in shown.err
    running(user, "other")
    assert "is cancelled" in user.tj("stop", "other").out
    assert contract.ANNOTATION_CANCELLED in user.get("other")["metadata"]["annotations"]
    assert user.tj("rm", "digits", "other").out.count("is deleted; what it stored stays") == 2
    assert user.tj("status", "digits").code == user.tj("status", "other").code == contract.CLI_NOT_FOUND


def test_of_several_names_each_that_can_go_goes(user: User) -> None:
    running(user)
    running(user, "other")
    failed(user, "other")
    said = user.tj("rm", "digits", "nowhere", "other")
    assert said.code == contract.CLI_NOT_FOUND and "digits runs and stays" in said.err and "nowhere" in said.err
    assert f"`tj stop digits -n {user.namespace}`" in said.err and "other is deleted" in said.out
    assert user.get("digits") and user.tj("status", "other").code == contract.CLI_NOT_FOUND
    running(user, "third")
    said = user.tj("stop", "digits", "nowhere", "third")
    assert said.code == contract.CLI_NOT_FOUND and said.out.count("is cancelled") == 2


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["stop", "--warm"], "--warm"),
        (["stop", "digits", "--timeout", "5s"], "--timeout"),
        (["rm", "digits", "--keep-best"], "--keep-best"),
        (["rm", "--older-than", "30d"], "--older-than"),
        (["attach", "digits", "--storage", "x"], "--storage"),
    ],
)
def test_what_only_this_machines_jobs_have_is_refused_of_a_clusters(user: User, words: list[str], option: str) -> None:
    running(user)
    refused = user.tj(*words)
    assert refused.code == contract.CLI_USAGE and f"{option} is for jobs of this machine" in refused.err
    assert user.tj(words[0]).code == contract.CLI_USAGE, "no job is named"


@pytest.mark.parametrize("verb", ["suspend", "resume", "restart", "cancel"])
def test_a_job_that_is_over_does_not_change(user: User, verb: str) -> None:
    running(user)
    failed(user)
    refused = user.tj(verb, "digits")
    assert refused.code == contract.CLI_ERROR
    assert "does not change any more" in refused.err
    assert "suspend" not in user.get()["spec"] or not user.get()["spec"]["suspend"]


def test_delete_waits_until_job_and_pods_are_gone(user: User) -> None:
    running(user)
    owner = {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND,
        "name": "digits",
        "uid": user.get()["metadata"]["uid"],
    }
    pod = {
        "metadata": {"name": "digits-0", "labels": {contract.LABEL_JOB: "digits"}, "ownerReferences": [owner]},
        "spec": {"containers": [{"name": "trainer", "image": "none"}]},
    }
    user.server.request("POST", f"/api/v1/namespaces/{user.namespace}/pods", pod)
    assert user.tj("delete", "digits", "--wait").code == contract.CLI_OK
    assert user.core("pods") == []
    missing = user.tj("delete", "digits")
    assert missing.code == contract.CLI_NOT_FOUND
    assert f"`tj list -n {user.namespace}`" in missing.err


# --- wait -------------------------------------------------------------------------------------------------------------


def test_wait_for_completion(user: User) -> None:
    running(user)
    assert user.tj("wait", "digits", "--for", "running").code == contract.CLI_OK
    with user.meanwhile(
        lambda: user.status(phase="Complete", conditions=[condition("Complete", "True", "AllRanksSucceeded")])
    ):
        assert user.tj("wait", "digits", "--timeout", "1m").code == contract.CLI_OK
    assert user.tj("wait", "digits", "--for", "failed").code == contract.CLI_ERROR


def test_wait_tells_of_a_failure_by_its_code(user: User) -> None:
    running(user)
    failed(user)
    shown = user.tj("wait", "digits")
    assert shown.code == contract.CLI_JOB_FAILED
    assert "first cause: rank 1 raised ValueError: bad" in shown.err
    assert user.tj("wait", "digits", "--for", "failed").code == contract.CLI_OK


def test_wait_ends_by_its_timeout_and_by_a_deletion(user: User) -> None:
    running(user)
    late = user.tj("wait", "digits", "--timeout", "1")
    assert late.code == contract.CLI_TIMEOUT
    assert "is Running after 1.0s, not complete" in late.err
    with user.meanwhile(lambda: user.server.request("DELETE", user.path("digits"))):
        assert user.tj("wait", "digits", "--for", "deleted").code == contract.CLI_OK
    assert user.tj("wait", "digits").code == contract.CLI_NOT_FOUND
    assert user.tj("wait", "digits", "--for", "deleted").code == contract.CLI_OK


# --- No access --------------------------------------------------------------------------------------------------------


def test_no_cluster_is_told_from_no_right_and_from_no_crd(
    user: User, tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["list", "--kubeconfig", str(tmp_path / "none")]) == contract.CLI_NO_ACCESS
    assert "there is no kubeconfig" in capsys.readouterr().err
    assert main(["list", "--context", "other", "--kubeconfig", str(user.server.kubeconfig)]) == contract.CLI_NO_ACCESS
    assert "there is no context 'other'" in capsys.readouterr().err
    weak = user.server.service_account_kubeconfig(user.namespace, "default")
    assert main(["list", "-n", user.namespace, "--kubeconfig", str(weak)]) == contract.CLI_NO_ACCESS
    error = capsys.readouterr().err
    assert "you may not do this" in error
    assert "`tj doctor`" in error
    stranger = user.server.kubeconfig_for("not-a-token", "stranger")
    assert main(["list", "--kubeconfig", str(stranger)]) == contract.CLI_NO_ACCESS
    assert "does not know you (401)" in capsys.readouterr().err


def test_a_server_that_is_not_there(user: User, tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = tmp_path / "gone.kubeconfig"
    gone.write_text(user.server.kubeconfig.read_text().replace(str(user.server.port), "1"))
    assert main(["status", "digits", "--kubeconfig", str(gone)]) == contract.CLI_NO_ACCESS
    error = capsys.readouterr().err
    assert "gave no answer" in error
    assert "kubectl cluster-info" in error.splitlines()[-1]


# --- history ----------------------------------------------------------------------------------------------------------


def test_history_shows_how_attempts_began_and_where_the_time_went(user: User) -> None:
    user.create()
    assert "no attempt of digits has begun" in user.tj("history", "digits").out
    books = {"at": "2026-01-01T00:00:00Z", "settledAt": "2026-01-01T00:00:00Z", "summary": "75.0%", "ratio": 0.75}
    seconds = {"productive": 75.0, "starting": 25.0}
    parts = {"decided": 10, "joined": 20, "firstStep": 470}
    user.status(attempt=attempt(1, "0-1", 2, partsMs=parts), goodput={**books, "seconds": seconds, "settled": {}})
    shown = user.tj("history", "digits").out
    assert "0.5s" in shown and "(runs)" in shown and "DECIDED" not in shown
    assert "500 ms" in user.tj("history", "digits", "--parts").out
    assert re.search(r"goodput 75.0% of its first 1m40s, up to \w+ ago: productive 1m15s, starting 25s", shown)
    rows = [json.loads(line) for line in user.tj("history", "digits", "-o", "json").out.splitlines()]
    assert [row["kind"] for row in rows] == ["attempt", "goodput"] and rows[0]["totalMs"] == 500
    assert "goodput 75.0%" in user.tj("status", "digits").out
