"""Blows of the rarer kind: edits that take each other back, a job that is made anew under its name, pods whose phase
says what none of ours does, a node that is silent and stands, one pod of many that nobody admits.

Used by `misfortunes.py`, beside its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

from support.simulation import NAMESPACE, Simulation
from trainjob_operator.cluster import Manifest, NotFound, Rejected

Blow = Callable[[Simulation, random.Random], None]
KUBELETS_REFUSALS = ("OutOfcpu", "UnexpectedAdmissionError", "NodeAffinity")


def _pods(sim: Simulation, *phases: str) -> list[Manifest]:
    """The operator's, that nobody deletes."""
    return [
        pod
        for pod in sim.cluster.pods(NAMESPACE)
        if pod["status"]["phase"] in phases
        and pod["metadata"].get("ownerReferences")
        and "deletionTimestamp" not in pod["metadata"]
    ]


def _later(sim: Simulation, delay_s: float, what: Callable[[], object]) -> None:
    async def wait() -> None:
        await asyncio.sleep(delay_s)
        what()

    sim.world.spawn(wait())


# --- The job ----------------------------------------------------------------------------------------------------------


def blink(sim: Simulation, rng: random.Random) -> None:
    """Suspended and resumed, before anybody has looked or soon after."""
    _there_and_back(sim, rng, {"suspend": True}, {"suspend": False})


def waver(sim: Simulation, rng: random.Random) -> None:
    """A field is edited, and a moment later it is as before."""
    spec = sim.cluster.job(NAMESPACE, "digits")["spec"]
    edits: list[Manifest] = [
        {"rendezvous": {"port": rng.randint(29003, 29009)}},
        {"failurePolicy": {"maxFailures": rng.choice([-1, 9])}},
        {"checkpoint": {"keep": rng.randint(1, 3)}},
        {"tracking": ["csv"]},
        {"boundaryTimeoutSeconds": rng.choice([0, 5])},
        {"runtime": {"preload": [f"module{rng.randint(0, 3)}"]}},
    ]
    patch = rng.choice(edits)
    back = {name: _as_before(spec.get(name), value) for name, value in patch.items()}
    _there_and_back(sim, rng, patch, back)


def _as_before(known: Any, patch: Any) -> Any:
    """The merge patch that takes one back."""
    if not isinstance(patch, dict):
        return known
    return {name: (known or {}).get(name) for name in patch}


def _there_and_back(sim: Simulation, rng: random.Random, there: Manifest, back: Manifest) -> None:
    sim.cluster.update_job_spec(NAMESPACE, "digits", there)
    uid = sim.job().metadata.uid

    def take_back() -> None:
        if sim.job().metadata.uid == uid:
            sim.cluster.update_job_spec(NAMESPACE, "digits", back)

    _later(sim, rng.choice([0.0, rng.uniform(0.0, 0.1), rng.uniform(0.0, 3.0)]), take_back)


def break_spec(sim: Simulation, rng: random.Random) -> None:
    """What the operator alone can refuse, for a while."""
    wrong = {"tracking": ["csv", "csv"]}
    good = {"tracking": None}
    sim.cluster.update_job_spec(NAMESPACE, "digits", wrong)
    _later(
        sim, rng.choice([0.0, rng.uniform(0.0, 30.0)]), lambda: sim.cluster.update_job_spec(NAMESPACE, "digits", good)
    )


def make_anew(sim: Simulation, rng: random.Random) -> None:
    """The job is deleted and made again under its name, while what ran goes away. The deletion may take a while: of a
    job that somebody's finalizer keeps, or whose pods are to go first.
    """
    job = sim.cluster.job(NAMESPACE, "digits")
    if is_going(job):
        return
    sim.cluster.mark_job_deleted(NAMESPACE, "digits")
    kept_s = rng.choice([0.0, 0.0, rng.uniform(0.0, 30.0)])
    if not kept_s:
        end_deletion(sim)
        return
    for pod in _pods(sim, "Pending", "Running", "Succeeded", "Failed") if rng.random() < 0.5 else ():
        with contextlib.suppress(NotFound):
            if pod["metadata"]["labels"]["trainjob.dev/job"] == "digits":
                sim.cluster.remove_pod(NAMESPACE, pod["metadata"]["name"])
    uid = job["metadata"]["uid"]
    _later(sim, kept_s, lambda: end_deletion(sim) if sim.job().metadata.uid == uid else None)


def is_going(job: Manifest) -> bool:
    """Whether somebody has deleted it."""
    return "deletionTimestamp" in job["metadata"]


def end_deletion(sim: Simulation) -> None:
    """The job that was deleted goes, and is made anew in the same moment."""
    spec = {**sim.cluster.job(NAMESPACE, "digits")["spec"], "suspend": False, "tracking": []}
    length = sim.world.training("digits").length
    sim.cluster.remove_job(NAMESPACE, "digits")
    del sim.world.trainings["digits"]
    sim.world.training("digits").length = length
    sim.cluster.create_job({"metadata": {"name": "digits", "namespace": NAMESPACE}, "spec": spec})


# --- Pods -------------------------------------------------------------------------------------------------------------


def refuse_on_node(sim: Simulation, rng: random.Random) -> None:
    """A kubelet does not take a pod: it has failed, and no container of it ever was."""
    bound = [pod for pod in _pods(sim, "Pending") if pod["spec"].get("nodeName")]
    if bound:
        sim.world.evictions += 1
        _fail_pending(sim, rng.choice(bound), {"phase": "Failed", "reason": rng.choice(KUBELETS_REFUSALS)})


def fail_init(sim: Simulation, rng: random.Random) -> None:
    """An init container of the user's ends with an error: the pod has failed."""
    bound = [pod for pod in _pods(sim, "Pending") if pod["spec"].get("nodeName")]
    if bound:
        ended = {"name": "fetch", "state": {"terminated": {"exitCode": 3, "reason": "Error"}}}
        trainer = {"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}
        status = {"phase": "Failed", "initContainerStatuses": [ended], "containerStatuses": [trainer]}
        sim.world.incidents += 1
        _fail_pending(sim, rng.choice(bound), status)


def _fail_pending(sim: Simulation, pod: Manifest, status: Manifest) -> None:
    conditions = [{"type": "PodScheduled", "status": "True"}]
    sim.cluster.set_pod_status(NAMESPACE, pod["metadata"]["name"], {**status, "conditions": conditions})


def lose_sight(sim: Simulation, rng: random.Random) -> None:
    """The phase of a pod is Unknown for a while, though all is well."""
    running = _pods(sim, "Running")
    if running:
        pod = rng.choice(running)
        name, uid, status = pod["metadata"]["name"], pod["metadata"]["uid"], pod["status"]
        sim.world.evictions += 1
        sim.cluster.set_pod_status(NAMESPACE, name, {**status, "phase": "Unknown"})

        def see() -> None:
            now = next((one for one in sim.cluster.pods(NAMESPACE) if one["metadata"]["uid"] == uid), None)
            if now is not None and now["status"]["phase"] == "Unknown":
                sim.cluster.set_pod_status(NAMESPACE, name, {**now["status"], "phase": "Running"})

        _later(sim, rng.uniform(0.5, 60.0), see)


def end_sidecar(sim: Simulation, rng: random.Random) -> None:
    """A container of the user's beside the trainer ends, well or not."""
    running = _pods(sim, "Running")
    if running:
        pod = rng.choice(running)
        status, code = pod["status"], rng.choice([0, 1, 137])
        beside = {"name": "metrics", "ready": False, "state": {"terminated": {"exitCode": code, "reason": "Error"}}}
        trainers = [one for one in status.get("containerStatuses") or [] if one["name"] != "metrics"]
        conditions = [
            {**one, "status": "False"} if one["type"] in ("Ready", "ContainersReady") else one
            for one in status["conditions"]
        ]
        sim.cluster.set_pod_status(
            NAMESPACE,
            pod["metadata"]["name"],
            {**status, "conditions": conditions, "containerStatuses": [*trainers, beside]},
        )


def refuse_one(sim: Simulation, rng: random.Random) -> None:
    """Admission refuses one pod of many, whenever it is asked; for a while."""
    slot = sim.job().status.next_slot + rng.randrange(3) if rng.random() < 0.5 else rng.randrange(4)
    name = f"digits-{slot}"

    def refuse() -> Exception | None:
        last = sim.calls[-1][0]
        return Rejected(f"admission webhook denied {name}") if last.name == name else None

    sim.obstacles["create_pod"] = refuse
    _later(sim, rng.uniform(1.0, 60.0), lambda: sim.obstacles.pop("create_pod", None))


# --- Nodes ------------------------------------------------------------------------------------------------------------


def cut_off_node(sim: Simulation, rng: random.Random) -> None:
    """A node has no way to the API server and to the operator, for a while: it is not Ready, and what runs there runs
    on.
    """
    world = sim.world
    nodes = sorted(
        {pod["spec"]["nodeName"] for pod in _pods(sim, "Running") if "nodeName" in pod["spec"]} - world.lost_nodes
    )
    if not nodes:
        return
    node = rng.choice(nodes)
    here = [agent for agent in world.agents.values() if world.cluster_pod(agent) and world.node_of(agent) == node]
    world.evictions += 1
    for agent in here:
        agent.muted = True
    _later(sim, 45.0, lambda: _mark(sim, node, "Unknown", "False") if any(agent.muted for agent in here) else None)

    def back() -> None:
        for agent in here:
            agent.muted = False
        if node not in world.lost_nodes:
            _mark(sim, node, "True", "True")

    _later(sim, rng.uniform(1.0, 100.0), back)


def _mark(sim: Simulation, node: str, ready: str, pods: str) -> None:
    """As the node controller does it."""
    with contextlib.suppress(NotFound):
        sim.cluster.set_node_ready(node, ready, "NodeStatusUnknown" if ready == "Unknown" else "KubeletReady")
    for pod in _pods(sim, "Running"):
        if pod["spec"].get("nodeName") == node:
            conditions = [
                {**one, "status": pods} if one["type"] == "Ready" else one for one in pod["status"]["conditions"]
            ]
            sim.cluster.set_pod_status(NAMESPACE, pod["metadata"]["name"], {**pod["status"], "conditions": conditions})


ODDITIES: tuple[Blow, ...] = (
    blink,
    waver,
    break_spec,
    make_anew,
    refuse_on_node,
    fail_init,
    lose_sight,
    end_sidecar,
    refuse_one,
    cut_off_node,
)
