"""Many jobs at once, and jobs that are too large to run beside each other."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from support import e2e, gated
from support.kube_proxy import Proxy, Refused, jobs, proxy
from support.release import operator
from trainjob_api import contract

__all__ = ["operator"]

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("operator"), pytest.mark.timeout(1200)]

Figure = Callable[[str, str], None]

FIFTY = 50
SHORT = ("--steps", "3")


# --- Fifty ------------------------------------------------------------------------------------------------------------


def test_fifty_jobs_at_once_complete(namespace: str, figure: Figure) -> None:
    gated.code(namespace)
    documents = [gated.looping(f"job-{number}", namespace, *SHORT, workers=1) for number in range(FIFTY)]
    begun = time.monotonic()
    e2e.apply(*documents)
    with proxy() as api:
        ended = e2e.eventually("all have ended", lambda: all_ended(api, namespace), within_s=420, every_s=1.0)
    figure("fifty jobs, apply to the last Complete", f"{time.monotonic() - begun:.1f} s")
    assert Counter(job["status"]["phase"] for job in ended) == {"Complete": FIFTY}
    for job in ended:
        assert job["status"]["attempt"]["number"] == 1 and gated.counted(job) == 0, job["status"]
        assert job["status"]["progress"]["step"] == 3 and job["status"]["progress"]["percent"] == 100
    slots = {job["status"]["nextSlot"] for job in ended}
    assert slots == {1}, "one pod for each"


def all_ended(api: Proxy, namespace: str) -> list[dict[str, Any]] | None:
    found = api.request("GET", jobs(namespace))["items"]
    return found if all(e2e.condition(job, "Complete") or e2e.condition(job, "Failed") for job in found) else None


# --- Three quarters each ----------------------------------------------------------------------------------------------


GATE = "trainjob.dev/e2e"
GONE = 404
PER_NODE = 2
"""Workers of this test that fit onto a node."""


def test_two_jobs_that_hold_half_of_what_they_need_both_complete(namespace: str, figure: Figure) -> None:
    """Each needs three quarters of the cluster. Scheduling gates let each get half of it first: neither could ever
    begin.
    """
    nodes = e2e.listed("nodes", "default", "!node-role.kubernetes.io/control-plane")
    room = PER_NODE * len(nodes)
    size = math.ceil(room * 3 / 4)
    cpu = int(0.4 * min(millicores(node["status"]["allocatable"]["cpu"]) for node in nodes))
    gated.code(namespace)
    begun = time.monotonic()
    e2e.apply(*(large(name, namespace, size, cpu) for name in ("left", "right")))
    with proxy() as api:
        for name in ("left", "right"):
            e2e.eventually(f"all pods of {name} are there", lambda name=name: len(e2e.pods(name, namespace)) == size)
        for slot in range(room // 2):
            for name in ("left", "right"):
                let_go(api, namespace, f"{name}-{slot}")
                e2e.eventually(
                    "it has a node", lambda pod=f"{name}-{slot}": e2e.get("pod", pod, namespace)["spec"].get("nodeName")
                )
        told = e2e.eventually("one of them gives its pods back", lambda: gang_told(api, namespace), every_s=0.5)
        assert "found a node within 60 s; their pods are given back" in told and "Insufficient cpu" in told
        ended = e2e.eventually("both have ended", lambda: all_let_go(api, namespace), within_s=360, every_s=0.5)
    figure("two jobs of three quarters, apply to both Complete", f"{time.monotonic() - begun:.1f} s")
    for job in ended:
        assert job["status"]["phase"] == "Complete", job["status"]
        assert gated.counted(job) == 0 and job["status"]["attempt"]["number"] == 1, "waiting is no failure"


def large(name: str, namespace: str, size: int, millicores_each: int) -> dict[str, Any]:
    document = gated.looping(name, namespace, *SHORT, workers=size, spec={"startupDeadlineSeconds": 60})
    spec = document["spec"]["template"]["spec"]
    spec["containers"][0]["resources"] = {"requests": {"cpu": f"{millicores_each}m", "memory": "64Mi"}}
    spec["schedulingGates"] = [{"name": GATE}]
    return document


def millicores(text: str) -> int:
    return int(text[:-1]) if text.endswith("m") else int(float(text) * 1000)


def let_go(api: Proxy, namespace: str, pod: str) -> None:
    api.request("PATCH", f"/api/v1/namespaces/{namespace}/pods/{pod}", {"spec": {"schedulingGates": []}})


def let_all_go(api: Proxy, namespace: str) -> None:
    for pod in api.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]:
        if pod["spec"].get("schedulingGates") and "deletionTimestamp" not in pod["metadata"]:
            try:
                let_go(api, namespace, pod["metadata"]["name"])
            except Refused as error:
                if error.code != GONE:  # given back between the two requests
                    raise


def all_let_go(api: Proxy, namespace: str) -> list[dict[str, Any]] | None:
    """No gate holds a pod any more; the jobs once all have ended."""
    let_all_go(api, namespace)
    return all_ended(api, namespace)


def gang_told(api: Proxy, namespace: str) -> str | None:
    """The sentence of a job that waits for all its workers to get a node."""
    let_all_go(api, namespace)
    for job in api.request("GET", jobs(namespace))["items"]:
        for condition in job.get("status", {}).get("conditions", []):
            if condition["reason"] == contract.REASON_GANG:
                return str(condition["message"])
    return None
