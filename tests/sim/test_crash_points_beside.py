"""Workers that come up beside those that train, spares and those by which a job grows, and the operator killed before
or after any write: the same end as without the kill, and no step is lost that need not be.

Two stories. A worker is lost and a spare takes its place; then a spare is lost, and its successor while it warms up. And
a job is made larger; of the new workers one is lost while it warms up, and the wish changes twice before all are warm.
Each is told once undisturbed, then once for each point at which the process dies; a fresh operator starts a second
later.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from support.puppets import Pace
from support.simulation import NAMESPACE, Death, Simulation, manifest
from support.virtual_time import run_virtual
from trainjob_api import contract
from trainjob_operator.core.pods.naming import parse_slots
from trainjob_operator.memory import Call, Moment

STORED = {"storage": "/checkpoints"}
LENGTH, CHECKPOINT_EVERY = 120, 4
EVERY = int(os.environ.get("TRAINJOB_TEST_CRASH_POINTS_EVERY", "4"))
"""Of the points of a kind one in so many is tried; 1: all of them are."""
VERBS = ("patch_job_status", "create_service", "create_pod", "delete_pod", "create_event")

Point = tuple[int, Moment]
"""The n-th question to the fault hook."""


@dataclass(frozen=True)
class Ending:
    """What must not depend on the kill."""

    phase: str | None
    counted: tuple[int, int]
    """Failures and preemptions."""
    causes: tuple[str | None, ...]
    sizes: tuple[int, ...]
    steps_lost: bool
    """More than who breaks may lose: those since the last checkpoint. Nothing where nobody breaks who trains."""


Told = tuple[Ending, list[tuple[Call, Moment]]]
Story = Callable[[Point | None], Coroutine[Any, Any, Told]]


def by_slot(sim: Simulation, slot: int) -> Any:
    """The newest agent of that slot."""
    return next((agent for agent in sim.world.agents.values() if agent.slot == slot), None)


def beside(sim: Simulation) -> list[Any]:
    """Living agents of listed slots that are no members."""
    status = sim.job().status
    members = parse_slots(status.attempt.members) if status.attempt else ()
    slots = [slot for slot in parse_slots(status.slots) if slot not in members]
    return [agent for slot in slots if (agent := by_slot(sim, slot)) is not None]


def is_warm(sim: Simulation, agent: Any) -> bool:
    return bool(sim.world.clock.monotonic() >= agent.warm_at)


async def told(sim: Simulation, die_at: Point | None, **spec: Any) -> None:
    if die_at is not None:
        sim.on_call = Death(sim, *die_at)
    training = sim.world.training("digits")
    training.length, training.every = LENGTH, CHECKPOINT_EVERY
    sim.cluster.create_job(manifest(checkpoint=STORED, podCleanup="All", **spec))
    await sim.until(lambda: training.position >= 6, "some steps", every_s=0.2)


async def end_of(sim: Simulation, may_lose: int = 0) -> Told:
    job = await sim.until_finished(within_s=1800.0)
    await asyncio.sleep(60.0)  # clean-up
    sim.checker.raise_failure()
    assert sim.cluster.pods(NAMESPACE) == []
    assert sim.job() == job
    ended, failures = [entry.end_cause for entry in job.status.history], job.status.failures
    lost = len(sim.world.training("digits").steps) - LENGTH > may_lose
    sizes = tuple(entry.world_size for entry in job.status.history)
    return (
        Ending(job.status.phase, (failures.counted, failures.preemptions), tuple(ended), sizes, lost),
        sim.calls,
    )


async def spares(die_at: Point | None) -> Told:
    async with Simulation(seed=7, pace=Pace(report=0.5, warm=(3.0, 5.0))) as sim:
        await told(sim, die_at, workers=2, runtime={"spareWorkers": 1})
        await sim.until(lambda: any(is_warm(sim, one) for one in beside(sim)), "the spare is warm", every_s=0.2)
        await asyncio.sleep(3.0)  # a fresh operator has heard of it
        sim.world.lose_pod(sim.agent(1))
        await sim.until_training(2)
        await sim.until(lambda: bool(beside(sim)), "another spare comes up", every_s=0.2)
        for _ in range(2):
            sim.world.lose_pod(beside(sim)[0])
            await sim.until(lambda: not beside(sim), "it is gone", every_s=0.2)
            await sim.until(lambda: bool(beside(sim)), "another spare comes up", every_s=0.2)
        assert sim.job().status.attempt.from_spares == "2"  # type: ignore[union-attr]
        return await end_of(sim, may_lose=2 * CHECKPOINT_EVERY)


async def growth(die_at: Point | None) -> Told:
    async with Simulation(seed=7, pace=Pace(report=0.5, warm=(6.0, 8.0))) as sim:
        await told(sim, die_at, workers=2)
        sim.cluster.update_job_spec(NAMESPACE, "digits", {"workers": 4})
        await sim.until(lambda: len(beside(sim)) == 2, "two more come up", every_s=0.1)
        lost = beside(sim)[0]
        assert not is_warm(sim, lost)
        sim.world.lose_pod(lost)
        sim.cluster.update_job_spec(NAMESPACE, "digits", {"workers": 2})
        await sim.until(lambda: not beside(sim), "they go again", every_s=0.1)
        sim.cluster.update_job_spec(NAMESPACE, "digits", {"workers": 3})
        await sim.until(lambda: bool(beside(sim)), "one more comes up", every_s=0.1)
        return await end_of(sim)


STORIES: dict[str, Story] = {"spares": spares, "growth": growth}


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Told]:
    return {name: run_virtual(story(None)) for name, story in STORIES.items()}


def test_a_spare_takes_the_place_of_a_lost_worker_and_lost_spares_cost_nothing(undisturbed: dict[str, Told]) -> None:
    end, _ = undisturbed["spares"]
    assert (end.phase, end.counted, end.sizes) == ("Complete", (1, 0), (2, 2)) and not end.steps_lost
    assert end.causes == (contract.REASON_POD_LOST, contract.REASON_COMPLETED)


def test_a_job_grows_once_and_loses_no_step(undisturbed: dict[str, Told]) -> None:
    end, _ = undisturbed["growth"]
    assert (end.phase, end.counted, end.sizes) == ("Complete", (0, 0), (2, 3))
    assert end.causes == (contract.REASON_SCALED, contract.REASON_COMPLETED) and not end.steps_lost


@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", STORIES)
def test_killed_around_a_write(undisturbed: dict[str, Told], name: str, verb: str, moment: Moment) -> None:
    end, calls = undisturbed[name]
    points = [at for at, (call, when) in enumerate(calls) if call.verb == verb and when is moment]
    assert points or verb == "delete_pod", f"the story has no {verb}"
    for at in points[::EVERY]:
        killed, _ = run_virtual(STORIES[name]((at, moment)))
        assert killed == end, f"killed {moment.value} call {at}: {calls[at][0]}"
