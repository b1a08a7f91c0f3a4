"""Somebody sets the clock of the operator's machine by an hour, either way, at any moment: only displayed times change."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from support.puppets import Pace
from support.simulation import NAMESPACE, Simulation, manifest
from support.virtual_time import EPOCH, run_virtual
from trainjob_operator.clock import SystemClock

HOUR_S = 3600.0
SEEDS = range(12)


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S])
def test_a_worker_of_a_lost_node_is_replaced_as_soon_as_without_the_step(step_s: float) -> None:
    async def main() -> None:
        async with Simulation(seed=3, pace=Pace(report=10**6)) as sim:
            sim.cluster.create_job(manifest(workers=2))
            sim.world.training("digits").length = 10**6
            await sim.until_training()
            await asyncio.sleep(5.0)
            sim.set_clock(step_s)
            lost = sim.agent(1)
            sim.world.lose_node(sim.world.pod(NAMESPACE, lost.pod_name)["spec"]["nodeName"], noticed_after_s=20.0)
            await sim.until_training(2, within_s=40.0)
            assert sim.job().status.failures.preemptions == 1

    run_virtual(main())


async def _history(seed: int, steps: bool) -> list[Any]:
    """What became of a job of random misfortunes, moments left out; the steps are drawn apart from all else."""
    rng, setter = random.Random(seed), random.Random(seed + 1)
    told: list[Any] = []
    async with Simulation(seed) as sim:
        sim.kill_operator()
        sim.slew = 0.0
        sim.start_operator()
        limits = {"maxFailures": rng.choice([1, 3]), "maxPreemptions": -1}
        spec = {"workers": rng.randint(2, 4), "failurePolicy": limits, "activeDeadlineSeconds": 1200}
        sim.cluster.create_job(manifest(**spec))
        sim.world.training("digits").length = 60
        for _ in range(6):
            await asyncio.sleep(rng.uniform(0.5, 20.0))
            if steps:
                sim.set_clock(setter.choice([HOUR_S, -HOUR_S, 0.0]))
            agents = sorted(sim.world.agents.values(), key=lambda agent: agent.pod_uid)
            if not agents:
                continue
            agent, what = rng.choice(agents), rng.randrange(4)
            if what == 0:
                sim.world.fail_rank(agent)
            elif what == 1:
                sim.world.lose_pod(agent)
            elif what == 2:
                node = sim.world.pod(NAMESPACE, agent.pod_name)["spec"]["nodeName"]
                sim.world.lose_node(node, noticed_after_s=10.0)
            else:
                sim.world.restart_container(agent)
        job = await sim.until_finished(within_s=1300.0)
        status = job.status
        told = [(entry.attempt, entry.cause, entry.end_cause, entry.position) for entry in status.history]
        books = status.failures
        end = "Complete" if status.holds("Complete") else status.condition("Failed")
        ended = (getattr(end, "reason", end), asyncio.get_running_loop().time())
        done = [call.verb for call in sim.writes]
        return [told, books.counted, books.preemptions, books.strikes, status.slots, ended, done]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_history_with_steps_and_without(seed: int) -> None:
    assert run_virtual(_history(seed, True)) == run_virtual(_history(seed, False))


@pytest.mark.parametrize("error_s", [HOUR_S, -HOUR_S])
def test_a_start_has_its_time_whatever_the_machines_clock_says(error_s: float) -> None:
    """When a pod was made and got its node is told by the API server's clock."""

    async def main(error_s: float) -> tuple[float, float]:
        async with Simulation(seed=5) as sim:
            sim.kill_operator()
            sim.set_clock(error_s)
            sim.start_operator()
            sim.world.capacity = 2
            sim.cluster.create_job(manifest(workers=3))
            await sim.until(lambda: sim.job().status.timing.gang_tries == 1, "its nodes are given back", within_s=90.0)
            given_back = asyncio.get_running_loop().time()
            sim.cluster.update_job_spec(NAMESPACE, "digits", {"suspend": True})
            await sim.until(lambda: not sim.cluster.pods(), "its pods are gone")
            begun = asyncio.get_running_loop().time()
            sim.cluster.create_job(manifest("elastic", workers=3, elastic={"minWorkers": 1, "maxWorkers": 4}))
            await sim.until_training(name="elastic", within_s=60.0)
            return given_back, asyncio.get_running_loop().time() - begun

    wrong, right = run_virtual(main(error_s)), run_virtual(main(0.0))
    assert wrong == pytest.approx(right, abs=2.0), "the API server tells of whole seconds"


def test_a_step_is_made_good_slowly() -> None:
    async def main() -> None:
        async with Simulation(seed=1) as sim:
            assert sim.operator is not None
            clock = sim.operator.clock
            sim.set_clock(HOUR_S)
            before = clock.steady()
            await asyncio.sleep(100.0)
            passed = (clock.steady() - before).total_seconds()
            assert 100.0 < passed <= 101.0 + 1e-6
            await asyncio.sleep(5 * 86400)
            assert abs((clock.steady() - clock.now()).total_seconds()) < 1.0
            sim.set_clock(-HOUR_S)
            behind = clock.steady()
            await asyncio.sleep(1.0)
            assert clock.steady() > behind > EPOCH, "it never goes back"

    run_virtual(main())


def test_the_machines_clock_goes_on_evenly() -> None:
    clock = SystemClock()
    moments = [clock.steady() for _ in range(100)]
    assert moments == sorted(moments)
    assert abs((moments[-1] - clock.now()).total_seconds()) < 60.0
