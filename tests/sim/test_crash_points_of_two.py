"""Two jobs of one namespace that compete for room, and the operator killed before or after a write: the same end as without
the kill, and no step is lost.

Two stories. An elastic job has all the room, another one comes, the first makes room for it, and grows again once the
other is complete. And two jobs come at once, each of which needs three quarters of the room. Each is told once
undisturbed, then once for each point at which the process dies; a fresh operator starts a second later, and knows of
either job what stands in the cluster.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any

import pytest

from support.puppets import Pace
from support.simulation import NAMESPACE, Death, Simulation, manifest
from support.virtual_time import run_virtual
from trainjob_api import contract
from trainjob_operator.memory import Call, Moment

NAMES = ("first", "second")
ELASTIC = {"minWorkers": 2, "maxWorkers": 6, "shrinkAfterSeconds": 5, "growAfterSeconds": 5}
STORED = {"storage": "/checkpoints"}
EVERY = int(os.environ.get("TRAINJOB_TEST_CRASH_POINTS_EVERY", "40"))
"""Of the points of a kind one in so many is tried; 1: all of them are."""

Point = tuple[int, Moment]
"""The n-th question to the fault hook."""


@dataclass(frozen=True)
class Ending:
    """What must not depend on the kill."""

    phases: tuple[str | None, ...]
    counted: tuple[tuple[int, int], ...]
    """Failures and preemptions."""
    causes: tuple[tuple[str | None, ...], ...]
    sizes: tuple[tuple[int, ...], ...]
    steps_lost: tuple[int, ...]
    gives_way: bool


async def story(die_at: Point | None) -> tuple[Ending, list[tuple[Call, Moment]]]:
    async with Simulation(seed=7, pace=Pace(report=0.5)) as sim:
        sim.world.capacity = 6
        if die_at is not None:
            sim.on_call = Death(sim, *die_at)
        for name, length in (("first", 400), ("second", 60)):
            training = sim.world.training(name)
            training.length, training.every = length, 4
        sim.cluster.create_job(manifest("first", workers=6, elastic=ELASTIC, checkpoint=STORED, podCleanup="All"))
        await sim.until(lambda: sim.world.training("first").position >= 8, "the first trains", every_s=0.5)
        sim.cluster.create_job(manifest("second", workers=4, checkpoint=STORED, podCleanup="All"))
        for name in reversed(NAMES):
            await sim.until_finished(name, within_s=1800.0)
        await asyncio.sleep(60.0)  # clean-up
        sim.checker.raise_failure()
        assert sim.cluster.pods(NAMESPACE) == []
        jobs, trainings = [sim.job(name) for name in NAMES], [sim.world.training(name) for name in NAMES]
        return (
            Ending(
                phases=tuple(job.status.phase for job in jobs),
                counted=tuple((job.status.failures.counted, job.status.failures.preemptions) for job in jobs),
                causes=tuple(tuple(entry.end_cause for entry in job.status.history) for job in jobs),
                sizes=tuple(tuple(entry.world_size for entry in job.status.history) for job in jobs),
                steps_lost=tuple(len(training.steps) - training.length for training in trainings),
                gives_way=any(job.status.gave_way is not None for job in jobs),
            ),
            sim.calls,
        )


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")


@pytest.fixture(scope="module")
def undisturbed() -> tuple[Ending, list[tuple[Call, Moment]]]:
    return run_virtual(story(None))


def test_the_story_is_the_one_that_is_meant(undisturbed: Any) -> None:
    end, _ = undisturbed
    assert end.phases == ("Complete", "Complete") and end.counted == ((0, 0), (0, 0))
    assert end.causes[0][0] == contract.REASON_GAVE_WAY and end.sizes[0][0] == end.sizes[0][-1] == 6
    assert 2 in end.sizes[0] and end.sizes[1] == (4,)
    assert end.steps_lost == (0, 0) and not end.gives_way


@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("verb", ["patch_job_status", "create_service", "create_pod", "delete_pod", "create_event"])
def test_killed_while_one_makes_room_for_the_other(undisturbed: Any, verb: str, moment: Moment) -> None:
    end, calls = undisturbed
    for at in points(calls, verb, moment):
        killed, _ = run_virtual(story((at, moment)))
        assert killed == end, f"killed {moment.value} call {at}: {calls[at][0]}"


def points(calls: list[tuple[Call, Moment]], verb: str, moment: Moment) -> list[int]:
    found = [at for at, (call, when) in enumerate(calls) if call.verb == verb and when is moment]
    assert found, f"the story has no {verb}"
    return found[::EVERY]


async def rivals(die_at: Point | None) -> list[tuple[Call, Moment]]:
    """Who of them comes first is chance; both come to their end, and none pays for the other."""
    async with Simulation(seed=7) as sim:
        sim.world.capacity = 4
        if die_at is not None:
            sim.on_call = Death(sim, *die_at)
        for name in NAMES:
            sim.world.training(name).length = 30
            sim.cluster.create_job(manifest(name, workers=3, podCleanup="All"))
        for name in NAMES:
            job = await sim.until_finished(name, within_s=3600.0)
            assert job.status.holds("Complete"), job.status.to_json()
            assert (job.status.failures.counted, job.status.failures.preemptions) == (0, 0)
            assert [entry.end_cause for entry in job.status.history] == [contract.REASON_COMPLETED]
        await asyncio.sleep(60.0)
        sim.checker.raise_failure()
        assert sim.cluster.pods(NAMESPACE) == []
        return sim.calls


@pytest.fixture(scope="module")
def rivalry() -> list[tuple[Call, Moment]]:
    return run_virtual(rivals(None))


@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("verb", ["patch_job_status", "create_service", "create_pod", "delete_pod", "create_event"])
def test_killed_while_each_holds_what_the_other_needs(rivalry: Any, verb: str, moment: Moment) -> None:
    for at in points(rivalry, verb, moment):
        run_virtual(rivals((at, moment)))
