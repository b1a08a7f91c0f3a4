"""Whatever breaks, in whatever order: the promises hold after each change, and the job ends once the faults stop.

Each seed is one run of several virtual minutes. A failing seed is printed and replayed with `TRAINJOB_SIM_SEED=<n>`;
`TRAINJOB_SIM_SEEDS=<count>` runs more of them.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest

from support.simulation import NAMESPACE, FlakyCluster, Operator, RandomFaults, Simulation, manifest
from support.virtual_time import run_virtual

SEEDS = int(os.environ.get("TRAINJOB_SIM_SEEDS", "200"))
ONLY = os.environ.get("TRAINJOB_SIM_SEED")
BATCH = 20
FAULTY_S = 60.0
"""So long things break."""
PATIENCE_S = 900.0
"""So long after the last fault the job may take to end."""


def seeds() -> list[range]:
    """Batches, so that a run is spread over workers and a test has a name that tells its seeds."""
    if ONLY is not None:
        return [range(int(ONLY), int(ONLY) + 1)]
    return [range(first, min(first + BATCH, SEEDS)) for first in range(0, SEEDS, BATCH)]


@pytest.mark.parametrize("batch", seeds(), ids=lambda batch: f"{batch[0]}-{batch[-1]}")
def test_promises_hold_and_the_job_ends(batch: range) -> None:
    for seed in batch:
        try:
            run_virtual(_one_run(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed} (replay: TRAINJOB_SIM_SEED={seed}): {error}") from error


async def _one_run(seed: int) -> None:
    rng = random.Random(seed)
    async with Simulation(seed, cluster_type=FlakyCluster) as sim:
        sim.cluster.rng = random.Random(seed + 1)
        faults = RandomFaults(random.Random(seed + 2), rate=rng.choice([0.0, 0.02, 0.1, 0.3]))
        sim.on_call = faults
        sim.cluster.late_rate = rng.choice([0.0, 0.05])
        sim.network_loss = rng.choice([0.0, 0.02, 0.2])
        sim.world.pace.notice = rng.choice([0.0, 0.1, 1.0])
        sim.world.capacity = rng.choice([None, None, 4, 6])
        spec = {
            "workers": rng.randint(1, 4),
            "processesPerWorker": rng.choice([1, 1, 2]),
            "checkpoint": {"storage": "/checkpoints"},
            "failurePolicy": {"maxFailures": rng.choice([0, 1, 3, -1]), "maxPreemptions": rng.choice([-1, -1, 2])},
        }
        sim.cluster.create_job(manifest(**spec))
        sim.world.training("digits").length = rng.choice([1, 10, 60, 120])
        await _break_things(sim, rng)
        faults.on = False
        sim.cluster.late_rate = 0.0
        sim.network_loss = 0.0
        for node in sorted(sim.world.lost_nodes):
            sim.world.restore_node(node)
        if sim.operator is None:
            sim.start_operator()
        sim.cluster.update_job_spec(NAMESPACE, "digits", {"suspend": False})
        job = await sim.until_finished(within_s=PATIENCE_S)
        assert job.status.holds("Complete") == sim.world.training("digits").completed, job.status.to_json()
        await _stays_finished(sim)


async def _break_things(sim: Simulation, rng: random.Random) -> None:
    misfortunes = [
        _fail_rank,
        _crash_container,
        _lose_pod,
        _evict_pod,
        _restart_container,
        _kill_operator,
        _replace_operator,
        _suspend,
        _resume,
        _scale,
        _edit,
        _foreign_pod,
        _ask_restart,
        _lose_node,
        _mute,
        _set_clock,
    ]
    elapsed, pause_s = 0.0, rng.choice([1.0, 4.0, 10.0])
    while elapsed < FAULTY_S:
        pause = rng.expovariate(1 / pause_s)
        elapsed += pause
        await asyncio.sleep(pause)
        sim.checker.raise_failure()
        rng.choice(misfortunes)(sim, rng)


async def _stays_finished(sim: Simulation) -> None:
    """Terminal, and quiet: no new attempt, no pod that still runs, no writes but the clean-up's."""
    number = sim.job().status.attempt.number if sim.job().status.attempt else 0
    await asyncio.sleep(120.0)
    sim.checker.raise_failure()
    attempt = sim.job().status.attempt
    assert (attempt.number if attempt else 0) == number
    running = [
        pod["metadata"]["name"]
        for pod in sim.cluster.pods()
        if pod["status"]["phase"] in ("Pending", "Running") and "ownerReferences" in pod["metadata"]
    ]
    assert not running, f"still there after the end: {running}"


# --- Misfortunes ------------------------------------------------------------------------------------------------------


def _some_agent(sim: Simulation, rng: random.Random) -> Any:
    agents = sorted(sim.world.agents.values(), key=lambda agent: agent.pod_uid)
    return rng.choice(agents) if agents else None


def _fail_rank(sim: Simulation, rng: random.Random) -> None:
    agent = _some_agent(sim, rng)
    if agent is not None:
        sim.world.fail_rank(agent, rng.randrange(agent.processes), exit_code=rng.choice([1, 2, 139]))


def _crash_container(sim: Simulation, rng: random.Random) -> None:
    agent = _some_agent(sim, rng)
    if agent is not None:
        sim.world.crash_container(agent)


def _lose_pod(sim: Simulation, rng: random.Random) -> None:
    agent = _some_agent(sim, rng)
    if agent is not None:
        sim.world.lose_pod(agent)


def _evict_pod(sim: Simulation, rng: random.Random) -> None:
    agent = _some_agent(sim, rng)
    if agent is not None:
        sim.world.incidents += 1  # it is gone before a dead operator's successor can see why
        sim.world.evict_pod(agent)


def _restart_container(sim: Simulation, rng: random.Random) -> None:
    agent = _some_agent(sim, rng)
    if agent is not None:
        sim.world.restart_container(agent)


def _kill_operator(sim: Simulation, rng: random.Random) -> None:
    if sim.operator is not None:
        sim.kill_operator()
        sim.world.spawn(_start_later(sim, rng.uniform(0.0, 20.0)))


async def _start_later(sim: Simulation, delay_s: float) -> None:
    await asyncio.sleep(delay_s)
    if sim.operator is None:
        sim.start_operator()


def _replace_operator(sim: Simulation, rng: random.Random) -> None:
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


def _lose_node(sim: Simulation, rng: random.Random) -> None:
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


def _mute(sim: Simulation, rng: random.Random) -> None:
    """The way between one agent and the coordinator is broken for a while."""
    agent = _some_agent(sim, rng)
    if agent is not None:
        sim.world.mute(agent)
        sim.world.spawn(_unmute_later(agent, rng.uniform(1.0, 90.0)))


async def _unmute_later(agent: Any, delay_s: float) -> None:
    await asyncio.sleep(delay_s)
    agent.muted = False


def _set_clock(sim: Simulation, rng: random.Random) -> None:
    """The operator's machine is an hour ahead or behind from now on, or right again."""
    sim.set_clock(rng.choice([-3600.0, 0.0, 3600.0]))


def _suspend(sim: Simulation, rng: random.Random) -> None:
    if not sim.job().status.finished:
        sim.cluster.update_job_spec(NAMESPACE, "digits", {"suspend": True})


def _resume(sim: Simulation, rng: random.Random) -> None:
    sim.cluster.update_job_spec(NAMESPACE, "digits", {"suspend": False})


def _ask_restart(sim: Simulation, rng: random.Random) -> None:
    sim.cluster.annotate_job(NAMESPACE, "digits", {"trainjob.dev/restart": str(rng.random())})


def _scale(sim: Simulation, rng: random.Random) -> None:
    sim.cluster.update_job_spec(NAMESPACE, "digits", {"workers": rng.randint(1, 4)})


def _edit(sim: Simulation, rng: random.Random) -> None:
    """What pods are made of changes: at once, or while the job is suspended between two looks."""
    if rng.random() < 0.5:
        sim.cluster.update_job_spec(NAMESPACE, "digits", {"rendezvous": {"port": rng.randint(29000, 29002)}})
        return
    container = {"name": "trainer", "image": f"image-{rng.randint(0, 2)}", "command": ["python", "train.py"]}
    sim.cluster.update_job_spec(NAMESPACE, "digits", {"suspend": True})
    sim.cluster.update_job_spec(NAMESPACE, "digits", {"template": {"spec": {"containers": [container]}}})
    sim.cluster.update_job_spec(NAMESPACE, "digits", {"suspend": False})


def _foreign_pod(sim: Simulation, rng: random.Random) -> None:
    """Somebody else's pod takes the next name, with or without our label."""
    status = sim.job().status
    labels = {"trainjob.dev/job": "digits"} if rng.random() < 0.5 else {}
    name = f"digits-{status.next_slot + rng.randrange(2)}"
    if sim.world.cluster_uid(NAMESPACE, name) is None:
        sim.world.add_foreign_pod(NAMESPACE, name, labels)
