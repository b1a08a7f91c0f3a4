"""Jobs of tests/e2e/loops/gated.py: training without torch that goes as far as the test lets it, and says what it
lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from support import e2e
from trainjob_api import contract

T = TypeVar("T")

LOOPS = e2e.ROOT / "tests/e2e/loops"
GRACEFUL = {"template": {"spec": {"terminationGracePeriodSeconds": 60}}}
"""Of a job whose pods store what they have staged before they go: enough on a machine that others use too. Agents end
sooner, once they have."""
FOLDER = "/checkpoints"
"""Where gates and notes are, beside the checkpoints."""
_START = re.compile(r"rank (\d+) of (\d+) attempt (\d+): from step (\d+), acknowledged (-?\d+)")
_BEGUN = re.compile(r"attempt (\d+) begins step (\d+) at ([\d.]+)")
_STEP = re.compile(r"attempt (\d+) step (\d+) at ([\d.]+)")


@dataclass(frozen=True)
class Start:
    """What a rank said at its start."""

    rank: int
    world: int
    attempt: int
    step: int
    acknowledged: int
    """The last step that had ever been acknowledged to it."""


@dataclass(frozen=True)
class Step:
    """A step as rank 0 printed it, begun or acknowledged."""

    attempt: int
    step: int
    at: float


def code(namespace: str) -> None:
    """Bring the loops to a namespace; once."""
    files = [f"--from-file={path}" for path in sorted(LOOPS.glob("*.py"))]
    made = e2e.kubectl("create", "configmap", "loops", "-n", namespace, *files, "--dry-run=client", "-o", "json")
    e2e.kubectl("apply", "-f", "-", stdin=made)


def looping(
    name: str, namespace: str, *arguments: str, command: Sequence[str] | None = None, **more: Any
) -> dict[str, Any]:
    """A TrainJob of the gated loop; each job has a folder of its own on storage, so that several fit into one
    namespace.

    A planned change does not wait for a boundary, unless `spec` says so: a loop that stands at a gate reports nothing.
    """
    at_once = {"boundaryTimeoutSeconds": 0}
    document = e2e.training_job(
        name,
        namespace,
        command=command or ("python", "/code/gated.py", FOLDER, *arguments),
        **{**more, "spec": {**at_once, **(more.get("spec") or {})}},
    )
    spec = document["spec"]["template"]["spec"]
    for volume in spec["volumes"]:
        if volume["name"] == "code":
            volume["configMap"] = {"name": "loops"}
        if volume["name"] == "checkpoints":
            volume["hostPath"]["path"] += f"/{name}"
    for container in spec["containers"]:
        container["resources"] = {"requests": {"cpu": "10m", "memory": "64Mi"}}
    return document


def start(name: str, namespace: str, *arguments: str, **more: Any) -> None:
    """Apply a job of the loop."""
    code(namespace)
    e2e.apply(looping(name, namespace, *arguments, **more))


def open_gate(name: str, namespace: str, step: int) -> None:
    """Let the ranks pass; asks pod after pod, since some may be on their way out."""

    def touch() -> bool:
        running = [
            pod
            for pod in e2e.pods(name, namespace)
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
        ]
        return any(_touched(pod["metadata"]["name"], namespace, step) for pod in running)

    e2e.eventually(f"gate {step} of {name} is open", touch)


def _touched(pod: str, namespace: str, step: int) -> bool:
    try:
        e2e.in_pod(pod, namespace, "touch", f"{FOLDER}/go-{step}")
    except e2e.KubectlError:
        return False
    return True


def said(name: str, namespace: str) -> str:
    """The logs of all pods of the job that have one."""
    texts = []
    for pod in e2e.pods(name, namespace):
        try:
            texts.append(e2e.logs(pod["metadata"]["name"], namespace))
        except e2e.KubectlError:
            continue  # its container has not been created, or is gone
    return "\n".join(texts)


def starts(name: str, namespace: str, attempt: int) -> list[Start]:
    """What the ranks of an attempt said at their start, by rank."""
    found = {Start(*(int(word) for word in match)) for match in _START.findall(said(name, namespace))}
    return sorted((entry for entry in found if entry.attempt == attempt), key=lambda entry: entry.rank)


def steps(name: str, namespace: str) -> list[Step]:
    """The steps that were acknowledged, in their order, as far as pods still tell."""
    found = {Step(int(attempt), int(step), float(at)) for attempt, step, at in _STEP.findall(said(name, namespace))}
    return sorted(found, key=lambda entry: entry.at)


def wait_for_steps(name: str, namespace: str, wanted: Iterable[int], *, attempt: int | None = None) -> None:
    """Wait until the pods tell of exactly these acknowledged steps, in this order and each once: what a rank printed last
    may come to its pod's log after the job is Complete.
    """
    expected = list(wanted)

    def look() -> bool:
        made = [entry.step for entry in steps(name, namespace) if attempt in (None, entry.attempt)]
        # What is told of once stays: a step too many is never mended.
        assert len(made) <= len(expected), f"{made}, not {expected}"
        return made == expected

    e2e.eventually(f"{name} tells of the steps {expected}, each once", look)


def begun(name: str, namespace: str) -> list[Step]:
    """Every step that rank 0 has begun, in order, as far as pods still tell: one that was begun twice stands here twice."""
    found = (Step(int(attempt), int(step), float(at)) for attempt, step, at in _BEGUN.findall(said(name, namespace)))
    return sorted(found, key=lambda entry: entry.at)


def wait_for_starts(
    name: str, namespace: str, attempt: int, ranks: int, *, within_s: float = e2e.PATIENCE_S
) -> list[Start]:
    """Wait until all ranks of an attempt have said where they go on."""

    def look() -> list[Start]:
        found = starts(name, namespace, attempt)
        return found if len(found) >= ranks else still_possible(name, namespace, [])

    return e2e.eventually(f"{ranks} ranks of attempt {attempt} of {name} have started", look, within_s=within_s)


def wait_for_step(name: str, namespace: str, step: int, *, attempt: int = 1, within_s: float = e2e.PATIENCE_S) -> Step:
    """Wait for an acknowledged step of an attempt."""

    def look() -> Step | None:
        found = (entry for entry in steps(name, namespace) if entry.attempt == attempt and entry.step >= step)
        return next(found, None) or still_possible(name, namespace, None)

    found = e2e.eventually(f"{name} has done step {step} in attempt {attempt}", look, within_s=within_s)
    assert found is not None
    return found


def still_possible(name: str, namespace: str, nothing: T) -> T:
    """`nothing` while there is hope; a job that has failed fails the test at once with its cause."""
    failed = e2e.condition(e2e.job(name, namespace), "Failed")
    assert failed is None, f"{name} has failed: {failed}"
    return nothing


def lost(entries: Sequence[Start]) -> int:
    """How many steps that had been acknowledged to some rank are gone; and all ranks must begin with the same step."""
    assert len({entry.step for entry in entries}) == 1, entries
    return max(0, max(entry.acknowledged for entry in entries) + 1 - entries[0].step)


def moment(text: str) -> float:
    """A timestamp of the API as seconds."""
    return datetime.fromisoformat(text).timestamp()


def counted(document: dict[str, Any]) -> int:
    """Failures that counted against the budget."""
    return int(document["status"].get("failures", {}).get("counted", 0))


def is_gone(what: str, name: str, namespace: str) -> bool:
    """Whether the object is not there."""
    return e2e.kubectl("get", what, name, "-n", namespace, "--ignore-not-found", "-o", "name").strip() == ""


def job_is_gone(name: str, namespace: str) -> bool:
    """Whether the TrainJob is not there."""
    return is_gone(f"{contract.PLURAL}.{contract.GROUP}", name, namespace)
