"""A job is deleted and made again under its name, and the watch tells of the one before for a while: whoever was told of
the new one by a read must not be told of the old one afterwards.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from support.simulation import NAMESPACE, FlakyCluster, Simulation, manifest
from support.virtual_time import run_virtual
from trainjob_api import contract
from trainjob_operator.cluster import Rejected


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")


class Slow(random.Random):
    """Each word of the watch takes its time."""

    def random(self) -> float:
        return 0.1


@pytest.mark.parametrize("after_s", [0.5, 5.0], ids=["before it trains", "while it trains"])
@pytest.mark.parametrize("agent", ["auto", "Disabled"])
def test_a_watch_that_begins_with_the_job_before_sends_no_agent_home(after_s: float, agent: str) -> None:
    async def main() -> None:
        async with Simulation(seed=3, cluster_type=FlakyCluster) as sim:
            sim.cluster.rng, sim.cluster.longest_delay_s = Slow(3), 0.0
            spec = {"checkpoint": {"storage": "/checkpoints"}, "runtime": {"agent": agent}}
            sim.cluster.create_job(manifest(**spec))
            sim.world.training("digits").length = 10**6
            await sim.until_training()
            sim.cluster.remember()
            sim.cluster.remove_job(NAMESPACE, "digits")
            sim.world.trainings.clear()
            sim.cluster.create_job(manifest(**spec))
            sim.world.training("digits").length = 20
            await asyncio.sleep(after_s)
            sim.cluster.longest_delay_s = 2.0
            sim.cluster.watch_expires.set()
            sim.cluster.annotate_job(NAMESPACE, "digits", {"somebody": "was here"})  # the watch notices it now
            job = await sim.until_finished(within_s=300.0)
            ends = [entry.end_cause for entry in job.status.history]
            assert ends == [contract.REASON_COMPLETED], job.status.to_json()
            assert job.status.failures.counted == 0

    run_virtual(main())


def test_what_was_refused_to_the_job_before_is_tried_at_once() -> None:
    """And nobody is told of refusals that were another's."""

    async def main() -> None:
        async with Simulation(seed=3) as sim:
            sim.obstacles["create_pod"] = lambda: Rejected("exceeded quota: pods, limited: 0")
            sim.cluster.create_job(manifest())
            await asyncio.sleep(300.0)
            sim.cluster.remove_job(NAMESPACE, "digits")
            sim.obstacles.clear()
            sim.cluster.create_job(manifest())
            await asyncio.sleep(2.0)
            assert len(sim.cluster.pods()) == 2
            events = [
                event for event in sim.cluster.events() if event["involvedObject"]["uid"] == sim.job().metadata.uid
            ]
            assert "FailedCreate" not in {event["reason"] for event in events}
            told = sim.job().status.condition("ResourcesCreated")
            assert told is not None and told.status == "True"

    run_virtual(main())
