"""The operator is away for so long that agents end by themselves: their pods' termination messages tell what
happened meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from support.simulation import NAMESPACE, Simulation, manifest
from support.virtual_time import run_virtual
from trainjob_api import contract
from trainjob_api.v1alpha1 import Condition, TrainJob

LONG_S = 800.0


def condition(job: TrainJob, type_: str) -> Condition:
    found = job.status.condition(type_)
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")


def ended(sim: Simulation) -> dict[str, dict[str, Any]]:
    """How the trainer containers ended, by pod."""
    statuses = {
        pod["metadata"]["name"]: pod["status"].get("containerStatuses", [{}])[0].get("state", {})
        for pod in sim.cluster.pods(NAMESPACE)
    }
    return {name: state["terminated"] for name, state in statuses.items() if "terminated" in state}


def shows_the_end(sim: Simulation, job: TrainJob) -> None:
    """The operator was there for the first report alone."""
    training, progress, checkpoint = sim.world.training("digits"), job.status.progress, job.status.checkpoint
    length, newest = training.length, str(training.storage.kept[-1].id)
    assert (progress.position, progress.step, progress.metrics) == (length, length, {"loss": 1.0 / length})
    assert checkpoint.latest is not None and checkpoint.latest.id == newest


async def trains(sim: Simulation, workers: int = 3, **spec: Any) -> None:
    sim.cluster.create_job(manifest(workers=workers, **spec))
    training = sim.world.training("digits")
    await sim.until(lambda: training.position >= 1, "a report", every_s=0.5)


def test_a_job_that_completed_while_the_operator_was_away_is_complete_though_its_pods_are_gone() -> None:
    async def main() -> None:
        async with Simulation(seed=3) as sim:
            await trains(sim)
            sim.kill_operator()
            await sim.until(lambda: len(ended(sim)) == 3, "all agents have ended", LONG_S)
            assert [end["exitCode"] for end in ended(sim).values()] == [0, 0, 0]
            assert ended(sim)["digits-0"]["message"].startswith("trainjob: completed run=1 attempt=1: {")
            sim.start_operator()
            job = await sim.until_finished(within_s=10.0)
            assert condition(job, "Complete").status == "True"
            assert (job.status.failures.counted, job.status.next_slot, job.status.attempt.number) == (0, 3, 1)
            shows_the_end(sim, job)

    run_virtual(main())


def test_how_far_training_came_is_known_from_another_worker_where_rank_0s_pod_is_gone() -> None:
    async def main() -> None:
        async with Simulation(seed=3) as sim:
            await trains(sim)
            sim.kill_operator()
            await sim.until(lambda: len(ended(sim)) == 3, "all agents have ended", LONG_S)
            leader = next(pod for pod in sim.cluster.pods(NAMESPACE) if pod["metadata"]["name"] == "digits-0")
            await sim.cluster.delete_pod(NAMESPACE, "digits-0", leader["metadata"]["uid"])
            await sim.until(lambda: len(sim.cluster.pods(NAMESPACE)) == 2, "the pod is gone")
            sim.start_operator()
            job = await sim.until_finished(within_s=10.0)
            assert condition(job, "Complete").status == "True"
            shows_the_end(sim, job)

    run_virtual(main())


def test_without_the_message_a_new_worker_has_to_find_the_end_record() -> None:
    async def main() -> None:
        async with Simulation(seed=3) as sim:
            sim.world.last_words = False
            await trains(sim)
            sim.kill_operator()
            await sim.until(lambda: len(ended(sim)) == 3, "all agents have ended", LONG_S)
            sim.start_operator()
            job = await sim.until_finished()
            assert condition(job, "Complete").status == "True"
            assert job.status.failures.counted == 0 and job.status.next_slot > 3
            shows_the_end(sim, job)

    run_virtual(main())


@pytest.mark.parametrize("notice_s", [0.5, 0.0])
def test_a_rank_that_failed_while_the_operator_was_away_is_the_first_cause_and_counted_once(notice_s: float) -> None:
    """With its peers' ranks lost too, or still waiting for it: then their pods stay."""

    async def main() -> None:
        async with Simulation(seed=3) as sim:
            sim.world.pace.notice = notice_s
            await trains(sim)
            sim.kill_operator()
            sim.world.fail_rank(sim.agent(2), exit_code=7)
            gone = 3 if notice_s else 1
            await sim.until(lambda: len(ended(sim)) == gone, f"{gone} agents have ended", LONG_S)
            await asyncio.sleep(LONG_S)
            assert {end["exitCode"] for end in ended(sim).values()} == {contract.EXIT_NO_COORDINATOR} and len(
                ended(sim)
            ) == gone
            sim.start_operator()
            job = await sim.until_finished()
            assert [entry.end_cause for entry in job.status.history] == [
                contract.REASON_EXIT,
                contract.REASON_COMPLETED,
            ]
            failure = job.status.last_failure
            assert (failure.rank, failure.exit_code, failure.pod, failure.reason) == (
                2,
                7,
                "digits-2",
                contract.REASON_EXIT,
            )
            assert failure.message == "rank 2 on digits-2 ended with exit code 7"
            assert (job.status.failures.counted, job.status.next_slot) == (1, 3 + gone)

    run_virtual(main())


def test_a_rule_for_an_exit_code_holds_for_what_happened_while_the_operator_was_away() -> None:
    async def main() -> None:
        async with Simulation(seed=3) as sim:
            await trains(sim, failurePolicy={"rules": [{"exitCodes": [42], "action": "Fail"}]})
            sim.kill_operator()
            sim.world.fail_rank(sim.agent(1), exit_code=42)
            await sim.until(lambda: len(ended(sim)) == 3, "all agents have ended", LONG_S)
            sim.start_operator()
            job = await sim.until_finished(within_s=10.0)
            assert condition(job, "Failed").reason == contract.REASON_RULE
            assert job.status.last_failure.rank == 1

    run_virtual(main())


@pytest.mark.parametrize("seed", range(8))
def test_whatever_breaks_while_the_operator_comes_and_goes_for_minutes(seed: int) -> None:
    """Always Complete, and never more counted than was broken (the simulation's checker)."""

    async def main() -> None:
        rng = random.Random(seed)
        async with Simulation(seed=seed) as sim:
            sim.world.pace.notice = rng.choice([0.0, 0.5])
            sim.world.training("digits").length = rng.choice([5, 30])
            sim.cluster.create_job(manifest(workers=rng.choice([1, 2, 3]), failurePolicy={"maxFailures": -1}))
            for _ in range(rng.choice([1, 2, 3])):
                await asyncio.sleep(rng.uniform(0.0, 15.0))
                sim.kill_operator()
                await asyncio.sleep(rng.uniform(0.0, 5.0))
                for agent in rng.sample(list(sim.world.agents.values()), min(1, len(sim.world.agents))):
                    rng.choice(
                        [
                            sim.world.fail_rank,
                            sim.world.crash_container,
                            sim.world.lose_pod,
                            sim.world.restart_container,
                        ]
                    )(agent)
                await asyncio.sleep(rng.choice([1.0, 300.0, 590.0, 605.0, 900.0, 1500.0]))
                sim.start_operator()
            job = await sim.until_finished(within_s=3000.0)
            assert condition(job, "Complete").status == "True" and sim.world.training("digits").completed

    run_virtual(main())


def test_agents_that_gave_up_before_an_attempt_began_are_replaced_uncounted() -> None:
    async def main() -> None:
        async with Simulation(seed=3) as sim:
            sim.cluster.create_job(manifest(workers=2))
            await sim.until(lambda: len(sim.cluster.pods(NAMESPACE)) == 2, "the pods are there", every_s=0.01)
            sim.kill_operator()
            await sim.until(lambda: len(ended(sim)) == 2, "all agents have ended", LONG_S)
            assert {end["exitCode"] for end in ended(sim).values()} == {contract.EXIT_NO_COORDINATOR}
            assert ended(sim)["digits-0"]["message"] == "trainjob: ended attempt=0 code=81: no coordinator"
            sim.start_operator()
            job = await sim.until_finished()
            assert condition(job, "Complete").status == "True"
            assert (job.status.failures.counted, job.status.next_slot) == (0, 4)

    run_virtual(main())


def test_a_node_that_went_with_the_operator_away_costs_one_failure_at_most() -> None:
    """The agent of the lost pod left nothing; its peers' ranks ended of it, and their agents gave up."""

    async def main() -> None:
        async with Simulation(seed=3) as sim:
            await trains(sim)
            sim.kill_operator()
            broken = sim.agent(1)
            sim.world.lose_pod(broken)
            sim.world.spawn(sim.world._peers_notice(broken, 1))
            await sim.until(lambda: len(ended(sim)) == 2, "both other agents have ended", LONG_S)
            sim.start_operator()
            job = await sim.until_finished()
            assert condition(job, "Complete").status == "True"
            assert job.status.failures.counted <= 1 and job.status.next_slot == 6

    run_virtual(main())
