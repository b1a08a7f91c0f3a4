"""Checkpoints through agents that save, store and commit for real: what ranks were promised holds, whatever breaks.

The ranks themselves look (`support.puppet_ranks`); here are the worlds in which they have to.
"""

from __future__ import annotations

import asyncio

import pytest

from support.simulation import Simulation, manifest
from support.virtual_time import run_virtual
from trainjob.checkpoint import errors
from trainjob_api import contract

STORED = {"workers": 3, "checkpoint": {"storage": "/checkpoints"}}


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")


def test_a_run_ends_once_all_that_was_acknowledged_is_stored() -> None:
    async def main() -> None:
        async with Simulation(seed=1) as sim:
            training = sim.world.training("digits")
            training.length, training.storage.bytes_s = 3, 20.0  # training is long over by then
            sim.cluster.create_job(manifest(**STORED))
            job = await sim.until_finished()
            assert job.status.holds("Complete") and training.completed
            assert set(training.acknowledged) == set(training.storage.manifests) and len(training.acknowledged) == 3

    run_virtual(main())


def test_an_outage_of_storage_holds_training_up_and_costs_nothing() -> None:
    async def main() -> None:
        async with Simulation(seed=2) as sim:
            training = sim.world.training("digits")
            training.length = 12
            sim.cluster.create_job(manifest(**STORED))
            await sim.until(lambda: training.position >= 2, "two reports")
            training.storage.refusal = (errors.UNREADABLE, "storage does not answer")
            await sim.until(lambda: training.position >= 4, "as many as may be on their way")
            training.storage.refusal = None
            job = await sim.until_finished()
            assert job.status.holds("Complete") and job.status.failures.counted == 0

    run_virtual(main())


@pytest.mark.parametrize("mode", [contract.UPLOAD_ASYNC, contract.UPLOAD_SYNC])
def test_a_restart_goes_on_at_the_newest_checkpoint(mode: str) -> None:
    async def main() -> None:
        async with Simulation(seed=3) as sim:
            training = sim.world.training("digits")
            training.length, training.mode, training.storage.bytes_s = 10, mode, 5.0
            sim.cluster.create_job(manifest(**STORED))
            await sim.until(lambda: training.position >= 5, "five reports")
            stood = training.position
            sim.world.fail_rank(sim.agent(1))
            await sim.until_training(2)
            chosen = sim.agent(0).answer.resume.checkpoint
            assert chosen is not None and chosen.note["position"] in (stood, stood + 1)
            job = await sim.until_finished()
            assert job.status.holds("Complete") and job.status.failures.counted == 1

    run_virtual(main())


def test_a_link_that_breaks_and_comes_back_costs_nothing() -> None:
    async def main() -> None:
        async with Simulation(seed=4) as sim:
            training = sim.world.training("digits")
            training.length = 12
            sim.cluster.create_job(manifest(**STORED))
            for position in (2, 5, 8):
                await sim.until(lambda least=position: training.position >= least, "reports")
                group = sim.agent(0).group
                group.cut_link(1)
                await sim.until(lambda: 0 in sim.agent(1).lost_peers, "it is told")
                group.mend_link(1)
            job = await sim.until_finished()
            assert job.status.holds("Complete") and job.status.failures.counted == 0
            assert {attempt for _, attempt, _, _ in sim.world.starts} == {1}

    run_virtual(main())


def test_what_is_about_to_complete_the_run_does_so_before_rank_0s_agent_looks_whether_it_did() -> None:
    async def main() -> None:
        async with Simulation(seed=5) as sim:
            training = sim.world.training("digits")
            training.length = 2
            training.storage.held.add("commit")
            sim.cluster.create_job(manifest(**STORED, failurePolicy={"maxFailures": 0}))
            await sim.until(lambda: training.position >= 2, "two reports")
            await sim.until(lambda: all(sim.agent(index).quiet for index in range(3)), "all ranks have ended")
            sim.world.lose_pod(sim.agent(1))
            await sim.until(lambda: sim.job().status.verdict is not None, "it is looked whether training had completed")
            await asyncio.sleep(10.0)
            training.storage.let_go.set()
            job = await sim.until_finished()
            assert job.status.holds("Complete") and training.completed

    run_virtual(main())
