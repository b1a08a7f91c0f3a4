"""What may befall a simulated job, each by a name: a blow is struck at a moment, with a random source of its own, so that a
run can be told again without some of its blows.

Used by `random_runs.py`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from support.oddities import ODDITIES, end_deletion, is_going
from support.puppet_agent import PuppetAgent
from support.simulation import NAMESPACE, Operator, Simulation, manifest
from trainjob.checkpoint import errors
from trainjob_api.v1alpha1 import TrainJobSpec
from trainjob_api.validation import validate_spec
from trainjob_operator.cluster import Manifest, Rejected, Unavailable
from trainjob_operator.core.pods.naming import parse_slots, spare_slots
from trainjob_operator.memory.store import merge

Blow = Callable[[Simulation, random.Random], None]


def _some_agent(sim: Simulation, rng: random.Random) -> Any:
    agents = sorted(sim.world.agents.values(), key=lambda agent: agent.pod_uid)
    return rng.choice(agents) if agents else None


OTHER = "other"
"""A second job, in runs that have one."""


def other_job(rng: random.Random) -> Manifest:
    """It needs room, or can make some, or both."""
    spec: dict[str, Any] = {"workers": rng.randint(1, 4), "checkpoint": {"storage": "/checkpoints"}}
    if rng.random() < 0.5:
        waits = {"shrinkAfterSeconds": rng.choice([0, 5, 30]), "growAfterSeconds": rng.choice([0, 10, 60])}
        spec["elastic"] = {"minWorkers": rng.randint(1, spec["workers"]), "maxWorkers": 4, **waits}
    elif rng.random() < 0.2:
        spec["runtime"] = {"agent": "Disabled"}
    job = manifest(OTHER, **spec)
    job["spec"]["template"]["spec"]["priority"] = rng.choice([0, 0, 10])
    return job


def _some_job(sim: Simulation, rng: random.Random) -> str:
    names = sorted(job["metadata"]["name"] for job in sim.cluster.jobs())
    return rng.choice(names) if len(names) > 1 else "digits"


def fail_rank(sim: Simulation, rng: random.Random) -> None:
    agent = _some_agent(sim, rng)
    if agent is not None:
        sim.world.fail_rank(agent, rng.randrange(agent.processes), exit_code=rng.choice([1, 2, 139]))


def crash_container(sim: Simulation, rng: random.Random) -> None:
    agent = _some_agent(sim, rng)
    if agent is not None:
        sim.world.crash_container(agent)


def lose_pod(sim: Simulation, rng: random.Random) -> None:
    agent = _some_agent(sim, rng)
    if agent is not None:
        sim.world.lose_pod(agent)


def strike_spare(sim: Simulation, rng: random.Random) -> None:
    """Whatever may befall a spare worker. (It may be taken before anybody has noticed, and then it counts.)"""
    spares = spare_slots(sim.job().status)
    agents = sorted((a for a in sim.world.agents.values() if a.slot in spares), key=lambda agent: agent.pod_uid)
    if not agents:
        return
    agent, world = rng.choice(agents), sim.world
    strikes: list[Callable[[Any], object]] = [
        world.lose_pod,
        world.evict_pod,
        world.crash_container,
        world.restart_container,
        world.terminate,
        world.announce_eviction,
    ]
    rng.choice(strikes)(agent)


def wish_spares(sim: Simulation, rng: random.Random) -> None:
    """More of them, fewer, or none."""
    change_spec(sim, {"runtime": {"spareWorkers": rng.randint(0, 2)}})


def evict_pod(sim: Simulation, rng: random.Random) -> None:
    agent = _some_agent(sim, rng)
    if agent is not None:
        _evict(sim, agent)


def _evict(sim: Simulation, agent: Any) -> None:
    sim.world.incidents += 1  # it is gone before a dead operator's successor can see why
    sim.world.evict_pod(agent)


def terminate(sim: Simulation, rng: random.Random) -> None:
    """SIGTERM without a deletion."""
    agent = _some_agent(sim, rng)
    if agent is not None:
        sim.world.terminate(agent)


def announce_eviction(sim: Simulation, rng: random.Random) -> None:
    """A pod is to go; it does so, or stays after all."""
    agent = _some_agent(sim, rng)
    if agent is not None:
        sim.world.announce_eviction(agent)
        after_all = rng.choice([lambda one: _evict(sim, one), lambda one: sim.world.announce_eviction(one, on=False)])
        sim.world.spawn(_later(rng.uniform(0.0, 40.0), lambda: after_all(agent) if agent.alive else None))


def announce_node(sim: Simulation, rng: random.Random) -> None:
    """A node is to go; its pods are evicted, or it stays after all."""
    world = sim.world
    nodes = sorted({pod["spec"]["nodeName"] for pod in sim.cluster.pods() if "nodeName" in pod["spec"]})
    if not nodes or world.leaving_nodes or world.lost_nodes:
        return
    node = rng.choice(nodes)
    world.announce_node(node)
    drained = rng.random() < 0.5

    def after_all() -> None:
        for agent in list(world.agents.values()) if drained else ():
            if world.node_of(agent) == node:
                _evict(sim, agent)
        world.announce_node(node, on=False)

    world.spawn(_later(rng.uniform(0.0, 40.0), after_all))


def restart_container(sim: Simulation, rng: random.Random) -> None:
    agent = _some_agent(sim, rng)
    if agent is not None:
        sim.world.restart_container(agent)


def kill_operator(sim: Simulation, rng: random.Random) -> None:
    if sim.operator is not None:
        sim.kill_operator()
        sim.world.spawn(_start_later(sim, rng.uniform(0.0, 20.0)))


async def _start_later(sim: Simulation, delay_s: float) -> None:
    await asyncio.sleep(delay_s)
    if sim.operator is None:
        sim.start_operator()


def replace_operator(sim: Simulation, rng: random.Random) -> None:
    """Leadership changes, and the old leader is slow to notice: what it still does must do no harm."""
    old = sim.replace_operator()
    if old is not None:
        sim.world.spawn(_end_later(old, rng.uniform(0.0, 5.0)))


async def _end_later(operator: Operator, delay_s: float) -> None:
    try:
        await asyncio.sleep(delay_s)
        operator.check()
    finally:
        operator.kill()


def lose_node(sim: Simulation, rng: random.Random) -> None:
    """A machine vanishes, and comes back rebooted before or after Kubernetes has noticed."""
    nodes = sorted(
        {pod["spec"]["nodeName"] for pod in sim.cluster.pods() if "nodeName" in pod["spec"]} - sim.world.lost_nodes
    )
    if nodes and len(sim.world.lost_nodes) < 2:
        node = rng.choice(nodes)
        sim.world.lose_node(node, peers_after_s=rng.choice([5.0, 15.0, None]))
        sim.world.spawn(_restore_later(sim, node, rng.uniform(1.0, 120.0)))


async def _restore_later(sim: Simulation, node: str, delay_s: float) -> None:
    await asyncio.sleep(delay_s)
    sim.world.restore_node(node)


def mute(sim: Simulation, rng: random.Random) -> None:
    """The way between one agent and the coordinator is broken for a while."""
    agent = _some_agent(sim, rng)
    if agent is not None:
        sim.world.evictions += 1  # where it is to come to a join, rank 0's agent is the second witness
        sim.world.mute(agent)
        sim.world.spawn(_unmute_later(agent, rng.uniform(1.0, 90.0)))


async def _unmute_later(agent: Any, delay_s: float) -> None:
    await asyncio.sleep(delay_s)
    agent.muted = False


def set_clock(sim: Simulation, rng: random.Random) -> None:
    """The operator's machine is an hour ahead or behind from now on, or right again."""
    sim.set_clock(rng.choice([-3600.0, 0.0, 3600.0]))


def suspend(sim: Simulation, rng: random.Random) -> None:
    name = _some_job(sim, rng)
    if not sim.job(name).status.finished:
        sim.cluster.update_job_spec(NAMESPACE, name, {"suspend": True})


def resume(sim: Simulation, rng: random.Random) -> None:
    sim.cluster.update_job_spec(NAMESPACE, _some_job(sim, rng), {"suspend": False})


def ask_restart(sim: Simulation, rng: random.Random) -> None:
    sim.cluster.annotate_job(NAMESPACE, _some_job(sim, rng), {"trainjob.dev/restart": str(rng.random())})


def scale(sim: Simulation, rng: random.Random) -> None:
    name = _some_job(sim, rng)
    elastic = sim.job(name).spec.elastic
    least = elastic.min_workers if elastic is not None else 1
    workers = rng.randint(least, 4)
    if elastic is not None and elastic.allowed_sizes:
        workers = max(size for size in elastic.allowed_sizes if size <= workers)
    change_spec(sim, {"workers": workers}, name)


def edit(sim: Simulation, rng: random.Random) -> None:
    """What pods are made of changes: at once, or while the job is suspended between two looks."""
    if rng.random() < 0.5:
        sim.cluster.update_job_spec(NAMESPACE, "digits", {"rendezvous": {"port": rng.randint(29000, 29002)}})
        return
    container = {"name": "trainer", "image": f"image-{rng.randint(0, 2)}", "command": ["python", "train.py"]}
    sim.cluster.update_job_spec(NAMESPACE, "digits", {"suspend": True})
    sim.cluster.update_job_spec(NAMESPACE, "digits", {"template": {"spec": {"containers": [container]}}})
    if sim.world.capacity is not None:
        sim.world.capacity = max(4, sim.world.capacity)
    for job in sim.cluster.jobs():
        sim.cluster.update_job_spec(NAMESPACE, job["metadata"]["name"], {"suspend": False})


def _elastic(rng: random.Random) -> Any:
    least, most = sorted((rng.randint(1, 4), rng.randint(1, 4)))
    waits = {"shrinkAfterSeconds": rng.choice([0, 5, 30]), "growAfterSeconds": rng.choice([0, 10, 60])}
    return rng.choice([None, {"minWorkers": least, "maxWorkers": most, "allowedSizes": None, **waits}])


EDITS: dict[str, Callable[[random.Random], Any]] = {
    "workers": lambda rng: rng.randint(1, 4),
    "elastic": _elastic,
    "processesPerWorker": lambda rng: rng.choice([1, 2, "auto"]),
    "rendezvous": lambda rng: {"port": rng.randint(29000, 29002), "timeoutSeconds": rng.choice([60, 1800])},
    "checkpoint": lambda rng: {"keep": rng.choice([1, 2, None]), "strict": rng.random() < 0.5},
    "failurePolicy": lambda rng: {
        "maxFailures": rng.choice([0, 1, 3, -1]),
        "maxPreemptions": rng.choice([0, 2, -1]),
        "noProgressAttempts": rng.choice([0, 1, 3]),
        "rules": rng.choice([None, [{"exitCodes": [1, 137], "action": rng.choice(["Fail", "Restart", "Ignore"])}]]),
    },
    "runtime": lambda rng: {
        "agent": rng.choice(["auto", "auto", "Disabled"]),
        "prefork": rng.choice(["Never", "auto"]),
        "spareWorkers": rng.choice([0, 0, 1, 2]),
    },
    "hang": lambda rng: rng.choice(
        [
            {"afterSeconds": "auto", "action": "Restart", "replaceStragglers": rng.random() < 0.5},
            {"afterSeconds": 60, "action": "Report"},
            {"afterSeconds": 600, "action": "Off"},
        ]
    ),
    "tracking": lambda rng: rng.choice([["csv"], ["csv", "mlflow=http://m:5000"], None]),
    "suspend": lambda rng: rng.random() < 0.5,
    "startupDeadlineSeconds": lambda rng: rng.choice([None, None, 30]),
    "activeDeadlineSeconds": lambda rng: rng.choice([None, None, 60]),
    "boundaryTimeoutSeconds": lambda rng: rng.choice([0, 3, 60, None]),
    "podCleanup": lambda rng: rng.choice(["Running", "All", "None", None]),
}
"""By field of the spec: what it may become. The template can be changed while the job is suspended (`edit`), managedBy
never; a job whose time to live is over is gone, and puppets know one storage.
"""


def edit_anything(sim: Simulation, rng: random.Random) -> None:
    """A few fields at once, as the API server would accept them."""
    job = _some_job(sim, rng)
    if sim.job(job).status.finished:
        return
    patch = {name: EDITS[name](rng) for name in rng.sample(sorted(EDITS), rng.randint(1, 3))}
    change_spec(sim, patch, job)


def change_spec(sim: Simulation, patch: Manifest, name: str = "digits") -> None:
    """If the API server would take it."""
    if accepted(sim, patch, name):
        sim.cluster.update_job_spec(NAMESPACE, name, patch)


def accepted(sim: Simulation, patch: Manifest, name: str = "digits") -> bool:
    """Whether the API server would take this edit."""
    spec = TrainJobSpec.model_validate(merge(sim.cluster.job(NAMESPACE, name)["spec"], patch))
    return not validate_spec(spec, name)


def foreign_pod(sim: Simulation, rng: random.Random) -> None:
    """Somebody else's pod takes the next name, with or without our label."""
    status = sim.job().status
    labels = {"trainjob.dev/job": "digits"} if rng.random() < 0.5 else {}
    name = f"digits-{status.next_slot + rng.randrange(2)}"
    if sim.world.cluster_uid(NAMESPACE, name) is None:
        sim.world.add_foreign_pod(NAMESPACE, name, labels)


def quota(sim: Simulation, rng: random.Random) -> None:
    """No more pods than so many, for a while."""
    most = rng.randint(0, 3)
    refusal = Rejected(f"exceeded quota: pods, limited: {most}")
    _refuse_creates(sim, rng, lambda: refusal if len(sim.cluster.pods()) >= most else None)


def webhook(sim: Simulation, rng: random.Random) -> None:
    """Somebody's webhook for pods is away, or says no."""
    error = rng.choice(
        [Unavailable("failed calling webhook: time-out"), Rejected("admission webhook denied the request")]
    )
    _refuse_creates(sim, rng, lambda: error)


def _refuse_creates(sim: Simulation, rng: random.Random, why: Callable[[], Exception | None]) -> None:
    sim.obstacles["create_pod"] = why
    sim.world.spawn(_later(rng.uniform(1.0, 40.0), lambda: sim.obstacles.pop("create_pod", None)))


def throttle(sim: Simulation, rng: random.Random) -> None:
    """The API server asks for a pause (429), whatever it is asked."""
    pause_s = rng.choice([0.0, 1.0, 5.0])
    sim.obstacles["*"] = lambda: Unavailable("429 Too Many Requests", retry_after_s=pause_s)
    sim.world.spawn(_later(rng.uniform(0.5, 10.0), lambda: sim.obstacles.pop("*", None)))


def expire_watch(sim: Simulation, rng: random.Random) -> None:
    """410: the watch is too old, and everything is named anew by the next one."""
    sim.cluster.watch_expires.set()


def stop_watch(sim: Simulation, rng: random.Random) -> None:
    """The watch stands still for a while, and then tells all that was."""
    sim.cluster.watch_stands_until = asyncio.get_running_loop().time() + rng.uniform(1.0, 20.0)


def lag_behind(sim: Simulation, rng: random.Random) -> None:
    """410, and the list that the next watch begins with is of this moment, which is over then."""
    sim.cluster.remember()
    sim.world.spawn(_later(rng.uniform(0.5, 15.0), sim.cluster.watch_expires.set))


def collect_pod(sim: Simulation, rng: random.Random) -> None:
    """Somebody removes a pod that has ended."""
    ended = [pod for pod in sim.cluster.pods(NAMESPACE) if pod["status"]["phase"] in ("Succeeded", "Failed")]
    if ended:
        metadata, attempt = rng.choice(ended)["metadata"], sim.job().status.attempt
        known = parse_slots(attempt.succeeded) if attempt is not None else ()
        sim.world.training("digits").word_lost |= int(metadata["labels"]["trainjob.dev/slot"]) not in known
        sim.world.incidents += 1
        sim.cluster.remove_pod(NAMESPACE, metadata["name"], 0)


def change_mode(sim: Simulation, rng: random.Random) -> None:
    """With agents or without, from the next attempt on."""
    runtime = {"agent": rng.choice(["auto", "Disabled"]), "spareWorkers": 0}
    change_spec(sim, {"runtime": runtime, "processesPerWorker": 1})


def refuse_storage(sim: Simulation, rng: random.Random) -> None:
    """Storage does not answer, cannot be written, or is full; for a while."""
    storage = sim.world.training("digits").storage
    kind = rng.choice([errors.UNREADABLE, errors.UNREADABLE, errors.READ_ONLY, errors.FULL])
    storage.refusal = (kind, f"storage is {kind}")
    sim.world.spawn(_later(rng.uniform(0.5, 30.0), lambda: setattr(storage, "refusal", None)))


def slow_storage(sim: Simulation, rng: random.Random) -> None:
    """Storage takes its time."""
    storage = sim.world.training("digits").storage
    storage.slow = rng.choice([20.0, 200.0])
    sim.world.spawn(_later(rng.uniform(1.0, 30.0), lambda: setattr(storage, "slow", 1.0)))


def lose_replies(sim: Simulation, rng: random.Random) -> None:
    """What storage did is not always heard of."""
    storage = sim.world.training("digits").storage
    storage.lost_replies = rng.choice([0.1, 0.6])
    sim.world.spawn(_later(rng.uniform(1.0, 30.0), lambda: setattr(storage, "lost_replies", 0.0)))


def fill_disk(sim: Simulation, rng: random.Random) -> None:
    """The volume of one pod is full, for a while or as long as the pod lives."""
    agent = _some_agent(sim, rng)
    if agent is not None:
        disk = sim.world.disk(agent.pod_uid)
        disk.full = True
        sim.world.spawn(_later(rng.choice([1.0, 20.0, 1000.0]), lambda: setattr(disk, "full", False)))


def cut_link(sim: Simulation, rng: random.Random) -> None:
    """One worker has no way to rank 0's for a while; in a join that is an end after two minutes."""
    agent = _some_agent(sim, rng)
    if isinstance(agent, PuppetAgent) and agent.group is not None and agent.index:
        group, index = agent.group, agent.index
        group.cut_link(index)
        sim.world.spawn(_later(rng.uniform(0.2, 60.0), lambda: group.mend_link(index)))


def change_agent_clock(sim: Simulation, rng: random.Random) -> None:
    """The clock of one worker's machine is set."""
    agent = _some_agent(sim, rng)
    if agent is not None:
        agent.clock_error = rng.choice([-3600.0, 0.0, 3600.0])


def slow_rank(sim: Simulation, rng: random.Random) -> None:
    """A rank keeps the others waiting, for a while or as long as its agent lives."""
    agent = _some_agent(sim, rng)
    if isinstance(agent, PuppetAgent):
        agent.slow.add(rng.randrange(agent.processes))
        sim.world.spawn(_later(rng.choice([2.0, 30.0, 1000.0]), agent.slow.clear))


def replace_stragglers(sim: Simulation, rng: random.Random) -> None:
    """Whoever is slow is to be replaced, and somebody is."""
    change_spec(sim, {"hang": {"action": "Restart", "replaceStragglers": True}}, _some_job(sim, rng))
    slow_rank(sim, rng)


def change_room(sim: Simulation, rng: random.Random) -> None:
    """Nodes come, or are taken by others."""
    if sim.world.capacity is not None:
        sim.world.capacity = rng.choice([2, 4, 6])


def create_other(sim: Simulation, rng: random.Random) -> None:
    """A second job of the namespace; later it may be deleted."""
    if OTHER in sim.world.trainings:
        if rng.random() < 0.3 and len(sim.cluster.jobs()) > 1:
            sim.cluster.remove_job(NAMESPACE, OTHER)
        return
    sim.cluster.create_job(other_job(rng))
    training = sim.world.training(OTHER)
    training.length, training.every = rng.choice([10, 60, 200, 400]), rng.choice([1, 1, 10])


async def _later(delay_s: float, what: Callable[[], object]) -> None:
    await asyncio.sleep(delay_s)
    what()


BLOWS: dict[str, Blow] = {
    blow.__name__: blow
    for blow in (
        fail_rank,
        crash_container,
        lose_pod,
        evict_pod,
        terminate,
        announce_eviction,
        announce_node,
        restart_container,
        kill_operator,
        replace_operator,
        suspend,
        resume,
        scale,
        edit,
        edit_anything,
        foreign_pod,
        ask_restart,
        lose_node,
        mute,
        set_clock,
        quota,
        webhook,
        throttle,
        expire_watch,
        change_agent_clock,
        stop_watch,
        lag_behind,
        collect_pod,
        change_mode,
        refuse_storage,
        slow_storage,
        lose_replies,
        fill_disk,
        cut_link,
        strike_spare,
        wish_spares,
        slow_rank,
        replace_stragglers,
        change_room,
        *ODDITIES,
    )
}
CROWDED: dict[str, Blow] = {"create_other": create_other}
"""Blows of those runs in which two jobs share a namespace and its room."""


def heal(sim: Simulation) -> None:
    """Nothing is broken any more; what was broken stays to be mended by the operator."""
    sim.obstacles.clear()
    if is_going(sim.cluster.job(NAMESPACE, "digits")):
        end_deletion(sim)
    storage = sim.world.training("digits").storage
    storage.refusal, storage.slow, storage.lost_replies = None, 1.0, 0.0
    for disk in sim.world.disks.values():
        disk.full = False
    for group in sim.world.groups.values():
        group.cut.clear()
    for node in sorted(sim.world.lost_nodes):
        sim.world.restore_node(node)
    if sim.operator is None:
        sim.start_operator()
    if sim.world.capacity is not None:
        sim.world.capacity = max(4, sim.world.capacity)
    for job in sim.cluster.jobs():
        sim.cluster.update_job_spec(NAMESPACE, job["metadata"]["name"], {"suspend": False})
