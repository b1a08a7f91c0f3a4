"""Jobs to which nothing happens but what was planned, or announced in time: no step is made twice, by however many."""

from __future__ import annotations

import asyncio
import random

import pytest

from support.misfortunes import announce_eviction, announce_node, ask_restart, evict_pod, resume, scale, terminate
from support.puppets import Pace
from support.simulation import Simulation, manifest
from support.virtual_time import run_virtual

PLANNED = (announce_eviction, announce_node, ask_restart, evict_pod, scale, terminate)
LENGTH, EVERY = 400, 4


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")


@pytest.mark.parametrize("seed", range(12))
def test_planned_changes_and_preemptions_lose_no_step_where_the_time_suffices(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        async with Simulation(seed=seed, pace=Pace(report=0.5)) as sim:
            policy = {"maxFailures": -1, "maxPreemptions": -1, "noProgressAttempts": 0}
            elastic = rng.choice([{}, {"elastic": {"minWorkers": 1, "maxWorkers": 4, "growAfterSeconds": 5}}])
            stored = {"checkpoint": {"storage": "/checkpoints"}, "failurePolicy": policy}
            sim.cluster.create_job(manifest(workers=rng.randint(2, 4), **stored, **elastic))
            training = sim.world.training("digits")
            training.length, training.every = LENGTH, EVERY
            await sim.until(lambda: training.position >= 6, "some steps", every_s=0.05)
            struck = []
            while training.position < LENGTH - 20:
                blow = rng.choice(PLANNED)
                struck.append((round(asyncio.get_running_loop().time(), 2), blow.__name__))
                blow(sim, random.Random(rng.random()))
                await asyncio.sleep(rng.uniform(0.0, 40.0))
            resume(sim, rng)
            job = await sim.until_finished(within_s=3600.0)
            assert job.status.holds("Complete"), job.status.to_json()
            ends = [(entry.attempt, entry.end_cause) for entry in job.status.history]
            assert training.steps == list(range(1, LENGTH + 1)), (struck, ends)

    run_virtual(main())
