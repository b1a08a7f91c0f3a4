"""Planned changes on a cluster: they wait for a boundary and lose no step, and an elastic job takes the size that there
is room for.

The loop begins a step, takes half a second for it, and reports it with a checkpoint. A change that stopped the ranks
where they stand would make them begin that step twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import e2e, gated
from support.release import operator
from trainjob_api import contract

__all__ = ["operator"]

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
STEADY = ("--pause", "0.5", "--steps", "1000")
"""Reports all the time, and never comes to its end here."""
WAITS = {"boundaryTimeoutSeconds": 120}
"""Longer than any step takes: who stops the ranks before has met a boundary."""
ELASTIC = {"minWorkers": 1, "maxWorkers": 3, "shrinkAfterSeconds": 5, "growAfterSeconds": 5}


def end_causes(name: str, namespace: str) -> list[str]:
    return [entry["endCause"] for entry in e2e.job(name, namespace)["status"].get("history", [])]


def made_once(name: str, namespace: str, since: int = 1) -> list[int]:
    """The steps that attempts from `since` on have begun; each must be the one after the last."""
    begun = [entry.step for entry in gated.begun(name, namespace) if entry.attempt >= since]
    assert begun and begun == list(range(begun[0], begun[0] + len(begun))), begun
    return begun


def below_target(name: str, namespace: str, reason: str, *words: str) -> Callable[[], dict[str, Any] | None]:
    """The condition, true or not, once it has that reason and says these words."""

    def look() -> dict[str, Any] | None:
        said = e2e.job(name, namespace).get("status", {}).get("conditions", [])
        found = next((each for each in said if each["type"] == "BelowTargetWorkers"), None)
        if found is None or found["reason"] != reason:
            return None
        return found if all(each in found["message"] for each in words) else None

    return look


def allow_pods(namespace: str, number: int) -> None:
    """Let the namespace have so many pods; those beyond that stay, none comes."""
    hard = {"pods": str(number)}
    e2e.apply(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "room", "namespace": namespace},
            "spec": {"hard": hard},
        }
    )
    e2e.eventually(
        f"a quota of {number} pods counts",
        lambda: e2e.get("resourcequota", "room", namespace).get("status", {}).get("hard") == hard,
    )


def test_planned_changes_wait_for_a_boundary_and_make_each_step_once(namespace: str) -> None:
    gated.start("count", namespace, *STEADY, spec={**WAITS, **gated.GRACEFUL})
    gated.wait_for_step("count", namespace, 2)
    e2e.kubectl("scale", "tj/count", "--replicas=3", "-n", namespace)
    assert len(gated.wait_for_starts("count", namespace, 2, 3)) == 3
    gated.wait_for_step("count", namespace, 0, attempt=2)
    e2e.kubectl("scale", "tj/count", "--replicas=1", "-n", namespace)
    gated.wait_for_starts("count", namespace, 3, 1)
    gated.wait_for_step("count", namespace, 0, attempt=3)
    e2e.kubectl("annotate", "tj", "count", f"{contract.ANNOTATION_RESTART}=now", "-n", namespace)
    gated.wait_for_starts("count", namespace, 4, 1)
    reached = gated.wait_for_step("count", namespace, 0, attempt=4).step
    assert made_once("count", namespace)[:reached] == list(range(reached))
    assert end_causes("count", namespace) == [
        contract.REASON_SCALED,
        contract.REASON_SCALED,
        contract.REASON_RESTART_REQUESTED,
    ]
    job = e2e.job("count", namespace)
    assert gated.counted(job) == 0 and "boundary" not in job["status"]


def test_an_eviction_waits_for_a_boundary_and_counts_as_a_preemption(namespace: str) -> None:
    """As `kubectl drain` asks for it, in a pod that has time for that."""
    gated.start("count", namespace, *STEADY, spec={**WAITS, **gated.GRACEFUL})
    gated.wait_for_step("count", namespace, 2)
    pod = max(e2e.uids("count", namespace))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
    e2e.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
    gated.wait_for_starts("count", namespace, 2, 2)
    gated.wait_for_step("count", namespace, 0, attempt=2)
    made_once("count", namespace)
    job = e2e.job("count", namespace)
    assert end_causes("count", namespace) == [contract.REASON_PREEMPTED]
    assert gated.counted(job) == 0 and job["status"]["failures"]["preemptions"] == 1


def test_the_example_of_an_elastic_job_is_scaled_and_no_step_is_lost(namespace: str) -> None:
    """`examples/elastic` as it stands, but for the image and the claim that all pods can write."""
    folder = ROOT / "examples" / "elastic"
    job: dict[str, Any] = yaml.safe_load((folder / "trainjob.yaml").read_text(encoding="utf-8"))
    like = e2e.training_job("elastic", namespace)["spec"]["template"]["spec"]
    pod = job["spec"]["template"]["spec"]
    for volume in pod["volumes"]:
        if volume["name"] == "checkpoints":
            (shared,) = (each for each in like["volumes"] if each["name"] == "checkpoints")
            volume.clear()
            volume.update(shared)
    (container,) = pod["containers"]
    container |= {name: like["containers"][0][name] for name in ("image", "imagePullPolicy", "resources")}
    container["workingDir"] = "/workspace"
    job["metadata"]["namespace"] = namespace
    job["spec"]["workers"] = 2
    code = {"train.py": (folder / "train.py").read_text(encoding="utf-8")}
    held = {"kind": "ConfigMap", "metadata": {"name": "elastic-code", "namespace": namespace}, "data": code}
    e2e.apply({"apiVersion": "v1", **held}, job)

    def begun() -> list[tuple[int, int, int]]:
        """(attempt, ranks, step) of each attempt that rank 0 told of."""
        text = e2e.logs("elastic-0", namespace)
        return [
            (int(attempt), int(ranks), int(step))
            for attempt, ranks, step in re.findall(r"attempt (\d+) with (\d+) ranks: from step (\d+)", text)
        ]

    def reported() -> int:
        return int(e2e.job("elastic", namespace)["status"].get("progress", {}).get("step") or 0)

    for attempt, size in enumerate((2, 3, 1), start=1):
        if attempt > 1:
            e2e.kubectl("scale", "tj/elastic", f"--replicas={size}", "-n", namespace)
        told = e2e.eventually(
            f"attempt {attempt} has begun", lambda count=attempt: len(begun()) == count and begun()[-1]
        )
        assert told[:2] == (attempt, size)
        if attempt > 1:
            status = e2e.job("elastic", namespace)["status"]
            reports = [0, *(entry["position"] for entry in status["history"])]
            resumed = int(status["attempt"]["resumedFrom"].split("-")[2])
            assert resumed == reports[attempt - 1] - reports[attempt - 2], "the last report of the size before"
            assert told[2] > begun()[attempt - 2][2]
        e2e.eventually("it trains on", lambda since=told[2]: reported() > since)
    assert end_causes("elastic", namespace) == [contract.REASON_SCALED] * 2


def test_a_change_that_waits_is_told_of_and_can_be_taken_back(namespace: str) -> None:
    """A loop at a gate reports nothing: the change waits, and `status.boundary` says which."""
    gated.start("count", namespace, "--gates", "3", "--steps", "6", spec=WAITS)
    gated.wait_for_step("count", namespace, 2)
    suspend = ("patch", "tj", "count", "-n", namespace, "--type=merge", "-p")
    e2e.kubectl(*suspend, json.dumps({"spec": {"suspend": True}}))
    waiting = e2e.eventually("it waits", lambda: e2e.job("count", namespace)["status"].get("boundary"))
    assert waiting["cause"] == contract.REASON_SUSPENDED
    e2e.eventually(
        "it says for what",
        lambda: "waits for the next report()" in e2e.wait_for_condition("count", namespace, "Progressing")["message"],
    )
    e2e.kubectl(*suspend, json.dumps({"spec": {"suspend": False}}))
    e2e.eventually("it waits no more", lambda: "boundary" not in e2e.job("count", namespace)["status"])
    gated.open_gate("count", namespace, 3)
    e2e.wait_for_condition("count", namespace, "Complete")
    assert e2e.job("count", namespace)["status"]["attempt"]["number"] == 1
    e2e.eventually("all its steps are told of", lambda: made_once("count", namespace) == list(range(6)))


def test_an_elastic_job_takes_the_size_that_there_is_room_for(namespace: str) -> None:
    below = contract.REASON_BELOW_TARGET
    # One of them may come up long before the other: it does not begin alone.
    from_two = {**ELASTIC, "minWorkers": 2}
    allow_pods(namespace, 2)
    gated.start("count", namespace, *STEADY, "--mode", "SYNC", workers=3, spec={**WAITS, "elastic": from_two})
    small = gated.wait_for_starts("count", namespace, 1, 2)
    assert {entry.world for entry in small} == {2}, "it begins with those that are there"
    words = ("training continues with 2 of 3 workers", "exceeded quota: room")
    told = e2e.eventually("it says what keeps the third away", below_target("count", namespace, below, *words))
    assert told["status"] == "True"
    gated.wait_for_step("count", namespace, 2)

    e2e.kubectl("delete", "resourcequota", "room", "-n", namespace)
    larger = gated.wait_for_starts("count", namespace, 2, 3)
    assert {entry.world for entry in larger} == {3}
    gated.wait_for_step("count", namespace, 0, attempt=2)
    made_once("count", namespace)
    assert end_causes("count", namespace) == [contract.REASON_RESIZED]
    told = e2e.eventually("all are there", below_target("count", namespace, contract.REASON_AT_TARGET))
    assert told["status"] == "False" and gated.counted(e2e.job("count", namespace)) == 0

    allow_pods(namespace, 2)
    lost = max(e2e.uids("count", namespace))
    e2e.kubectl("delete", "pod", lost, "-n", namespace, "--wait=false")
    smaller = gated.wait_for_starts("count", namespace, 3, 2)
    assert {entry.world for entry in smaller} == {2} and gated.lost(smaller) == 0
    gated.wait_for_step("count", namespace, smaller[0].step, attempt=3)
    made_once("count", namespace, since=3)
    e2e.eventually("one is missing again", below_target("count", namespace, below))
    assert gated.counted(e2e.job("count", namespace)) == 1, "the loss of a pod counts, the smaller size does not"


def test_kubectl_says_which_sizes_there_are(namespace: str) -> None:
    words = "must be from elastic.minWorkers to elastic.maxWorkers: it is the wished number of workers"
    e2e.apply(gated.looping("count", namespace, *STEADY, workers=1, spec={"suspend": True, "elastic": ELASTIC}))
    with pytest.raises(e2e.KubectlError, match=words):
        e2e.kubectl("scale", "tj/count", "--replicas=4", "-n", namespace)
    with pytest.raises(e2e.KubectlError, match=r"must be one of elastic\.allowedSizes"):
        e2e.apply(
            gated.looping("sizes", namespace, *STEADY, workers=2, spec={"elastic": {**ELASTIC, "allowedSizes": [1, 3]}})
        )
    e2e.kubectl("scale", "tj/count", "--replicas=3", "-n", namespace)
    assert e2e.job("count", namespace)["spec"]["workers"] == 3
