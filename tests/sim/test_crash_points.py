"""The operator killed before or after any single API call ends in the same final state as without the kill.

One story (start, a rank fails, a pod is lost, completion) is told once undisturbed, then once for each point at which
the process can die; a fresh operator starts a second later on the same cluster and the same agents.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from support.simulation import NAMESPACE, Death, Simulation, manifest
from support.virtual_time import run_virtual
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.memory import Call, Moment

READS_EVERY = 15
"""Dying around a read differs from dying around the write beside it only in time: a sample of them is enough."""

Point = tuple[int, Moment]
"""The n-th question to the fault hook."""


@dataclass(frozen=True)
class Ending:
    """What must not depend on the kill."""

    phase: str | None
    counted: int
    causes: tuple[tuple[int, str, str | None], ...]
    last_failure: tuple[int, str, int | None, str | None]
    workers_started: int


def ending(job: TrainJob, sim: Simulation) -> Ending:
    status = job.status
    assert status.last_failure is not None
    failure = status.last_failure
    return Ending(
        phase=status.phase,
        counted=status.failures.counted,
        causes=tuple((entry.attempt, entry.cause, entry.end_cause) for entry in status.history),
        last_failure=(failure.attempt, failure.reason, failure.rank, failure.pod),
        workers_started=len(sim.world.starts),
    )


async def story(die_at: Point | None) -> tuple[Ending, list[tuple[Call, Moment]]]:
    async with Simulation(seed=7) as sim:
        if die_at is not None:
            sim.on_call = Death(sim, *die_at)
        sim.cluster.create_job(manifest(workers=3, podCleanup="All"))
        training = sim.world.training("digits")
        training.length = 40
        await sim.until(lambda: training.position >= 2, "two reports", every_s=0.5)
        await sim.until_training(1)
        assert sim.world.fail_rank(sim.agent(1))
        await sim.until(lambda: training.position >= 20, "twenty reports", every_s=0.5)
        await sim.until_training(2)
        sim.world.lose_pod(sim.agent(2))
        job = await sim.until_finished()
        await asyncio.sleep(60.0)  # clean-up
        sim.checker.raise_failure()
        assert sim.cluster.pods(NAMESPACE) == []
        assert sim.job() == job
        return ending(job, sim), sim.calls


@pytest.fixture(scope="module")
def undisturbed() -> tuple[Ending, list[tuple[Call, Moment]]]:
    return run_virtual(story(None))


def test_the_story_is_the_one_that_is_meant(undisturbed: Any) -> None:
    end, _ = undisturbed
    assert end.phase == "Complete"
    assert end.counted == 2
    assert end.causes == (
        (1, "Started", "NonZeroExit"),
        (2, "NonZeroExit", "PodLost"),
        (3, "PodLost", "AllRanksSucceeded"),
    )


@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("verb", ["patch_job_status", "create_service", "create_pod", "delete_pod", "create_event"])
def test_killed_around_each_write(undisturbed: Any, verb: str, moment: Moment) -> None:
    end, calls = undisturbed
    points = [(at, when) for at, (call, when) in enumerate(calls) if call.verb == verb and when is moment]
    assert points, f"the story has no {verb}"
    _all_end_alike(end, calls, points)


def test_killed_around_reads(undisturbed: Any) -> None:
    end, calls = undisturbed
    points = [(at, when) for at, (call, when) in enumerate(calls) if not call.writes][::READS_EVERY]
    _all_end_alike(end, calls, points)


def _all_end_alike(end: Ending, calls: list[tuple[Call, Moment]], points: list[Point]) -> None:
    for at, moment in points:
        killed, _ = run_virtual(story((at, moment)))
        assert killed == end, f"killed {moment.value} call {at}: {calls[at][0]}"
