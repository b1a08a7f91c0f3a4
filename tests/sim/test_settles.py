"""Whatever is edited in whatever order, at once, back again, or wrongly for a while, and whoever operates meanwhile: once
people stop, the job comes to what the last edit wishes, and rests there.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable

import pytest

from support import misfortunes, oddities
from support.misfortunes import EDITS
from support.puppets import Pace
from support.simulation import NAMESPACE, FlakyCluster, Simulation, manifest
from support.virtual_time import run_virtual
from trainjob_api import contract
from trainjob_operator.core import make
from trainjob_operator.core.pods.naming import parse_slots
from trainjob_operator.memory import Moment

SEEDS = range(int(os.environ.get("TRAINJOB_TEST_SEEDS", "6")))
ENDS_THE_JOB = {"activeDeadlineSeconds", "startupDeadlineSeconds", "failurePolicy"}
FIELDS = sorted(EDITS.keys() - ENDS_THE_JOB)
BREAKS_FOR_S = 31.0
"""What is wrong for a while is put right by then, and whoever was killed has a successor."""


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")


def edit_some(sim: Simulation, rng: random.Random) -> None:
    """Up to three fields in one edit."""
    patch = {name: EDITS[name](rng) for name in rng.sample(FIELDS, rng.randint(1, 3))}
    misfortunes.change_spec(sim, patch)


BLOWS: tuple[Callable[[Simulation, random.Random], None], ...] = (
    *(edit_some,) * 4,
    oddities.blink,
    oddities.waver,
    oddities.break_spec,
    misfortunes.kill_operator,
    misfortunes.replace_operator,
    misfortunes.ask_restart,
    misfortunes.throttle,
    misfortunes.stop_watch,
    misfortunes.expire_watch,
    misfortunes.lag_behind,
)


def unsettled(sim: Simulation) -> str | None:
    """What is not yet as the spec wishes; None: all is."""
    job, attempt = sim.job(), sim.job().status.attempt
    spec, status = job.spec, job.status
    if attempt is None or attempt.state != "Running" or attempt.running_at is None:
        return f"no attempt trains: {attempt}"
    spares = spec.runtime.spare_workers
    pods = [pod for pod in sim.cluster.pods() if pod["status"]["phase"] in ("Pending", "Running")]
    makes = {pod["metadata"]["labels"][contract.LABEL_MAKE] for pod in pods}
    found = {
        "workers": (attempt.workers, spec.workers),
        "make": ({attempt.make, *makes}, {make.of(spec)}),
        "pods": (len(pods), spec.workers + spares),
        "spares": (len(parse_slots(status.spares)), spares),
        "boundary": (status.boundary, None),
        "generation": (status.observed_generation, job.metadata.generation),
    }
    wrong = {name: is_and_wish for name, is_and_wish in found.items() if is_and_wish[0] != is_and_wish[1]}
    return str(wrong) if wrong else None


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_edited_comes_true_and_rests(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        pace = Pace(report=rng.choice([0.5, 5.0]))
        async with Simulation(seed, pace=pace, cluster_type=FlakyCluster) as sim:
            sim.cluster.rng, sim.cluster.longest_delay_s = random.Random(seed + 1), rng.choice([0.0, 2.0])
            sim.network_loss, sim.network_echo = rng.choice([0.0, 0.1]), rng.choice([0.0, 0.05])
            policy = {"maxFailures": -1, "maxPreemptions": -1, "noProgressAttempts": 0}
            stored = {"checkpoint": {"storage": "/checkpoints"}, "failurePolicy": policy}
            sim.cluster.create_job(manifest(workers=rng.randint(1, 4), **stored))
            sim.world.training("digits").length = 10**6
            struck = await strike(sim, rng)
            sim.network_loss = sim.network_echo = 0.0
            sim.obstacles.clear()
            if sim.operator is None:
                sim.start_operator()
            sim.cluster.update_job_spec(NAMESPACE, "digits", {"suspend": False, "tracking": None})
            await asyncio.sleep(rng.choice([0.0, 5.0]))
            # Edits that take effect at the next start have one.
            sim.cluster.annotate_job(NAMESPACE, "digits", {contract.ANNOTATION_RESTART: "the last"})
            try:
                await sim.until(lambda: unsettled(sim) is None, "all is as wished", within_s=400.0, every_s=0.5)
                await asyncio.sleep(70.0)
                await rests(sim, 300.0)
            except AssertionError as error:
                raise AssertionError(f"{unsettled(sim)} after {struck}: {error}") from error

    run_virtual(main())


async def strike(sim: Simulation, rng: random.Random) -> list[tuple[float, str]]:
    struck = []
    for _ in range(rng.randint(3, 12)):
        blow = rng.choice(BLOWS)
        struck.append((round(asyncio.get_running_loop().time(), 2), blow.__name__))
        blow(sim, random.Random(rng.random()))
        await asyncio.sleep(rng.choice([0.0, rng.uniform(0.0, 0.2), rng.uniform(0.0, 3.0), rng.uniform(0.0, 30.0)]))
    await asyncio.sleep(BREAKS_FOR_S)
    return struck


async def rests(sim: Simulation, for_s: float) -> None:
    """Nothing is made, removed or told, next to nothing is read, and no condition complains."""
    sim.calls.clear()
    await asyncio.sleep(for_s)
    sim.checker.raise_failure()
    assert unsettled(sim) is None
    assert {call.verb for call in sim.writes} <= {"patch_job_status"}
    reads = [call.verb for call, moment in sim.calls if moment is Moment.BEFORE and not call.writes]
    assert len(reads) <= 8, reads
    status = sim.job().status
    good = dict.fromkeys(("ResourcesCreated", "PodsScheduled", "WorkersReady", "Progressing"), "True")
    good |= {"Degraded": "False", "Suspended": "False"}
    good |= {"SparesReady": "True"} if sim.job().spec.runtime.spare_workers else {}
    told = {name: status.condition(name) for name in good}
    assert {name: one and one.status for name, one in told.items()} == good, told
