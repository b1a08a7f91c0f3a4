"""When nothing happens, nothing is written; progress alone is written rarely."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from support.puppets import Pace
from support.simulation import NAMESPACE, Simulation, manifest
from support.virtual_time import run_virtual
from trainjob_api import contract
from trainjob_operator.memory import Moment

QUIET_S = 1800.0
SETTLING_POSTS = 60
"""Of one agent, in the two minutes in which what was changed becomes known."""


def test_no_write_while_ranks_train_silently() -> None:
    async def main() -> None:
        async with Simulation(seed=1, pace=Pace(report=10 * QUIET_S)) as sim:
            sim.cluster.create_job(manifest(workers=3))
            await sim.until_training()
            await asyncio.sleep(30.0)
            sim.calls.clear()
            await asyncio.sleep(QUIET_S)
            assert sim.writes == []
            assert len(sim.calls) <= 6, "looks too should be rare"

    run_virtual(main())


async def notice(sim: Simulation) -> None:
    """Its node is to go, nobody knows when."""
    await trains(sim)
    sim.world.announce_node(sim.world.node_of(sim.agent(1)))


async def trains(sim: Simulation) -> None:
    """It has saved checkpoints, and the next step takes for ever."""
    training = sim.world.training("digits")
    training.length = 10**6
    await sim.until(lambda: training.position >= 3, "three reports")
    sim.world.pace.report = 100 * QUIET_S
    await asyncio.sleep(20.0)


async def grows(sim: Simulation) -> None:
    """There is no room for the third."""
    await trains(sim)
    sim.world.capacity = 2
    sim.cluster.update_job_spec(NAMESPACE, "digits", {"workers": 3})


async def wishes(sim: Simulation) -> None:
    """A planned change waits for a checkpoint that does not come."""
    await trains(sim)
    sim.cluster.update_job_spec(NAMESPACE, "digits", {"workers": 1})


async def while_few_are_asked(sim: Simulation, seconds: float, most: float) -> list[int]:
    """Time passes; how often each agent asked. Looked at soon: who asks without end takes no virtual time for it, and
    minutes of real time.
    """
    agents = [agent for agent in sim.world.agents.values() if agent.alive]
    before = [agent.posts for agent in agents]
    asked = [0 for _ in agents]
    ends = asyncio.get_running_loop().time() + seconds
    while (left := ends - asyncio.get_running_loop().time()) > 0:
        await asyncio.sleep(min(1.0, left))
        asked = [agent.posts - posts for agent, posts in zip(agents, before, strict=True)]
        assert all(posts <= most for posts in asked), (asked, most)
    return asked


@pytest.mark.parametrize("state", [trains, notice, grows, wishes])
def test_agents_ask_no_more_often_than_a_poll_is_long(state: Callable[[Simulation], Awaitable[None]]) -> None:
    """In a state that rests nothing is said on either side but that both are there."""

    async def main() -> None:
        async with Simulation(seed=1, pace=Pace(report=1.0)) as sim:
            sim.cluster.create_job(manifest(boundaryTimeoutSeconds=86_400, checkpoint={"storage": "/checkpoints"}))
            await state(sim)
            await while_few_are_asked(sim, 120.0, SETTLING_POSTS)
            wish = sim.job().status.boundary
            assert (wish is not None) == (state in (notice, wishes)), sim.job().status.to_json()
            asked = await while_few_are_asked(sim, QUIET_S, QUIET_S / contract.LONG_POLL_S * 1.1)
            assert asked and all(posts > 0 for posts in asked), asked

    run_virtual(main())


def test_progress_alone_is_written_rarely() -> None:
    async def main() -> None:
        async with Simulation(seed=1, pace=Pace(report=1.0)) as sim:
            sim.cluster.create_job(manifest())
            sim.world.training("digits").length = 10**6
            await sim.until_training()
            await asyncio.sleep(30.0)
            sim.calls.clear()
            await asyncio.sleep(600.0)
            assert {call.verb for call in sim.writes} == {"patch_job_status"}
            assert 30 <= len(sim.writes) <= 61, "about one write in ten seconds"
            reads = [call.verb for call, moment in sim.calls if moment is Moment.BEFORE and not call.writes]
            assert reads == [], "and it takes no look at the cluster"

    run_virtual(main())


def test_progress_goes_on_after_somebody_else_wrote_the_job() -> None:
    async def main() -> None:
        async with Simulation(seed=1, pace=Pace(report=0.2)) as sim:
            sim.cluster.create_job(manifest())
            sim.world.training("digits").length = 10**6
            await sim.until_training()
            await asyncio.sleep(30.0)
            sim.cluster.annotate_job(NAMESPACE, "digits", {"note": "mine"})
            before = sim.job().status.progress.position
            await asyncio.sleep(40.0)
            assert sim.job().status.progress.position > before + 100

    run_virtual(main())


def test_an_agent_that_changes_its_words_all_the_time_costs_little() -> None:
    async def main() -> None:
        async with Simulation(seed=1, pace=Pace(report=10_000.0)) as sim:
            sim.cluster.create_job(manifest())
            await sim.until_training()
            await asyncio.sleep(30.0)
            sim.calls.clear()
            agent = sim.agent(1)
            for number in range(1000):
                agent.warning = f"disk {number}"
                agent.speak()
                await asyncio.sleep(0.1)
            turns = sum(call.verb == "list_pods" for call, moment in sim.calls if moment is Moment.BEFORE)
            assert turns <= 20 + 100 + 10, "about one a second"
            writes = [call for call in sim.writes if call.verb == "patch_job_status"]
            assert len(writes) <= 6 + 10 + 4, len(writes)
            assert "disk" in sim.job().status.model_dump_json(), "and it is heard"

    run_virtual(main())


@pytest.mark.parametrize("name", ["waiting", "suspended", "finished"])
def test_no_write_in_other_resting_states(name: str) -> None:
    async def main() -> None:
        async with Simulation(seed=1) as sim:
            sim.cluster.create_job(manifest(podCleanup="Running", suspend=name == "suspended"))
            if name == "waiting":
                sim.world.pace.schedule = (10 * QUIET_S, 10 * QUIET_S)
            if name == "finished":
                await sim.until_finished()
            await asyncio.sleep(120.0)
            sim.calls.clear()
            await asyncio.sleep(QUIET_S)
            assert sim.writes == []

    run_virtual(main())


def test_without_an_operator_training_goes_on() -> None:
    async def main() -> None:
        async with Simulation(seed=1) as sim:
            sim.cluster.create_job(manifest())
            training = sim.world.training("digits")
            training.length = 500
            await sim.until_training()
            sim.kill_operator()
            before = training.position
            await asyncio.sleep(100.0)
            assert training.position - before >= 90  # one a second, and each report takes a moment
            sim.start_operator()
            job = await sim.until_finished(within_s=1000.0)
            assert job.status.holds("Complete")
            assert job.status.attempt is not None and job.status.attempt.number == 1

    run_virtual(main())


def test_a_new_operator_writes_nothing_about_a_job_that_trains() -> None:
    async def main() -> None:
        async with Simulation(seed=1, pace=Pace(report=10 * QUIET_S)) as sim:
            sim.cluster.create_job(manifest())
            await sim.until_training()
            await asyncio.sleep(30.0)
            version = sim.cluster.job(NAMESPACE, "digits")["metadata"]["resourceVersion"]
            sim.kill_operator()
            sim.start_operator()
            await asyncio.sleep(120.0)
            assert sim.cluster.job(NAMESPACE, "digits")["metadata"]["resourceVersion"] == version

    run_virtual(main())


@pytest.mark.parametrize(
    "pace",
    [Pace(schedule=(0.0, 0.1), start=(0.0, 0.1), report=0.1), Pace(schedule=(0.5, 2.0), start=(1.0, 12.0))],
    ids=["quick", "slow"],
)
@pytest.mark.parametrize("workers", [1, 3, 12])
def test_a_job_costs_few_writes(workers: int, pace: Pace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The goal: N + 6 for a job of N workers that starts within 15 s; progress (once in 10 s) and events excepted."""

    async def main() -> None:
        async with Simulation(seed=1, pace=pace) as sim:
            written: list[set[str]] = []
            patch = sim.cluster.patch_job_status

            async def noted(namespace: str, name: str, version: str, status: dict[str, Any]) -> dict[str, Any]:
                # The clock on a start and the books go with what is written anyway.
                beside = {"goodput", *(["attempt"] if set(status.get("attempt") or ()) == {"partsMs"} else [])}
                written.append(set(status) - beside)
                return await patch(namespace, name, version, status)

            monkeypatch.setattr(sim.cluster, "patch_job_status", noted)
            sim.cluster.create_job(manifest(workers=workers))
            job = await sim.until_finished()
            await asyncio.sleep(120.0)
            assert job.status.holds("Complete") and job.status.failures.counted == 0
            writes = [call.verb for call in sim.writes if call.verb != "create_event"]
            progress = sum(1 for names in written if names <= {"progress", "checkpoint"})
            assert len(writes) - progress <= workers + 6, (writes, written)
            assert progress <= 1 + asyncio.get_running_loop().time() / 10
            assert writes.count("create_pod") == workers

    run_virtual(main())
