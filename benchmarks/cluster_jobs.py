"""Jobs on a cluster as the measurements see them: a timeline from a watch and from what ranks print, and the leader's
metrics.

Used by kubernetes.py alone. Reaches the cluster that KUBECONFIG names through the end-to-end tests' own means
(PYTHONPATH=tests).
"""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.jobs import WORKLOADS
from support import e2e, release
from support.kube_proxy import Proxy
from trainjob_api import contract

WATCHED_S = 300
"""A watch ends by itself after this."""
_SAID = re.compile(r"rank (\d+) attempt (\d+) (began|imported|joined|step \d+) at ([\d.]+)")
_SAMPLE = re.compile(r"^([a-z_]+?)(?:_total)?(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_KILL = """
import os, signal, time
for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
    try:
        words = open(f"/proc/{pid}/environ", "rb").read().split(b"\\0")
    except OSError:
        continue
    if b"RANK=1" in words and any(word.startswith(b"MARK=") for word in words):
        print(time.time())
        os.kill(pid, signal.SIGKILL)
        break
"""


@contextmanager
def namespace(name: str) -> Iterator[str]:
    """A namespace of its own, with the workload in it."""
    made = e2e.create_namespace(f"bench-{name}")
    try:
        e2e.kubectl("create", "configmap", "workload", "-n", made, f"--from-file={WORKLOADS / 'cluster_steps.py'}")
        yield made
    finally:
        e2e.delete_namespace(made)


def training(name: str, where: str, workers: int = 2) -> dict[str, Any]:
    """The DDP workload."""
    document = e2e.training_job(
        name, where, workers=workers, command=("python", "/code/cluster_steps.py"), storage=False
    )
    document["spec"]["template"]["spec"]["volumes"][0]["configMap"] = {"name": "workload"}
    return document


Said = dict[tuple[int, int, str], float]
"""(attempt, rank, what) -> when."""


def said(name: str, where: str) -> Said:
    """From the logs of pods that are there."""
    return said_in(e2e.pods(name, where), where)


def said_in(pods: list[dict[str, Any]], where: str, container: str = contract.TRAINER_CONTAINER) -> Said:
    """The same of these pods, whoever made them."""
    found: Said = {}
    for pod in pods:
        try:
            text = e2e.logs(pod["metadata"]["name"], where, container)
        except e2e.KubectlError:
            continue  # not started yet, or on its way out
        found |= parsed(text)
    return found


def parsed(text: str) -> Said:
    """What ranks have printed."""
    return {(int(attempt), int(rank), what): float(at) for rank, attempt, what, at in _SAID.findall(text)}


def kill_rank_1(
    pod: str, where: str, container: str = contract.TRAINER_CONTAINER, mark: str = contract.ENV_AGENT_SOCKET
) -> float:
    """SIGKILL it inside its pod; returns when. `mark`: a variable that ranks have and their launcher has not."""
    return float(e2e.in_pod(pod, where, "python", "-c", _KILL.replace("MARK", mark), container=container))


def first_step(name: str, where: str, attempt: int) -> float:
    """When rank 0 had done the first step of an attempt; waits for it."""

    def look() -> float:
        steps = [
            at
            for (number, rank, what), at in said(name, where).items()
            if number == attempt and rank == 0 and what.startswith("step")
        ]
        return min(steps, default=0.0)

    return e2e.eventually(f"{name} does a step in attempt {attempt}", look, within_s=240)


class Watch:
    """Notes when each state of a namespace's jobs or pods was first seen."""

    def __init__(self, api: Proxy, path: str, look: Callable[[dict[str, Any]], set[str]]) -> None:
        self.seen: dict[str, float] = {}
        """Mark -> when it was last new: of several pods the last one counts."""
        self._look = look
        self._known: set[tuple[str, str]] = set()
        self._answer = urllib.request.urlopen(
            f"{api.base}{path}?watch=1&timeoutSeconds={WATCHED_S}", timeout=WATCHED_S + 30
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._answer:
            found, now = json.loads(line)["object"], time.time()
            for mark in self._look(found):
                if (found["metadata"]["name"], mark) not in self._known:
                    self._known.add((found["metadata"]["name"], mark))
                    self.seen[mark] = now


def pod_marks(pod: dict[str, Any]) -> set[str]:
    """How far a worker's pod has come."""
    status = pod.get("status", {})
    runtime = [state for state in status.get("initContainerStatuses", []) if "terminated" in state["state"]]
    marks = {"created": True, "scheduled": bool(pod["spec"].get("nodeName")), "runtime": bool(runtime)}
    return {mark for mark, reached in marks.items() if reached}


def pods_path(where: str) -> str:
    """All pods of a namespace."""
    return f"/api/v1/namespaces/{where}/pods"


class Leader:
    """The leading operator's metrics."""

    def __init__(self, api: Proxy) -> None:
        self._api = api
        self._path = (
            f"/api/v1/namespaces/{release.NAMESPACE}/pods/{release.leader()}:{contract.METRICS_PORT}/proxy/metrics"
        )

    def samples(self) -> dict[tuple[str, str], float]:
        """(name without _total, labels) -> value."""
        return {
            (name, labels): float(value) for name, labels, value in _SAMPLE.findall(self._api.text("GET", self._path))
        }

    def value(self, name: str) -> float:
        """The sum over all labels."""
        return sum(value for (found, _), value in self.samples().items() if found == name)

    def writes(self) -> dict[str, float]:
        """Calls of the operator that changed something in the cluster, by resource."""
        counts: dict[str, float] = {}
        for (name, labels), value in self.samples().items():
            words = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if (
                name == "trainjob_api_calls"
                and words.get("verb") in ("POST", "PUT", "PATCH", "DELETE")
                and words["code"].startswith("2")
            ):
                counts[words["resource"]] = counts.get(words["resource"], 0) + value
        return {
            resource: count
            for resource, count in counts.items()
            if resource not in ("tokenreviews", "selfsubjectaccessreviews", "leases")
        }
