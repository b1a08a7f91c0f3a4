"""Jobs that share a cluster which has no room for all of them: all complete, none holds what it cannot use."""

from __future__ import annotations

import asyncio

import pytest

from support.puppets import Pace
from support.simulation import NAMESPACE, Simulation, manifest
from support.virtual_time import run_virtual
from trainjob_api import contract
from trainjob_operator.memory import Moment


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("plain", [False, True], ids=["agents", "startup deadline"])
def test_two_jobs_that_each_need_three_quarters_both_complete(seed: int, plain: bool) -> None:
    async def main() -> None:
        async with Simulation(seed=seed) as sim:
            sim.world.capacity = 8
            more = {"startupDeadlineSeconds": 30} if plain else {}
            for name in ("one", "two"):
                sim.cluster.create_job(manifest(name, workers=6, **more))
                sim.world.training(name).length = 60
            await asyncio.sleep(10.0)
            held = {
                name: sum(
                    pod["metadata"]["name"].startswith(name) and "nodeName" in pod["spec"] for pod in sim.cluster.pods()
                )
                for name in ("one", "two")
            }
            assert (
                (sum(held.values()) == 8 and max(held.values()) < 6)
                or sim.job("one").status.attempt
                or sim.job("two").status.attempt
            )
            for name in ("one", "two"):
                job = await sim.until_finished(name, within_s=1800.0)
                assert job.status.holds("Complete")
                assert (job.status.failures.counted, job.status.failures.preemptions) == (0, 0)

    run_virtual(main())


def test_what_it_waits_for_is_told_while_it_waits() -> None:
    async def main() -> None:
        async with Simulation(seed=1) as sim:
            sim.world.capacity = 2
            sim.cluster.create_job(manifest(workers=3))
            await sim.until(
                lambda: sim.job().status.reason == contract.REASON_UNSCHEDULABLE, "Unschedulable", within_s=30.0
            )
            await sim.until(lambda: sim.job().status.reason == contract.REASON_GANG, "WaitingForGang", within_s=90.0)
            condition = sim.job().status.condition("PodsScheduled")
            assert (
                condition is not None and "2 of 3 workers" in condition.message and "Too many pods" in condition.message
            )
            await sim.until(
                lambda: not any("nodeName" in pod["spec"] for pod in sim.cluster.pods()),
                "its nodes are free",
                within_s=10.0,
            )
            sim.world.capacity = 3
            job = await sim.until_finished()
            assert job.status.holds("Complete") and job.status.timing.gang_tries == 0

    run_virtual(main())


def test_waiting_writes_next_to_nothing() -> None:
    async def main() -> None:
        async with Simulation(seed=1) as sim:
            sim.world.capacity = 2
            sim.cluster.create_job(manifest(workers=3))
            await asyncio.sleep(4 * 3600.0)
            sim.calls.clear()
            await asyncio.sleep(3600.0)
            tries = sum(call.verb == "create_pod" for call in sim.writes) / 3
            assert 5 <= tries <= 20
            assert sum(call.verb == "patch_job_status" for call in sim.writes) <= 5 * tries

    run_virtual(main())


@pytest.mark.parametrize("workers", [2, 8, 32])
def test_a_job_from_start_to_end_is_few_writes(workers: int) -> None:
    async def main() -> None:
        async with Simulation(seed=2, pace=Pace(schedule=(0.1, 3.0), start=(0.2, 6.0))) as sim:
            sim.cluster.create_job(manifest(workers=workers))
            await sim.until_finished()
            await asyncio.sleep(60.0)
            written = [
                call.verb
                for call, moment in sim.calls
                if call.writes and moment is Moment.BEFORE and call.verb != "create_event"
            ]
            progress = 1
            assert len(written) - progress <= workers + 8, written
            assert sim.cluster.pods(NAMESPACE), "finished pods keep their logs"

    run_virtual(main())
