"""A real cluster as end-to-end tests see it: kubectl, digits jobs, waits with deadlines, faults inside pods and on
nodes.

Works on whatever KUBECONFIG names; only the faults of nodes need the cluster of `make cluster`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from cluster import engine, kind
from cluster.binaries import binary
from cluster.images import E2E_BASE, TAG
from trainjob_api import contract

ROOT = Path(__file__).resolve().parents[2]
CODE = "digits-code"
"""The ConfigMap with train.py in each test's namespace."""
SHARED = "/shared"
"""A folder that all workers' nodes share."""
IMAGE = f"{E2E_BASE}:{TAG}"
PATIENCE_S = 240.0
"""How long a test waits for what comes within seconds on a machine that has time for it."""


T = TypeVar("T")


class KubectlError(AssertionError):
    """kubectl failed; the message is what it said."""


# --- kubectl ----------------------------------------------------------------------------------------------------------


def kubectl(*words: str, stdin: str | None = None, timeout_s: float = PATIENCE_S) -> str:
    """Run kubectl and return what it printed. Raises KubectlError."""
    command = [shutil.which("kubectl") or str(binary("kubectl")), *words]
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise KubectlError(f"kubectl {' '.join(words)}: no end within {timeout_s:.0f} s") from None
    if done.returncode != 0:
        raise KubectlError(f"kubectl {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def apply(*documents: Mapping[str, Any]) -> None:
    """Apply manifests, as a user would. Raises KubectlError with the API server's words."""
    kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(documents)}))


def get(what: str, name: str, namespace: str) -> dict[str, Any]:
    """One object. Raises KubectlError if it is not there."""
    document: dict[str, Any] = json.loads(kubectl("get", what, name, "-n", namespace, "-o", "json"))
    return document


def listed(what: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
    """Objects by label selector, in the order of their names."""
    items: list[dict[str, Any]] = json.loads(kubectl("get", what, "-n", namespace, "-l", selector, "-o", "json"))[
        "items"
    ]
    return sorted(items, key=lambda item: item["metadata"]["name"])


def logs(pod: str, namespace: str, container: str = contract.TRAINER_CONTAINER) -> str:
    """What a container has printed so far."""
    return kubectl("logs", pod, "-n", namespace, "-c", container)


def in_pod(pod: str, namespace: str, *command: str, container: str = contract.TRAINER_CONTAINER) -> str:
    """Run a command inside a container."""
    return kubectl("exec", pod, "-n", namespace, "-c", container, "--", *command)


# --- Waiting ----------------------------------------------------------------------------------------------------------


def eventually(what: str, look: Callable[[], T], *, within_s: float = PATIENCE_S, every_s: float = 0.2) -> T:
    """Poll `look` until it returns something true, and return that; kubectl's errors count as false. Fails naming
    `what` and the last answer.
    """
    deadline = time.monotonic() + within_s
    last: object = None
    while True:
        try:
            found = look()
            if found:
                return found
            last = found
        except KubectlError as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {within_s:.0f} s; last: {last}")
        time.sleep(every_s)


# --- Namespaces and jobs ----------------------------------------------------------------------------------------------


def create_namespace(test: str) -> str:
    """A namespace of its own for a test, with the digits script in a ConfigMap."""
    short = re.sub(r"[^a-z0-9]+", "-", test.removeprefix("test_").lower()).strip("-")[:40].strip("-")
    name = f"{short}-{uuid.uuid4().hex[:6]}"
    kubectl("create", "namespace", name)
    kubectl("create", "configmap", CODE, "-n", name, f"--from-file={ROOT / 'examples/digits/train.py'}")
    # The default service account comes a moment after its namespace; pods are refused without it.
    eventually("the default service account", lambda: get("serviceaccount", "default", name))
    return name


def delete_namespace(name: str) -> None:
    """Its jobs first, so that nothing is made anew while it goes."""
    try:
        kubectl("delete", f"{contract.PLURAL}.{contract.GROUP}", "--all", "-n", name, "--wait=false")
    except KubectlError:
        pass
    kubectl("delete", "namespace", name, "--wait=false")


def training_job(
    name: str,
    namespace: str,
    *,
    workers: int = 2,
    arguments: Sequence[str] = ("--epochs", "5"),
    command: Sequence[str] | None = None,
    storage: bool = True,
    spec: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A TrainJob of the digits example; `command` replaces the script, `spec` is merged over the rest (lists are
    replaced).

    Checkpoints go to the folder that all nodes share, under the namespace's name.
    """
    trainer: dict[str, Any] = {
        "name": contract.TRAINER_CONTAINER,
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command or ("python", "/code/train.py", *arguments)),
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "volumeMounts": [{"name": "code", "mountPath": "/code"}],
    }
    volumes: list[dict[str, Any]] = [{"name": "code", "configMap": {"name": CODE}}]
    document: dict[str, Any] = {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "workers": workers,
            "template": {"spec": {"terminationGracePeriodSeconds": 5, "containers": [trainer], "volumes": volumes}},
        },
    }
    if storage:
        trainer["volumeMounts"].append({"name": "checkpoints", "mountPath": "/checkpoints"})
        volumes.append(
            {"name": "checkpoints", "hostPath": {"path": f"{SHARED}/{namespace}", "type": "DirectoryOrCreate"}}
        )
        document["spec"]["checkpoint"] = {"storage": "/checkpoints"}
    _merge(document["spec"], spec or {})
    return document


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def pod_on_node(name: str, namespace: str, node: str, *command: str, **container: Any) -> dict[str, Any]:
    """A pod of no job, labelled `app: <name>`; `container`: more of its only one."""
    main = {"name": "main", "image": IMAGE, "command": list(command), **container}
    spec = {"nodeName": node, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [main]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": spec,
    }


def job(name: str, namespace: str) -> dict[str, Any]:
    """The TrainJob as it is now."""
    return get(f"{contract.PLURAL}.{contract.GROUP}", name, namespace)


def condition(document: Mapping[str, Any], kind_of: str) -> dict[str, Any] | None:
    """The condition of an object (job, pod, node) if it holds, else None."""
    for entry in document.get("status", {}).get("conditions", []):
        if entry["type"] == kind_of and entry["status"] == "True":
            return dict(entry)
    return None


def wait_for_condition(name: str, namespace: str, kind_of: str, *, within_s: float = PATIENCE_S) -> dict[str, Any]:
    """Wait until a condition holds and return it; a job that failed instead fails the test at once with its cause."""

    def look() -> dict[str, Any] | None:
        document = job(name, namespace)
        ended = condition(document, "Failed") if kind_of == "Complete" else None
        assert ended is None, f"{name} failed instead: {ended}"
        return condition(document, kind_of)

    return eventually(f"{name} is {kind_of}", look, within_s=within_s)


def wait_for_step(name: str, namespace: str, step: int, *, within_s: float = PATIENCE_S) -> int:
    """Wait until rank 0's log shows a report at `step` or later; returns the step that it shows."""

    def look() -> int:
        text = "\n".join(
            logs(pod["metadata"]["name"], namespace)
            for pod in pods(name, namespace)
            if pod["status"]["phase"] != "Pending"
        )
        return max((int(found) for found in re.findall(r"attempt \d+ step (\d+)", text)), default=0)

    return eventually(f"{name} reports step {step}", lambda: (found := look()) >= step and found, within_s=within_s)


def pods(name: str, namespace: str) -> list[dict[str, Any]]:
    """The job's pods."""
    return listed("pods", namespace, f"{contract.LABEL_JOB}={name}")


def uids(name: str, namespace: str) -> dict[str, str]:
    """Pod name -> UID."""
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods(name, namespace)}


def what_happened(namespace: str) -> str:
    """For the report of a failed test: jobs, pods, events and the ends of logs."""
    parts = []
    for words in (
        ("get", contract.PLURAL, "-o", "yaml"),
        ("get", "pods", "-o", "wide"),
        ("get", "events", "--sort-by=.lastTimestamp"),
    ):
        parts.append(_attempt(*words, "-n", namespace))
    for pod in listed("pods", namespace):
        parts.append(
            _attempt("logs", pod["metadata"]["name"], "-n", namespace, "--all-containers", "--tail=30", "--prefix")
        )
    return "\n\n".join(parts)


def _attempt(*words: str) -> str:
    try:
        return f"$ kubectl {' '.join(words)}\n{kubectl(*words)}"
    except KubectlError as error:
        return str(error)


# --- Faults -----------------------------------------------------------------------------------------------------------

_KILL = """
import os, signal
for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read().split(b"\\0")
    except OSError:
        continue
    if b"RANK=RANK_TO_KILL" in words and any(word.startswith(b"%s=") for word in words):
        os.kill(pid, signal.SIGNAL)
        print(pid)
        break
""".replace("%s", contract.ENV_AGENT_SOCKET)
"""An agent's own environment has no agent socket in it, those of its ranks have."""


def kill_rank(pod: str, namespace: str, rank: int, number: signal.Signals = signal.SIGKILL) -> int:
    """Signal a rank inside its pod; returns the process id there."""
    program = _KILL.replace("RANK_TO_KILL", str(rank)).replace("SIGNAL", number.name)
    said = in_pod(pod, namespace, "python", "-c", program)
    assert said.strip(), f"no process of rank {rank} in {pod}"
    return int(said)


def has_own_nodes() -> bool:
    """Whether nodes are containers that this machine's engine holds, so that they can be killed."""
    found = engine.find()
    return found is not None and bool(kind.nodes(found))


def kill_node(name: str) -> None:
    """A node vanishes from one moment to the next, as by a power cut."""
    _engine().docker("kill", name)


def restore_nodes() -> None:
    """Start the nodes that were killed, and wait until all are Ready and take pods: what kept those away goes later."""
    found = _engine()
    for name, state in kind.nodes(found).items():
        if state != "running":
            found.docker("unpause" if state == "paused" else "start", name)
    eventually(
        "all nodes are Ready again",
        lambda: all(condition(node, "Ready") and not _keeps_away(node) for node in listed("nodes", "default")),
    )


def _keeps_away(node: dict[str, Any]) -> bool:
    """It was not there, or was told to take no pods: Kubernetes takes that back a moment after it is Ready."""
    return not {taint["key"].rpartition("/")[2] for taint in node["spec"].get("taints") or ()}.isdisjoint(
        ("not-ready", "unreachable", "unschedulable")
    )


def is_node_ready(name: str) -> bool:
    """Whether the API server believes that the node lives."""
    return condition(get("node", name, "default"), "Ready") is not None


def _engine() -> engine.Engine:
    found = engine.find()
    assert found is not None, "nodes can only be killed on the cluster of `make cluster`"
    return found


def kubeconfig() -> str:
    """The cluster under test."""
    return os.environ["KUBECONFIG"]
