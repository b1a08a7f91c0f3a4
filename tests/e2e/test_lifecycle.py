"""A job's life on a cluster: suspended, resumed, scaled, deleted, out of time, tidied up; and what it says when its
pods do not come up.
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

Fields = dict[str, Any]


def patch(name: str, namespace: str, spec: dict[str, Any]) -> None:
    e2e.kubectl("patch", "tj", name, "-n", namespace, "--type=merge", "-p", json.dumps({"spec": spec}))


# --- Suspend, scale, delete -------------------------------------------------------------------------------------------


def test_a_suspended_job_has_no_pods_and_goes_on_where_it_stopped(namespace: str) -> None:
    gated.start("count", namespace, "--gates", "5", "--steps", "8", spec=gated.GRACEFUL)
    gated.wait_for_step("count", namespace, 4)
    patch("count", namespace, {"suspend": True})
    e2e.wait_for_condition("count", namespace, "Suspended")
    e2e.eventually("its pods are gone", lambda: e2e.pods("count", namespace) == [])
    job = e2e.job("count", namespace)
    assert (job["status"]["phase"], job["status"]["attempt"]["endCause"]) == ("Suspended", contract.REASON_SUSPENDED)
    patch("count", namespace, {"suspend": False})
    begun = gated.wait_for_starts("count", namespace, 2, 2)
    assert gated.lost(begun) == 0 and begun[0].step == 5, "what was staged had been stored before the pods went"
    gated.open_gate("count", namespace, 5)
    e2e.wait_for_condition("count", namespace, "Complete")
    job = e2e.job("count", namespace)
    assert gated.counted(job) == 0 and job["status"]["attempt"]["cause"] == contract.REASON_RESUMED


def test_a_job_is_scaled_up_and_down(namespace: str) -> None:
    gated.start("count", namespace, "--gates", "5,7", "--steps", "9", spec=gated.GRACEFUL)
    gated.wait_for_step("count", namespace, 4)
    first = e2e.uids("count", namespace)
    e2e.kubectl("scale", "tj/count", "--replicas=3", "-n", namespace)
    larger = gated.wait_for_starts("count", namespace, 2, 3)
    assert gated.lost(larger) == 0 and {(entry.world, entry.step) for entry in larger} == {(3, 5)}
    assert e2e.uids("count", namespace).items() > first.items(), "the workers that were there stay"
    gated.open_gate("count", namespace, 5)
    gated.wait_for_step("count", namespace, 6, attempt=2)
    e2e.kubectl("scale", "tj/count", "--replicas=1", "-n", namespace)
    smaller = gated.wait_for_starts("count", namespace, 3, 1)
    assert gated.lost(smaller) == 0 and {(entry.world, entry.step) for entry in smaller} == {(1, 7)}
    gated.open_gate("count", namespace, 7)
    e2e.wait_for_condition("count", namespace, "Complete")
    assert gated.counted(e2e.job("count", namespace)) == 0


@pytest.mark.parametrize("cascade", ["background", "foreground"])
def test_a_deleted_job_leaves_nothing_behind(namespace: str, cascade: str) -> None:
    gated.start("count", namespace, "--gates", "5")
    gated.wait_for_step("count", namespace, 4)
    e2e.kubectl("delete", "tj", "count", "-n", namespace, f"--cascade={cascade}")
    e2e.eventually(
        "its pods and its Service are gone",
        lambda: not e2e.pods("count", namespace) and gated.is_gone("service", "count", namespace),
    )


# --- The end ----------------------------------------------------------------------------------------------------------


def with_sidecar(document: dict[str, Any]) -> dict[str, Any]:
    """A container beside the trainer that never ends by itself."""
    document["spec"]["template"]["spec"]["containers"].append(
        {"name": "sidecar", "image": e2e.IMAGE, "command": ["sleep", "3600"]}
    )
    return document


def test_what_is_left_of_a_finished_job(namespace: str) -> None:
    gated.code(namespace)
    short = ("--steps", "2")
    e2e.apply(
        gated.looping("all", namespace, *short, workers=1, spec={"podCleanup": "All"}),
        with_sidecar(gated.looping("running", namespace, *short, workers=1, spec={"podCleanup": "Running"})),
        with_sidecar(gated.looping("none", namespace, *short, workers=1, spec={"podCleanup": "None"})),
        gated.looping("ended", namespace, *short, workers=1),
        gated.looping("ttl", namespace, *short, workers=1, spec={"ttlSecondsAfterFinished": 1}),
    )
    for name in ("all", "running", "none", "ended"):
        e2e.wait_for_condition(name, namespace, "Complete")
    e2e.eventually("podCleanup: All takes finished pods too", lambda: not e2e.pods("all", namespace))
    e2e.eventually(
        "the time to live is over", lambda: gated.job_is_gone("ttl", namespace) and not e2e.pods("ttl", namespace)
    )
    e2e.eventually("podCleanup: Running takes the pod that still runs", lambda: not e2e.pods("running", namespace))
    # From its own end: the others may have ended long before or after it.
    finished = gated.moment(e2e.wait_for_condition("running", namespace, "Complete")["lastTransitionTime"])
    assert time.time() - finished > 20, "agents are given half a minute to end by themselves"
    assert [pod["status"]["phase"] for pod in e2e.pods("none", namespace)] == ["Running"]
    e2e.eventually(
        "what ended by itself stays",
        lambda: [pod["status"]["phase"] for pod in e2e.pods("ended", namespace)] == ["Succeeded"],
    )
    assert "step 1 at" in e2e.logs("ended-0", namespace)


def test_deadlines(namespace: str) -> None:
    gated.code(namespace)
    stuck = gated.looping("startup", namespace, workers=1, spec={"startupDeadlineSeconds": 2})
    stuck["spec"]["template"]["spec"]["containers"][0]["image"] = NO_IMAGE
    queued = gated.looping("queued", namespace, workers=1, spec={"startupDeadlineSeconds": 2})
    queued["spec"]["template"]["spec"]["nodeSelector"] = {"no": "such-node"}
    e2e.apply(
        stuck, queued, gated.looping("active", namespace, "--gates", "1", workers=1, spec={"activeDeadlineSeconds": 8})
    )
    late = e2e.wait_for_condition("startup", namespace, "Failed")
    assert late["reason"] == contract.REASON_STARTUP_DEADLINE and "startup-0" in late["message"]
    over = e2e.wait_for_condition("active", namespace, "Failed")
    assert over["reason"] == contract.REASON_DEADLINE and "8 s (activeDeadlineSeconds)" in over["message"]
    e2e.eventually(
        "its worker has ended", lambda: all(pod["status"]["phase"] == "Failed" for pod in e2e.pods("active", namespace))
    )
    assert e2e.condition(e2e.job("queued", namespace), "Failed") is None, (
        "a job that waits for nodes does not fail by its start-up deadline"
    )


# --- Pods that do not come up -----------------------------------------------------------------------------------------

NO_IMAGE = "127.0.0.1:9/no/such:image"
"""Refused at once: nobody listens there."""
WITHIN_S = e2e.PATIENCE_S
"""What takes longer hangs. How soon the reason of a start that hangs is told is a figure, not a limit: kubelet and
scheduler take their time on a machine at work.
"""


def broken(
    name: str, namespace: str, *, volume: Fields | None = None, pod: Fields | None = None, trainer: Fields | None = None
) -> dict[str, Any]:
    """A job of one worker that cannot come up as it is: the source of one more volume, fields of its pod and of its
    trainer.
    """
    document = gated.looping(name, namespace, "--steps", "2", workers=1)
    template = document["spec"]["template"]["spec"]
    template |= pod or {}
    template["containers"][0] |= trainer or {}
    if volume:
        template["volumes"].append({"name": "extra", **volume})
        template["containers"][0]["volumeMounts"].append({"name": "extra", "mountPath": "/extra"})
    return document


def from_secret(name: str) -> dict[str, Any]:
    return {"env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": name, "key": "token"}}}]}


HELD_UP: dict[str, tuple[dict[str, Fields], str, str, str]] = {
    "unschedulable": (
        {"pod": {"nodeSelector": {"no": "such-node"}}},
        "PodsScheduled",
        contract.REASON_UNSCHEDULABLE,
        "node affinity/selector",
    ),
    "too-big": (
        {"trainer": {"resources": {"requests": {"cpu": "5000"}}}},
        "PodsScheduled",
        contract.REASON_UNSCHEDULABLE,
        "Insufficient cpu",
    ),
    "claim": (
        {"volume": {"persistentVolumeClaim": {"claimName": "none"}}},
        "PodsScheduled",
        contract.REASON_UNSCHEDULABLE,
        '"none" not found',
    ),
    "image": ({"trainer": {"image": NO_IMAGE}}, "WorkersReady", contract.REASON_IMAGE_PULL, NO_IMAGE),
    "secret": (
        {"trainer": from_secret("later")},
        "WorkersReady",
        contract.REASON_CONTAINER_CONFIG,
        'secret "later" not found',
    ),
    "config": (
        {"trainer": {"envFrom": [{"configMapRef": {"name": "none"}}]}},
        "WorkersReady",
        contract.REASON_CONTAINER_CONFIG,
        'configmap "none" not found',
    ),
    "volume": (
        {"volume": {"configMap": {"name": "none"}}},
        "WorkersReady",
        contract.REASON_VOLUME_MOUNT,
        'configmap "none" not found',
    ),
    "path": (
        {"volume": {"hostPath": {"path": "/no/such", "type": "Directory"}}},
        "WorkersReady",
        contract.REASON_VOLUME_MOUNT,
        "/no/such is not a directory",
    ),
}
"""What is wrong, and the condition, its reason and words of its message."""


def told(document: dict[str, Any], kind: str, reason: str, words: str) -> bool:
    for entry in document.get("status", {}).get("conditions", []):
        if (entry["type"], entry["status"], entry["reason"]) == (kind, "False", reason) and words in entry["message"]:
            return bool(document["status"]["reason"] == reason)
    return False


def test_pods_that_do_not_come_up_are_told_of_with_their_reason(
    namespace: str, figure: Callable[[str, str], None]
) -> None:
    gated.code(namespace)
    e2e.apply(*(broken(name, namespace, **wrong[0]) for name, wrong in HELD_UP.items()))

    def untold() -> dict[str, Any]:
        jobs = {job["metadata"]["name"]: job for job in e2e.listed("trainjobs.trainjob.dev", namespace)}
        return {name: jobs[name].get("status") for name, wrong in HELD_UP.items() if not told(jobs[name], *wrong[1:])}

    applied = time.monotonic()
    while (left := untold()) and time.monotonic() < applied + WITHIN_S:
        time.sleep(0.5)
    assert not left, json.dumps(left, indent=1)
    figure(f"apply to the last of {len(HELD_UP)} reasons", f"{time.monotonic() - applied:.1f} s")
    # A start that hangs is no failure: what is missing may still come.
    e2e.kubectl("create", "secret", "generic", "later", "-n", namespace, "--from-literal=token=x")
    e2e.wait_for_condition("secret", namespace, "Complete")


def test_a_quota_is_told_of_and_waited_for(namespace: str) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few", "namespace": namespace},
        "spec": {"hard": {"pods": "1"}},
    }
    e2e.apply(quota)
    e2e.eventually("the quota counts", lambda: e2e.get("resourcequota", "few", namespace).get("status", {}).get("hard"))
    gated.start("count", namespace, "--steps", "2")
    e2e.eventually(
        "the quota is told of",
        lambda: told(e2e.job("count", namespace), "ResourcesCreated", contract.REASON_QUOTA, "exceeded quota: few"),
        within_s=WITHIN_S,
    )
    e2e.kubectl("delete", "resourcequota", "few", "-n", namespace)
    e2e.wait_for_condition("count", namespace, "Complete")


def with_init(document: Fields, *command: str) -> Fields:
    document["spec"]["template"]["spec"]["initContainers"] = [
        {"name": "fetch", "image": e2e.IMAGE, "command": list(command)}
    ]
    return document


def test_a_command_that_crashes_at_its_start_fails_the_job(namespace: str) -> None:
    gated.code(namespace)
    limit = {"failurePolicy": {"maxFailures": 1}}
    e2e.apply(
        gated.looping("no-program", namespace, command=("/no/such/program",), workers=1),
        gated.looping("no-script", namespace, command=("python", "/code/none.py"), workers=1),
        gated.looping("crash", namespace, command=("python", "/code/broken.py"), workers=1, spec=limit),
        with_init(gated.looping("init", namespace, workers=1, spec=limit), "sh", "-c", "exit 4"),
        gated.looping(
            "plain",
            namespace,
            command=("/no/such/program",),
            workers=1,
            spec={"runtime": {"agent": "Disabled"}, **limit},
        ),
    )
    for name, reason, cause, words in (
        ("no-program", contract.REASON_START, contract.REASON_START, "/no/such/program"),
        ("no-script", contract.REASON_START, contract.REASON_START, "/code/none.py"),
        ("crash", contract.REASON_USER_ERROR, contract.REASON_USER_ERROR, "No module named 'no_such_module'"),
        (
            "init",
            contract.REASON_LIMIT,
            contract.REASON_INIT_FAILED,
            "could not begin: init container fetch ended with exit code 4",
        ),
        ("plain", contract.REASON_LIMIT, contract.REASON_EXIT, 'exec: "/no/such/program"'),
    ):
        failed = e2e.wait_for_condition(name, namespace, "Failed", within_s=WITHIN_S)
        failure = e2e.job(name, namespace)["status"]["lastFailure"]
        assert (failed["reason"], failure["reason"]) == (reason, cause), name
        assert words in failed["message"], name
