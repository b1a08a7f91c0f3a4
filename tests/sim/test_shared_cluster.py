"""Jobs that share a cluster which has no room for all of them: all complete, none holds what it cannot use."""

from __future__ import annotations

import asyncio
from typing import Any

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


STORED = {"checkpoint": {"storage": "/checkpoints"}}
ELASTIC = {"elastic": {"minWorkers": 2, "maxWorkers": 6, "shrinkAfterSeconds": 5, "growAfterSeconds": 5}}


async def until_running(sim: Simulation, name: str) -> None:
    await sim.until(lambda: sim.job(name).status.phase == "Running", f"{name} trains", within_s=180.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("asker", [{"workers": 4}, {"workers": 6, **ELASTIC}], ids=["one size", "elastic"])
def test_an_elastic_job_makes_room_for_one_that_cannot_start_and_loses_no_step(
    seed: int, asker: dict[str, Any]
) -> None:
    async def main() -> None:
        async with Simulation(seed=seed, pace=Pace(report=0.5)) as sim:
            sim.world.capacity = 6
            sim.cluster.create_job(manifest("first", workers=6, **ELASTIC, **STORED))
            first = sim.world.training("first")
            first.length, first.every = 400, 4
            await until_running(sim, "first")
            sim.cluster.create_job(manifest("second", **{**asker, **STORED}))
            second = sim.world.training("second")
            second.length, second.every = 60, 4
            await until_running(sim, "second")
            assert sim.job("first").status.attempt.workers == (2 if asker["workers"] == 4 else 4)
            job = await sim.until_finished("second", within_s=600.0)
            assert job.status.holds("Complete")
            job = await sim.until_finished("first", within_s=1800.0)
            assert job.status.holds("Complete") and job.status.gave_way is None
            sizes = [entry.world_size for entry in job.status.history]
            assert sizes[0] == sizes[-1] == 6 and min(sizes) >= 2, sizes
            assert job.status.history[0].end_cause == contract.REASON_GAVE_WAY
            for training in (first, second):
                assert training.steps == list(range(1, training.length + 1)), "no step was lost"
            assert (job.status.failures.counted, job.status.failures.preemptions) == (0, 0)

    run_virtual(main())


def test_a_job_that_no_room_helps_takes_workers_from_another_once_an_hour_at_most() -> None:
    async def main() -> None:
        async with Simulation(seed=1, pace=Pace(report=0.5)) as sim:
            sim.world.capacity = 6
            sim.cluster.create_job(manifest("first", workers=6, **ELASTIC, **STORED))
            first = sim.world.training("first")
            first.length, first.every = 14400, 4
            await until_running(sim, "first")
            sim.cluster.create_job(manifest("second", workers=4))
            await sim.until(lambda: sim.job("first").status.gave_way is not None, "it made room", within_s=180.0)
            sim.world.capacity = 2  # somebody else was faster
            await sim.until(lambda: bool(sim.job("first").status.gave_way_in_vain), "in vain", within_s=600.0)
            sim.world.capacity = 6
            await sim.cluster.delete_job(NAMESPACE, "second", sim.job("second").metadata.uid)
            sim.cluster.create_job(manifest("third", workers=5))  # more than it can do without
            await asyncio.sleep(1800.0)
            job = sim.job("first")
            assert job.status.attempt.workers == 6 and job.status.gave_way is None
            assert [entry.end_cause for entry in job.status.history].count(contract.REASON_GAVE_WAY) == 1

    run_virtual(main())


def test_what_one_job_gave_and_is_used_counts_no_second_time() -> None:
    """The other one, whose checkpoints are rare, gives the rest all the same."""

    async def main() -> None:
        async with Simulation(seed=1, pace=Pace(report=0.5)) as sim:
            sim.world.capacity = 6
            for name, every in (("often", 4), ("rarely", 90)):
                fields = {"elastic": {**ELASTIC["elastic"], "maxWorkers": 3}, "boundaryTimeoutSeconds": 600}
                sim.cluster.create_job(manifest(name, workers=3, **fields, **STORED))
                training = sim.world.training(name)
                training.length, training.every = 14400, every
                await until_running(sim, name)
            sim.cluster.create_job(manifest("asks", workers=2))
            await until_running(sim, "asks")
            assert {sim.job(name).status.attempt.workers for name in ("often", "rarely")} == {2}

    run_virtual(main())
