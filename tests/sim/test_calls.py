"""What a job costs the API server: nothing while nothing happens, a few calls for what does."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from support.puppets import Pace
from support.simulation import NAMESPACE, Simulation, manifest
from support.virtual_time import run_virtual
from trainjob_api import contract
from trainjob_operator.memory import Moment

HOUR_S = 3600.0
RANK = {"patch_job_status": 2, "create_event": 2}
"""What a rank that failed costs: the end and the next attempt in one write, that it trains in the other."""
POD = {"get_node": 1, "patch_job_status": 3, "create_event": 2, "create_pod": 1}
"""What a pod that went costs: was it taken away? Its attempt ends, the next one begins once its successor is there."""


def calls(sim: Simulation) -> Counter[str]:
    """By verb."""
    return Counter(call.verb for call, moment in sim.calls if moment is Moment.BEFORE)


@pytest.mark.parametrize("state", ["training", "waiting", "suspended", "finished"])
def test_an_idle_job_costs_two_calls_an_hour(state: str) -> None:
    async def main() -> None:
        async with Simulation(seed=1, pace=Pace(report=10**6)) as sim:
            sim.cluster.create_job(manifest(podCleanup="Running", suspend=state == "suspended"))
            if state == "waiting":
                sim.world.pace.schedule = (10**6, 10**6)
            if state == "training":
                await sim.until_training()
            if state == "finished":
                sim.world.pace.report = 0.1
                await sim.until_finished()
            await asyncio.sleep(180.0)
            sim.calls.clear()
            await asyncio.sleep(4 * HOUR_S)
            assert sum(calls(sim).values()) <= 4 * 2, calls(sim)

    run_virtual(main())


@pytest.mark.parametrize("state", ["training", "waiting", "suspended", "a notice stands", "stacks were asked for"])
def test_an_idle_agent_polls_as_often_as_polls_last(state: str) -> None:
    """What it has been told it acknowledges, whatever that is: else it would be answered at once, for ever."""

    async def main() -> None:
        async with Simulation(seed=1, pace=Pace(report=60.0)) as sim:
            stored = {"checkpoint": {"storage": "/checkpoints"}}
            sim.cluster.create_job(manifest(workers=2, suspend=state == "suspended", **stored))
            training = sim.world.training("digits")
            training.length, training.every = 10**6, 10**6  # it saves nothing: what waits for a checkpoint waits on
            if state == "waiting":
                sim.world.pace.schedule = (10**6, 10**6)
            elif state != "suspended":
                await sim.until_training()
            if state == "a notice stands":
                sim.world.announce_eviction(sim.agent(1))
            if state == "stacks were asked for":
                sim.cluster.annotate_job(NAMESPACE, "digits", {contract.ANNOTATION_STACKS: "a question"})
            await asyncio.sleep(180.0)
            if state == "a notice stands":
                assert sim.job().status.boundary is not None and sim.job().status.boundary.leaving
            assert sim.operator is not None
            before = sim.operator.coordinator.syncs
            await asyncio.sleep(600.0)
            assert sim.operator.coordinator.syncs - before <= 2 * (600.0 / contract.LONG_POLL_S + 10)

    run_virtual(main())


def test_a_job_that_reports_costs_seven_calls_a_minute() -> None:
    async def main() -> None:
        async with Simulation(seed=1, pace=Pace(report=2.0)) as sim:
            sim.cluster.create_job(manifest(workers=4))
            sim.world.training("digits").length = 10**6
            await sim.until_training()
            await asyncio.sleep(60.0)
            sim.calls.clear()
            await asyncio.sleep(1200.0)
            assert sum(calls(sim).values()) <= 20 * 7, calls(sim)

    run_virtual(main())


@pytest.mark.parametrize(("fault", "kinds"), [("rank", RANK), ("pod", POD)], ids=["rank", "pod"])
def test_a_recovery_costs_few_calls_and_its_pods(fault: str, kinds: dict[str, int]) -> None:
    """What the watch told is not read: neither the Service nor, before a new one is made, the pods."""

    async def main() -> None:
        async with Simulation(seed=1, pace=Pace(report=10**6)) as sim:
            sim.cluster.create_job(manifest(workers=4))
            await sim.until_training()
            await asyncio.sleep(120.0)
            sim.calls.clear()
            if fault == "rank":
                sim.world.fail_rank(sim.agent(1))
            else:
                sim.world.lose_pod(sim.agent(1))
            await sim.until_training(attempt=2)
            await asyncio.sleep(120.0)
            assert calls(sim) == kinds
            assert sum(kinds.values()) <= 6 + kinds.get("create_pod", 0)

    run_virtual(main())


def test_nothing_is_read_however_long_a_lost_pods_successor_takes() -> None:
    async def main() -> None:
        async with Simulation(seed=1, pace=Pace(report=10**6)) as sim:
            sim.cluster.create_job(manifest(workers=4))
            await sim.until_training()
            await asyncio.sleep(120.0)
            sim.calls.clear()
            sim.world.pace.start = (30.0, 30.0)
            sim.world.lose_pod(sim.agent(1))
            await sim.until_training(attempt=2)
            assert calls(sim)["get_service"] == calls(sim)["list_pods"] == 0

    run_virtual(main())


@pytest.mark.parametrize("deleted", [True, False])
def test_before_a_pod_is_made_again_by_its_name_it_is_looked_for(deleted: bool) -> None:
    """No attempt has counted on it; and where only its label is gone it is there."""

    async def main() -> None:
        async with Simulation(seed=1, pace=Pace(report=10**6, start=(60.0, 60.0))) as sim:
            sim.cluster.create_job(manifest(workers=2))
            await asyncio.sleep(30.0)
            uid = sim.cluster._store.get("Pod", NAMESPACE, "digits-1")["metadata"]["uid"]
            sim.calls.clear()
            if deleted:
                sim.cluster.remove_pod(NAMESPACE, "digits-1", 0)
            else:
                sim.cluster._store.update(
                    "Pod", NAMESPACE, "digits-1", lambda pod: pod["metadata"]["labels"].pop(contract.LABEL_JOB)
                )
            await asyncio.sleep(5.0)
            assert calls(sim)["list_pods"] >= 1
            again = sim.cluster._store.get("Pod", NAMESPACE, "digits-1")["metadata"]["uid"]
            assert (again != uid) == deleted
            verbs = [call.verb for call, moment in sim.calls if moment is Moment.BEFORE]
            assert verbs.index("list_pods") < verbs.index("create_pod")

    run_virtual(main())


def test_a_new_leader_asks_nothing_about_finished_jobs() -> None:
    async def main() -> None:
        async with Simulation(seed=1, pace=Pace(report=0.1)) as sim:
            names = [f"digits-{number}" for number in range(5)]
            for name in names:
                sim.cluster.create_job(manifest(name, podCleanup="Running"))
            for name in names:
                await sim.until_finished(name)
            await asyncio.sleep(120.0)
            sim.kill_operator()
            sim.calls.clear()
            sim.start_operator()
            await asyncio.sleep(600.0)
            assert sum(calls(sim).values()) == 0, calls(sim)

    run_virtual(main())
