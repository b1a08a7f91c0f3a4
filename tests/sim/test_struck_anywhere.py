"""A job is edited, loses workers or their words, and its operator's clock is set, at each moment of its life: it ends
Complete all the same, and every promise holds after each change.

A moment is a question to the cluster or the answer to it. Each thing strikes at two moments drawn from a seed;
TRAINJOB_SIM_EVERY=1 tries all of them (hours of virtual time, half an hour of real time).
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from support.puppets import Pace, PuppetAgent
from support.simulation import NAMESPACE, Simulation, manifest
from support.virtual_time import run_virtual
from trainjob_operator.memory import Call, Moment

EVERY = os.environ.get("TRAINJOB_SIM_EVERY")
TRIES = 2
FROZEN_NOTICED_S = 20.0

Strike = Callable[[Simulation], Any]


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")


def edit(sim: Simulation, **spec: Any) -> None:
    sim.cluster.update_job_spec(NAMESPACE, "digits", spec)


def after(sim: Simulation, delay_s: float, then: Callable[[], Any]) -> None:
    async def wait() -> None:
        await asyncio.sleep(delay_s)
        then()

    sim.world.spawn(wait())


def agents(sim: Simulation) -> list[PuppetAgent]:
    return sorted(sim.world.agents.values(), key=lambda agent: agent.slot)


def suspended_for(sim: Simulation, seconds: float) -> None:
    edit(sim, suspend=True)
    after(sim, seconds, lambda: edit(sim, suspend=False))


def another_template(sim: Simulation) -> None:
    container = {"name": "trainer", "image": "other", "command": ["python", "train.py"]}
    edit(sim, suspend=True)
    edit(sim, template={"spec": {"containers": [container]}})
    edit(sim, suspend=False)


def lose(sim: Simulation, place: int) -> None:
    there = agents(sim)
    if there:
        sim.world.lose_pod(there[place])


def freeze(sim: Simulation, place: int, seconds: float) -> None:
    """It says nothing to anybody; those that are linked with it notice, and it wakes up in the end."""
    if len(agents(sim)) <= abs(place):
        return
    agent = agents(sim)[place]
    sim.world.evictions += 1
    sim.world.mute(agent)
    sim.world.spawn(sim.world._peers_lose(agent, FROZEN_NOTICED_S))

    def wake() -> None:
        agent.muted = False
        group = sim.world.groups.get((agent.job_uid, agent.attempt))
        for other in group.members.values() if group else ():
            other.lost_peers.clear()
            other.speak()

    after(sim, seconds, wake)


def doubt(sim: Simulation) -> None:
    """A link between two agents breaks for a moment."""
    if len(agents(sim)) > 1:
        first = agents(sim)[0]
        first.lost_peers.add(1)
        first.speak()
        after(sim, 5.0, lambda: (first.lost_peers.discard(1), first.speak()))


def apart(sim: Simulation, seconds: float, slot: int | None = None) -> None:
    """Workers cannot connect to each other, or one of them to none."""
    until = asyncio.get_running_loop().time() + seconds
    sim.world.incidents += 4
    sim.world.are_apart = lambda one, other: (
        asyncio.get_running_loop().time() < until and (slot is None or slot in (one, other))
    )


def kill(sim: Simulation) -> None:
    sim.kill_operator()
    after(sim, 1.0, sim.start_operator)


PORT = {"rendezvous": {"port": 29111}}
STRIKES: dict[str, Strike] = {
    "grow": lambda sim: edit(sim, workers=4),
    "shrink": lambda sim: edit(sim, workers=2),
    "to one": lambda sim: edit(sim, workers=1),
    "grow, then shrink": lambda sim: (edit(sim, workers=5), after(sim, 2.0, lambda: edit(sim, workers=2))),
    "suspended between two looks": lambda sim: (edit(sim, suspend=True), edit(sim, suspend=False)),
    "suspended for a moment": lambda sim: suspended_for(sim, 0.3),
    "suspended": lambda sim: suspended_for(sim, 5.0),
    "another port": lambda sim: edit(sim, **PORT),
    "another template": another_template,
    "asked to restart": lambda sim: sim.cluster.annotate_job(NAMESPACE, "digits", {"trainjob.dev/restart": "now"}),
    "another port, and more": lambda sim: (edit(sim, **PORT), edit(sim, workers=4)),
    "another port, and a loss": lambda sim: (edit(sim, **PORT), lose(sim, -1)),
    "a loss, and less": lambda sim: (lose(sim, 0), edit(sim, workers=2)),
    "rank 0's agent frozen": lambda sim: freeze(sim, 0, 60.0),
    "an agent frozen": lambda sim: freeze(sim, 1, 60.0),
    "an agent frozen, not for long": lambda sim: freeze(sim, 1, 25.0),
    "an agent frozen for long": lambda sim: freeze(sim, -1, 200.0),
    "an agent frozen, and another port": lambda sim: (freeze(sim, 1, 60.0), edit(sim, **PORT)),
    "a link broken": doubt,
    "one apart": lambda sim: apart(sim, 400.0, 1),
    "one apart, and less": lambda sim: (apart(sim, 400.0, 1), edit(sim, workers=2)),
    "all apart for a minute": lambda sim: apart(sim, 60.0),
    "an hour ahead": lambda sim: sim.set_clock(3600.0),
    "an hour behind": lambda sim: sim.set_clock(-3600.0),
    "the operator killed": kill,
    "the operator killed, and edits": lambda sim: (kill(sim), edit(sim, workers=2), edit(sim, **PORT)),
}


async def _one_run(strike: Strike | None, at: int) -> int:
    """A job of three workers of which one breaks once; how many moments it had."""
    async with Simulation(5, pace=Pace(report=0.7)) as sim:
        moments = 0

        async def count(call: Call, moment: Moment) -> None:
            nonlocal moments
            moments += 1
            if moments - 1 == at and strike is not None:
                after(sim, 0.0, functools.partial(strike, sim))

        sim.on_call = count
        storage = {"checkpoint": {"storage": "/checkpoints"}} if at % 2 else {}
        sim.cluster.create_job(manifest(workers=3, failurePolicy={"maxFailures": 8}, **storage))
        sim.world.training("digits").length = 12
        after(sim, 6.0, lambda: [sim.world.fail_rank(agent) for agent in agents(sim) if agent.slot == 1])
        job = await sim.until_finished(within_s=1200.0)
        assert job.status.holds("Complete"), job.status.condition("Failed")
        assert sim.world.training("digits").completed
        await asyncio.sleep(100.0)
        sim.checker.raise_failure()
        left = [
            pod["metadata"]["name"] for pod in sim.cluster.pods() if pod["status"]["phase"] in ("Pending", "Running")
        ]
        assert not left, f"still there after the end: {left}"
        return moments


@functools.cache
def moments() -> int:
    return run_virtual(_one_run(None, -1))


@pytest.mark.parametrize("name", STRIKES)
def test_it_completes_whatever_strikes_it_whenever(name: str) -> None:
    every = range(moments())
    for at in every if EVERY else random.Random(name).sample(every, TRIES):
        try:
            run_virtual(_one_run(STRIKES[name], at))
        except Exception as error:
            raise AssertionError(f"{name!r} at moment {at}: {error}") from error
