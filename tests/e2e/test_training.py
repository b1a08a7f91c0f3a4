"""Training on a cluster: from apply to Complete, a killed rank, a lost pod, a job that fails, and two objects of one
name.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from support import e2e, gated
from support.release import operator
from trainjob_api import contract

__all__ = ["operator"]

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.timeout(900)]

Figure = Callable[[str, str], None]


def columns(name: str, namespace: str, *words: str) -> dict[str, str]:
    """A line of `kubectl get tj`, by its heads."""
    head, line = e2e.kubectl("get", "tj", name, "-n", namespace, *words).splitlines()
    at = [head.index(word) for word in head.split()] + [None]
    return {word: line[begin:end].strip() for word, begin, end in zip(head.split(), at, at[1:], strict=False)}


def test_digits_from_apply_to_complete(namespace: str, figure: Figure) -> None:
    applied = time.time()
    e2e.apply(
        e2e.training_job(
            "digits",
            namespace,
            arguments=("--epochs", "3"),
            spec={"checkpoint": {"scoreAttribute": "accuracy", "keep": 2}},
        )
    )
    e2e.wait_for_condition("digits", namespace, "Complete")
    e2e.kubectl("wait", "--for=condition=complete", "tj/digits", "-n", namespace, "--timeout=60s")
    seen = columns("digits", namespace, "-o", "wide")
    assert {
        head: seen[head] for head in ("STATUS", "STEP", "PROGRESS", "RESTARTS", "REASON", "ATTEMPT", "CHECKPOINT")
    } == {
        "STATUS": "Complete",
        "STEP": "135",
        "PROGRESS": "100",
        "RESTARTS": "0",
        "REASON": contract.REASON_COMPLETED,
        "ATTEMPT": "1",
        "CHECKPOINT": "1-1-3",
    }
    assert seen["METRIC"].startswith("accuracy=0.") and seen["REPORT"] and seen["AGE"]
    assert "digits" in e2e.kubectl("get", "ml", "-n", namespace), "the category of the resource"
    lines = ("attempt 1 begins with 2 workers, 2 ranks (Started)", "all ranks ended with success", "accuracy=")
    # Events come after the status that they tell of.
    e2e.eventually(
        "kubectl tells of its begin and its end",
        lambda: all(line in e2e.kubectl("describe", "tj", "digits", "-n", namespace) for line in lines),
    )
    scale = json.loads(e2e.kubectl("get", "tj", "digits", "-n", namespace, "--subresource=scale", "-o", "json"))
    assert (scale["spec"]["replicas"], scale["status"]["selector"]) == (2, f"{contract.LABEL_JOB}=digits")
    e2e.eventually("its last line is there", lambda: "epoch 2 attempt 1 step 135" in e2e.logs("digits-0", namespace))
    assert "r00 | rank 0 of 2" in e2e.logs("digits-0", namespace)
    job = e2e.job("digits", namespace)
    assert job["status"]["progress"]["percent"] == 100 and job["status"]["checkpoint"]["latest"]["step"] == 135
    attempt = job["status"]["attempt"]
    for what, word in (("attempt", "startedAt"), ("ranks started", "runningAt"), ("the end", "endedAt")):
        figure(f"apply to {what}, with torch", f"{gated.moment(attempt[word]) - applied:.2f} s")


def test_a_killed_rank_starts_again_in_the_same_pods(namespace: str) -> None:
    gated.start("count", namespace, "--gates", "5", "--steps", "8")
    gated.wait_for_step("count", namespace, 4)
    before = e2e.uids("count", namespace)
    e2e.kill_rank("count-1", namespace, 1)
    begun = gated.wait_for_starts("count", namespace, 2, 2)
    assert gated.lost(begun) == 0 and begun[0].step == 5
    gated.open_gate("count", namespace, 5)
    e2e.wait_for_condition("count", namespace, "Complete")
    job = e2e.job("count", namespace)
    assert e2e.uids("count", namespace) == before, "the same pods"
    assert job["status"]["attempt"]["number"] == 2 and gated.counted(job) == 1
    failure = job["status"]["lastFailure"]
    assert (failure["rank"], failure["pod"], failure["signal"], failure["reason"]) == (
        1,
        "count-1",
        9,
        contract.REASON_SIGNAL,
    )
    assert [entry["endCause"] for entry in job["status"]["history"]] == [
        contract.REASON_SIGNAL,
        contract.REASON_COMPLETED,
    ]
    assert columns("count", namespace)["RESTARTS"] == "1"
    gated.wait_for_steps("count", namespace, range(8))
    assert all(pod["status"]["containerStatuses"][0]["restartCount"] == 0 for pod in e2e.pods("count", namespace))


def test_a_tracker_is_fed_beside_rank_0_wherever_that_is(namespace: str) -> None:
    """Nobody waits for the job; the pod of rank 0 is deleted."""
    gated.start("count", namespace, "--gates", "5,7", "--steps", "8", spec={"tracking": ["csv"]})
    gated.wait_for_step("count", namespace, 4)

    def rows() -> list[str]:
        path = f"/checkpoints/{namespace}/count/metrics.csv"
        found = e2e.in_pod("count-1", namespace, "sh", "-c", f"cat {path} 2>/dev/null || true").splitlines()[1:]
        return [line.split(",")[0] for line in found]

    e2e.eventually("five reports are there", lambda: rows() == ["1", "2", "3", "4", "5"])
    e2e.kubectl("delete", "pod", "count-0", "-n", namespace, "--wait=false")
    gated.wait_for_starts("count", namespace, 2, 2)
    gated.open_gate("count", namespace, 5)
    e2e.eventually("all are there once", lambda: rows() == ["1", "2", "3", "4", "5", "6", "7"])
    gated.open_gate("count", namespace, 7)
    e2e.wait_for_condition("count", namespace, "Complete")


@pytest.mark.alone
def test_how_soon_the_next_step_follows(namespace: str, figure: Figure) -> None:
    """Nobody holds the ranks up: they are killed while they step."""
    gated.code(namespace)
    applied = time.time()
    e2e.apply(gated.looping("count", namespace, "--steps", "100000"))
    figure("apply to first step, without torch", f"{gated.wait_for_step('count', namespace, 0).at - applied:.2f} s")
    gated.wait_for_step("count", namespace, 20)
    e2e.kill_rank("count-1", namespace, 1)
    again = gated.wait_for_step("count", namespace, 0, attempt=2)
    died = gated.moment(e2e.job("count", namespace)["status"]["lastFailure"]["time"])
    figure("death of a rank to next step", f"{again.at - died:.2f} s")
    assert gated.lost(gated.wait_for_starts("count", namespace, 2, 2)) == 0
    deleted = time.time()
    e2e.kubectl("delete", "pod", "count-1", "-n", namespace, "--wait=false")
    again = gated.wait_for_step("count", namespace, 0, attempt=3)
    figure("delete of a pod to next step", f"{again.at - deleted:.2f} s")


def test_only_a_deleted_pod_is_new(namespace: str) -> None:
    gated.start("count", namespace, "--gates", "5", "--steps", "8", "--mode", "SYNC", workers=3)
    gated.wait_for_step("count", namespace, 4)
    before = e2e.uids("count", namespace)
    e2e.kubectl("delete", "pod", "count-0", "-n", namespace, "--wait=false")
    begun = gated.wait_for_starts("count", namespace, 2, 3)
    assert gated.lost(begun) == 0 and begun[0].step == 5
    gated.open_gate("count", namespace, 5)
    e2e.wait_for_condition("count", namespace, "Complete")
    e2e.eventually("what was deleted is gone", lambda: gated.is_gone("pod", "count-0", namespace))
    after = e2e.uids("count", namespace)
    assert set(after) == {"count-1", "count-2", "count-3"}
    assert all(after[name] == before[name] for name in ("count-1", "count-2"))
    job = e2e.job("count", namespace)
    assert job["status"]["attempt"]["number"] == 2 and job["status"]["slots"] == "1-3"


def test_a_failed_job_still_tells_its_first_cause(namespace: str) -> None:
    gated.start("count", namespace, "--raise", "1:3", spec={"failurePolicy": {"maxFailures": 1}})
    failed = e2e.wait_for_condition("count", namespace, "Failed")
    assert failed["reason"] == contract.REASON_LIMIT
    assert (
        "2 failures, failurePolicy.maxFailures is 1" in failed["message"]
        and "the data of step 3 cannot be read" in failed["message"]
    )
    e2e.eventually(
        "all pods have ended", lambda: all(pod["status"]["phase"] == "Failed" for pod in e2e.pods("count", namespace))
    )
    seen = columns("count", namespace, "-o", "wide")
    assert (seen["STATUS"], seen["REASON"], seen["RESTARTS"]) == ("Failed", contract.REASON_USER_ERROR, "2")
    failure = e2e.job("count", namespace)["status"]["lastFailure"]
    assert (failure["rank"], failure["pod"], failure["attempt"]) == (1, "count-1", 2)
    assert "gated.py" in failure["traceback"] and "in trouble" in failure["traceback"]
    assert "ValueError: the data of step 3 cannot be read" in e2e.logs("count-1", namespace)
    # Its agent's word: rank 1 may raise before rank 0 has said where it begins.
    assert "the job resumes from checkpoint 1-1-3 (step 3)" in e2e.logs("count-0", namespace)
    e2e.eventually(
        "kubectl tells of it",
        lambda: "the data of step 3 cannot be read" in e2e.kubectl("describe", "tj", "count", "-n", namespace),
    )


LARGE = """
import os, tempfile, trainjob
folder = tempfile.mkdtemp(dir="/tmp")
with open(os.path.join(folder, "weights"), "wb") as file:
    file.write(os.urandom(40 * 2**20))
trainjob.report({"loss": 1.0}, checkpoint=trainjob.Checkpoint.from_directory(folder))
"""


def test_a_checkpoint_that_the_staging_volume_cannot_hold_has_a_cause_of_its_own(namespace: str) -> None:
    """40 MB into 30 MiB of memory: the volume is full, whatever the script makes of it."""
    staging = {"medium": "Memory", "sizeLimit": "30Mi"}
    limits = {"checkpoint": {"staging": staging}, "failurePolicy": {"maxFailures": 1}}
    e2e.apply(e2e.training_job("large", namespace, workers=1, command=["python", "-c", LARGE], spec=limits))
    failed = e2e.wait_for_condition("large", namespace, "Failed")
    failure = e2e.job("large", namespace)["status"]["lastFailure"]
    assert (failed["reason"], failure["reason"]) == (contract.REASON_LIMIT, contract.REASON_STAGING_FULL)
    assert failure["pod"] == "large-0" and "spec.checkpoint.staging.sizeLimit" in failure["message"]


def owners(name: str, namespace: str) -> set[str]:
    return {owner["uid"] for pod in e2e.pods(name, namespace) for owner in pod["metadata"].get("ownerReferences", [])}


def test_a_job_applied_again_goes_on_where_it_was_deleted(namespace: str) -> None:
    words = ("--gates", "5", "--steps", "8", "--mode", "SYNC")
    gated.start("count", namespace, *words)
    gated.wait_for_step("count", namespace, 4)
    old = e2e.uids("count", namespace)
    e2e.kubectl("delete", "tj", "count", "-n", namespace)
    gated.start("count", namespace, *words)
    e2e.eventually("the old pods are gone", lambda: not set(old.values()) & set(e2e.uids("count", namespace).values()))
    begun = gated.wait_for_starts("count", namespace, 1, 2)
    assert gated.lost(begun) == 0 and begun[0].step == 5
    gated.open_gate("count", namespace, 5)
    e2e.wait_for_condition("count", namespace, "Complete")
    job = e2e.job("count", namespace)
    assert job["status"]["attempt"]["run"] == 2 and job["status"]["checkpoint"]["latest"]["id"] == "2-1-3"
    assert owners("count", namespace) == {job["metadata"]["uid"]}


def test_what_is_left_of_a_deleted_job_gets_nowhere(namespace: str) -> None:
    """Its pods and its Service are left behind on purpose, and its ranks stand before the gate that the new ones are
    to pass. The Service selects by the job's name: it serves the new job.
    """
    words = ("--gates", "5", "--steps", "8", "--mode", "SYNC")
    gated.start("count", namespace, *words)
    gated.wait_for_step("count", namespace, 4)
    e2e.kubectl("delete", "tj", "count", "-n", namespace, "--cascade=orphan")
    left = e2e.uids("count", namespace)
    gated.start("count", namespace, *words)
    e2e.eventually(
        "the old pods were told to exit",
        lambda: all(has_ended(pod) for pod in e2e.pods("count", namespace) if pod["metadata"]["name"] in left),
    )
    e2e.eventually("new pods have started", lambda: len(gated.starts("count", namespace, 1)) == 4)
    assert sorted((entry.rank, entry.step) for entry in gated.starts("count", namespace, 1)) == [
        (0, 0),
        (0, 5),
        (1, 0),
        (1, 5),
    ]
    gated.open_gate("count", namespace, 5)
    e2e.wait_for_condition("count", namespace, "Complete")
    job = e2e.job("count", namespace)
    assert owners("count", namespace) == {job["metadata"]["uid"]}, "the old pods have not been taken in"
    assert job["status"]["slots"] == "2-3", "nor their names"
    assert job["status"]["attempt"]["run"] == 2 and job["status"]["checkpoint"]["latest"]["id"] == "2-1-3"
    assert job["status"]["attempt"]["number"] == 1 and gated.counted(job) == 0
    gated.wait_for_steps("count", namespace, range(8))  # in both runs together


def test_a_job_begins_once_a_foreign_service_of_its_name_is_gone(namespace: str) -> None:
    """Nothing else happens that could have the operator look at the job."""
    e2e.kubectl("create", "service", "clusterip", "count", "--tcp=80:80", "-n", namespace)
    gated.start("count", namespace, "--steps", "3")
    e2e.eventually("the foreign Service is told of", lambda: service_conflict("count", namespace))
    e2e.kubectl("delete", "service", "count", "-n", namespace)
    e2e.wait_for_condition("count", namespace, "Complete")


def service_conflict(name: str, namespace: str) -> str:
    found = [
        entry
        for entry in e2e.job(name, namespace).get("status", {}).get("conditions", [])
        if entry["reason"] == contract.REASON_SERVICE_CONFLICT
    ]
    return next((entry["message"] for entry in found if entry["message"]), "")


def has_ended(pod: dict[str, Any]) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed") or "deletionTimestamp" in pod["metadata"]


def test_a_job_applied_again_after_its_end_trains_anew(namespace: str) -> None:
    gated.start("count", namespace, "--steps", "4")
    e2e.wait_for_condition("count", namespace, "Complete")
    old = e2e.uids("count", namespace)
    e2e.kubectl("delete", "tj", "count", "-n", namespace)
    gated.start("count", namespace, "--steps", "4")
    e2e.wait_for_condition("count", namespace, "Complete")
    job = e2e.job("count", namespace)
    assert job["status"]["attempt"]["run"] == 2 and job["status"]["checkpoint"]["latest"]["id"] == "2-1-4"
    new = [pod for pod in e2e.pods("count", namespace) if pod["metadata"]["uid"] not in old.values()]
    assert len(new) == 2
    text = "\n".join(e2e.logs(pod["metadata"]["name"], namespace) for pod in new)
    assert text.count("attempt 1: from step 0,") == 2
