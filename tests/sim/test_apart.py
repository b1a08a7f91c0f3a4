"""Workers that speak to the operator and cannot reach each other: told, ended, and where one is the cause, replaced."""

from __future__ import annotations

import asyncio

import pytest

from support.simulation import Simulation, manifest
from support.virtual_time import run_virtual
from trainjob_api import contract
from trainjob_operator.core.ends.unreached import SAID_AFTER_S, UNREACHED_S


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")


async def begun(sim: Simulation, **spec: object) -> None:
    sim.cluster.create_job(manifest(**spec))
    await sim.until(lambda: sim.job().status.attempt is not None, "attempt 1")


def test_a_policy_that_keeps_all_apart_is_told_within_a_minute_and_fails_the_job_in_the_end() -> None:
    async def main() -> None:
        async with Simulation(seed=1) as sim:
            sim.world.are_apart = lambda slot, leader: True
            sim.world.incidents = 3
            await begun(sim, workers=3, failurePolicy={"maxFailures": 2})
            await asyncio.sleep(SAID_AFTER_S + 25.0)
            status = sim.job().status
            assert status.reason == contract.REASON_PEERS_UNREACHABLE and status.phase == "Starting"
            job = await sim.until_finished(within_s=3 * (UNREACHED_S + 60.0))
            failed = job.status.condition("Failed")
            assert failed is not None and failed.reason == contract.REASON_LIMIT
            assert "cannot reach the agent of digits-" in failed.message
            assert not sim.world.starts, "no rank was ever started"

    run_virtual(main())


def test_a_policy_that_is_mended_meanwhile_costs_nothing() -> None:
    async def main() -> None:
        async with Simulation(seed=2) as sim:
            sim.world.are_apart = lambda slot, leader: True
            await begun(sim, workers=3)
            await asyncio.sleep(SAID_AFTER_S + 25.0)
            sim.world.are_apart = lambda slot, leader: False
            job = await sim.until_finished()
            assert job.status.holds("Complete") and job.status.attempt is not None
            assert (job.status.attempt.number, job.status.failures.counted) == (1, 0)

    run_virtual(main())


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_one_worker_with_a_broken_network_is_replaced_and_the_job_goes_on(broken: int) -> None:
    async def main() -> None:
        async with Simulation(seed=3) as sim:
            sim.world.are_apart = lambda slot, leader: broken in (slot, leader)
            sim.world.incidents = 2
            await begun(sim, workers=3)
            job = await sim.until_finished(within_s=900.0)
            assert job.status.holds("Complete")
            assert job.status.failures.counted == (2 if broken == 0 else 1)
            assert len(job.status.failures.avoid_nodes) == 1

    run_virtual(main())


def test_who_is_silent_and_does_not_come_to_the_join_is_lost() -> None:
    """Kubernetes takes it for a good one; rank 0's agent, which waits for it, is the second witness."""

    async def main() -> None:
        async with Simulation(seed=4) as sim:
            sim.cluster.create_job(manifest(workers=3))

            async def freeze() -> None:
                await sim.until(lambda: len(sim.world.agents) == 3, "all agents")
                agent = next(agent for agent in sim.world.agents.values() if agent.slot == 2)
                await sim.until(lambda: agent._heard_at > 0 and agent._seq >= 1, "it spoke", every_s=0.005)
                sim.world.evictions += 1
                sim.world.mute(agent)

            await freeze()
            await sim.until_training(1, within_s=300.0)
            status = sim.job().status
            assert status.failures.counted == 0
            assert status.slots == "0-1,3"

    run_virtual(main())
