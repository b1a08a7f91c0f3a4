"""Jobs that grow while chance strikes: new workers are lost while they warm up, wishes change meanwhile, and the operator
dies. Nobody who trains is touched, so no step is made twice, no size is taken that nobody wished, and the last wish comes
true.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable

import pytest

from support.misfortunes import ask_restart, kill_operator, replace_operator, resume, scale, suspend
from support.puppets import Pace
from support.simulation import NAMESPACE, Simulation, manifest
from support.virtual_time import run_virtual
from trainjob_api import contract
from trainjob_operator.core.pods.naming import parse_slots

SEEDS = range(int(os.environ.get("TRAINJOB_TEST_SEEDS", "12")))
LENGTH, CHECKPOINT_EVERY = 500, 4
PLANNED = (
    contract.REASON_SCALED,
    contract.REASON_RESIZED,
    contract.REASON_SUSPENDED,
    contract.REASON_RESTART_REQUESTED,
)


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")


def lose_one_beside(sim: Simulation, rng: random.Random) -> None:
    """A pod that takes no part in the running attempt goes without a word."""
    status = sim.job().status
    members = parse_slots(status.attempt.members) if status.attempt and status.attempt.ended_at is None else None
    beside = [agent for agent in sim.world.agents.values() if members is not None and agent.slot not in members]
    listed = [agent for agent in beside if agent.slot in parse_slots(status.slots)]
    if listed:
        sim.world.lose_pod(rng.choice(listed))


BLOWS: tuple[Callable[[Simulation, random.Random], None], ...] = (
    scale,
    scale,
    lose_one_beside,
    lose_one_beside,
    kill_operator,
    replace_operator,
    ask_restart,
    suspend,
    resume,
)


@pytest.mark.parametrize("seed", SEEDS)
def test_growth_struck_anywhere(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        # An agent gives up what it makes for ranks to be forks of after a minute.
        pace = Pace(report=0.5, warm=rng.choice([(0.0, 3.0), (5.0, 20.0), (0.0, 60.0)]))
        async with Simulation(seed=seed, pace=pace) as sim:
            policy = {"maxFailures": -1, "maxPreemptions": -1, "noProgressAttempts": 0}
            elastic = rng.choice([{}, {"elastic": {"minWorkers": 1, "maxWorkers": 4, "growAfterSeconds": 5}}])
            spares = rng.choice([{}, {"runtime": {"spareWorkers": 1}}])
            stored = {"checkpoint": {"storage": "/checkpoints"}, "failurePolicy": policy}
            sim.cluster.create_job(manifest(workers=rng.randint(1, 3), **stored, **elastic, **spares))
            training = sim.world.training("digits")
            training.length, training.every = LENGTH, CHECKPOINT_EVERY
            await sim.until(lambda: training.position >= 6, "some steps", every_s=0.05)
            struck = []
            while training.position < LENGTH - 200 and asyncio.get_running_loop().time() < 3000.0:
                blow = rng.choice(BLOWS)
                struck.append((round(asyncio.get_running_loop().time(), 2), blow.__name__))
                blow(sim, random.Random(rng.random()))
                await asyncio.sleep(rng.choice([rng.uniform(0.0, 2.0), rng.uniform(0.0, 30.0)]))
            resume(sim, rng)
            await asyncio.sleep(5.0)
            if sim.operator is None:
                sim.start_operator()
            wish = rng.randint(1, 4)
            sim.cluster.update_job_spec(NAMESPACE, "digits", {"workers": wish})

            def has_come_true() -> bool:
                attempt = sim.job().status.attempt
                return sim.job().status.finished or (attempt is not None and attempt.workers == wish)

            await sim.until(has_come_true, f"{wish} workers after {struck}", within_s=240.0, every_s=0.5)
            job = await sim.until_finished(within_s=3600.0)
            assert job.status.holds("Complete"), (struck, job.status.to_json())
            ends = [(entry.attempt, entry.end_cause, entry.world_size) for entry in job.status.history]
            assert job.status.failures.counted == 0, (struck, ends)
            assert {cause for _, cause, _ in ends} <= {*PLANNED, contract.REASON_COMPLETED}, (struck, ends)
            assert training.steps == list(range(1, LENGTH + 1)), (struck, ends)

    run_virtual(main())
