"""A node is lost, and the operator dies around any of its calls: the same end, one preemption, one replacement."""

from __future__ import annotations

import asyncio

import pytest

from support.puppets import Pace
from support.simulation import NAMESPACE, Death, Simulation, manifest
from support.virtual_time import run_virtual
from trainjob_operator.memory import Call, Moment

Ending = tuple[str | None, int, int, tuple[str | None, ...], str, int]


async def story(die_at: int | None) -> tuple[Ending, list[tuple[Call, Moment]]]:
    async with Simulation(seed=7, pace=Pace(report=2.0)) as sim:
        sim.cluster.create_job(manifest(workers=3, podCleanup="All"))
        sim.world.training("digits").length = 15
        await sim.until_training(1)
        await asyncio.sleep(3.0)
        sim.calls.clear()
        if die_at is not None:
            sim.on_call = Death(sim, die_at)
        agent = sim.agent(1)
        node = str(sim.world.pod(NAMESPACE, agent.pod_name)["spec"]["nodeName"])
        for other in list(sim.world.agents.values()):
            if other is not agent:  # the others stand elsewhere, whatever the dice said
                sim.cluster.bind_pod(NAMESPACE, other.pod_name, "node-elsewhere")
        sim.cluster.add_node("node-elsewhere")
        sim.world.lose_node(node)
        job = await sim.until_finished()
        calls = list(sim.calls)
        await asyncio.sleep(60.0)
        status = job.status
        causes = tuple(entry.end_cause for entry in status.history)
        return (
            status.phase,
            status.failures.counted,
            status.failures.preemptions,
            causes,
            status.slots,
            status.next_slot,
        ), calls


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")


def test_the_operator_dies_around_each_write_and_around_the_looks_at_the_node() -> None:
    end, calls = run_virtual(story(None))
    assert end == ("Complete", 0, 1, ("WorkerUnreachable", "AllRanksSucceeded"), "0,2-3", 4)
    # Dying around a write of progress differs in nothing from dying around the one before.
    points = [
        at
        for at, (call, _) in enumerate(calls)
        if call.verb in ("create_pod", "delete_pod", "create_event", "get_node")
    ]
    ended = next(at for at, (call, _) in enumerate(calls) if call.verb == "create_pod")
    points += [
        at for at, (call, _) in enumerate(calls) if call.verb == "patch_job_status" and ended - 12 <= at <= ended + 40
    ]
    assert {calls[at][0].verb for at in points} >= {"create_pod", "delete_pod", "patch_job_status"}
    for at in sorted(points):
        killed, _ = run_virtual(story(at))
        assert killed == end, f"killed {calls[at][1].value} call {at}: {calls[at][0]}"
