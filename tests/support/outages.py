"""Faults of everything but the training itself: operator replicas, the API server, nodes. For the cluster of `make
cluster`.

Processes are killed by their id inside the node's container, as the kernel would; nothing is told to end.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cluster import engine, kind
from cluster.process import ToolError
from support import e2e, release

CONTROL_PLANE = "!node-role.kubernetes.io/control-plane"


def on_node(node: str, *command: str) -> str:
    """Run a command in a node. Raises ToolError."""
    found = engine.find()
    assert found is not None
    return found.docker("exec", node, *command)


def control_plane() -> str:
    """The node with the API server."""
    found = engine.find()
    assert found is not None
    return next(name for name in kind.nodes(found) if name.endswith("-control-plane"))


def workers() -> list[str]:
    """Nodes that run pods."""
    return [node["metadata"]["name"] for node in e2e.listed("nodes", "default", CONTROL_PLANE)]


# --- The API server ---------------------------------------------------------------------------------------------------


def api_server() -> str:
    """Its process in the control plane's node; empty: there is none."""
    # Other processes end while grep reads, of which it complains in its exit code too.
    found = on_node(control_plane(), "sh", "-c", "grep -lsx kube-apiserver /proc/[0-9]*/comm || true")
    return found.split("/")[2] if found.strip() else ""


def kill_api_server() -> str:
    """SIGKILL; the kubelet starts it again. Returns which process it was."""
    pid = api_server()
    on_node(control_plane(), "kill", "-9", pid)
    return pid


def api_answers() -> bool:
    """Whether it is there and ready."""
    try:
        return e2e.kubectl("get", "--raw", "/readyz", "--request-timeout=2s", timeout_s=10).strip() == "ok"
    except e2e.KubectlError:
        return False


# --- Nodes ------------------------------------------------------------------------------------------------------------


@contextmanager
def frozen(node: str) -> Iterator[None]:
    """All processes of a node stand still, and go on afterwards as if nothing had been."""
    found = engine.find()
    assert found is not None
    found.docker("pause", node)
    try:
        yield
    finally:
        found.docker("unpause", node)


# --- The operator -----------------------------------------------------------------------------------------------------


def wait_for_replicas() -> None:
    """Until two replicas are there and ready: one leads, one can take over."""
    e2e.eventually(
        "two replicas are ready",
        lambda: [bool(e2e.condition(pod, "Ready")) for pod in release.pods()] == [True, True],
    )


def kill_operator(pod: dict[str, Any]) -> None:
    """SIGKILL of a replica's process. Raises ToolError if there is none."""
    name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    # Other processes end while grep reads, of which it complains in its exit code too.
    found = on_node(node, "sh", "-c", f"grep -lsz '^POD_NAME={name}$' /proc/[0-9]*/environ || true").split()
    if not found:
        raise ToolError(f"no process of {name} in {node}")
    for path in found:
        on_node(node, "kill", "-9", path.split("/")[2])


def delete_operator(pod: dict[str, Any]) -> None:
    """The replica's pod is gone at once; its Deployment makes another."""
    e2e.kubectl(
        "delete", "pod", pod["metadata"]["name"], "-n", release.NAMESPACE, "--grace-period=0", "--force", "--wait=false"
    )


@dataclass
class OperatorKills:
    """Kills replicas at random moments in a thread of its own: `with` it around the work that must not suffer."""

    seed: int
    count: int
    between_s: tuple[float, float] = (2.0, 9.0)
    done: list[str] = field(default_factory=list)
    """What was killed, and how."""
    error: Exception | None = None

    def __enter__(self) -> OperatorKills:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="operator-kills", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def wait(self) -> None:
        """Until all kills are made."""
        e2e.eventually(
            f"the operator has been killed {self.count} times",
            lambda: self.error or not self._thread.is_alive(),
            within_s=300,
        )
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        rng = random.Random(self.seed)
        try:
            while len(self.done) < self.count and not self._stop.wait(rng.uniform(*self.between_s)):
                self._kill(rng)
        except Exception as error:  # the thread's top: told by wait()
            self.error = error

    def _kill(self, rng: random.Random) -> None:
        """The leader three times of four. A container that was killed before would wait ever longer to come back:
        its pod is deleted.
        """
        running = [
            pod
            for pod in release.pods()
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
        ]
        if not running:
            return
        leader = release.leader()
        leading = [pod for pod in running if pod["metadata"]["name"] == leader]
        pod = leading[0] if leading and rng.random() < 0.75 else rng.choice(running)
        fresh = all(status["restartCount"] == 0 for status in pod["status"].get("containerStatuses", []))
        how = kill_operator if fresh and rng.random() < 0.6 else delete_operator
        try:
            how(pod)
        except (ToolError, e2e.KubectlError):
            return  # it went away by itself in that moment
        self.done.append(
            f"{time.strftime('%H:%M:%S')} {how.__name__} "
            f"{pod['metadata']['name']}{' (leader)' if leading and pod is leading[0] else ''}"
        )
