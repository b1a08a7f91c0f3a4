"""Single incidents in a quiet world: counted as they should be, and survived as they should be."""

from __future__ import annotations

import asyncio
import random

import pytest

from support.puppets import Pace
from support.simulation import NAMESPACE, FlakyCluster, Simulation, manifest
from support.virtual_time import run_virtual
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.agents import coordinator
from trainjob_operator.memory import Call, Moment


async def trained_to(sim: Simulation, position: int) -> None:
    training = sim.world.training("digits")
    await sim.until(lambda: training.position >= position, f"{position} reports", every_s=0.5)


async def finished(sim: Simulation) -> tuple[TrainJob, list[str | None]]:
    """The job at its end, and why each of its attempts ended."""
    job = await sim.until_finished()
    return job, [entry.end_cause for entry in job.status.history]


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")


def test_a_rank_fails_and_no_pod_is_touched() -> None:
    async def main() -> None:
        async with Simulation(seed=3) as sim:
            sim.cluster.create_job(manifest(workers=3))
            await trained_to(sim, 2)
            before = {pod["metadata"]["uid"] for pod in sim.cluster.pods()}
            began = asyncio.get_running_loop().time()
            sim.world.fail_rank(sim.agent(2))
            await sim.until_training(2, within_s=5.0)
            assert asyncio.get_running_loop().time() - began < 1.5, "restarted in place, at once"
            assert {pod["metadata"]["uid"] for pod in sim.cluster.pods()} == before
            job, ends = await finished(sim)
            assert ends == ["NonZeroExit", "AllRanksSucceeded"]
            assert job.status.failures.counted == 1
            assert job.status.last_failure is not None and job.status.last_failure.rank == 2

    run_virtual(main())


def test_the_first_cause_is_found_among_the_victims() -> None:
    async def main() -> None:
        async with Simulation(seed=3) as sim:
            sim.world.pace.notice = 0.001
            sim.cluster.create_job(manifest(workers=4))
            await trained_to(sim, 2)
            sim.world.fail_rank(sim.agent(1), exit_code=7)
            job, ends = await finished(sim)
            assert ends == ["NonZeroExit", "AllRanksSucceeded"]
            failure = job.status.last_failure
            assert failure is not None
            assert (failure.rank, failure.exit_code, failure.reason) == (1, 7, contract.REASON_EXIT)

    run_virtual(main())


def test_a_lost_pod_is_replaced_and_the_others_stay() -> None:
    async def main() -> None:
        async with Simulation(seed=3) as sim:
            sim.cluster.create_job(manifest(workers=3))
            await trained_to(sim, 2)
            before = {pod["metadata"]["name"] for pod in sim.cluster.pods()}
            sim.world.lose_pod(sim.agent(1))
            await sim.until_training(2, within_s=30.0)
            assert {pod["metadata"]["name"] for pod in sim.cluster.pods()} == before - {"digits-1"} | {"digits-3"}
            job, ends = await finished(sim)
            assert ends == ["PodLost", "AllRanksSucceeded"] and job.status.failures.counted == 1

    run_virtual(main())


def test_an_eviction_is_not_counted() -> None:
    async def main() -> None:
        async with Simulation(seed=3) as sim:
            sim.cluster.create_job(manifest(workers=3))
            await trained_to(sim, 2)
            sim.world.evict_pod(sim.agent(1))
            await sim.until_training(2, within_s=60.0)
            job, ends = await finished(sim)
            assert len(ends) == 2 and (job.status.failures.counted, job.status.failures.preemptions) == (0, 1)

    run_virtual(main())


def test_a_pod_that_was_evicted_and_is_gone_before_any_look_is_a_preemption() -> None:
    """Evicted without grace, from a node that stands well: nothing but the watch's last word tells of it."""

    async def main() -> None:
        async with Simulation(seed=3) as sim:
            sim.cluster.create_job(manifest(workers=3, failurePolicy={"maxFailures": 0}))
            await trained_to(sim, 2)
            sim.world.evict_pod(sim.agent(1), grace_s=0)
            await sim.until_training(2, within_s=60.0)
            job, ends = await finished(sim)
            assert ends == ["Preempted", "AllRanksSucceeded"]
            assert (job.status.failures.counted, job.status.failures.preemptions) == (0, 1)
            assert "PreemptionByScheduler" in job.status.last_failure.message  # type: ignore[union-attr]

    run_virtual(main())


@pytest.mark.parametrize("budget", [0, 2])
def test_the_budget_is_spent_and_not_more(budget: int) -> None:
    async def main() -> None:
        async with Simulation(seed=3) as sim:
            sim.cluster.create_job(manifest(failurePolicy={"maxFailures": budget, "noProgressAttempts": 0}))
            sim.world.training("digits").length = 10**6
            for attempt in range(1, budget + 2):
                await sim.until_training(attempt)
                sim.world.fail_rank(sim.agent(0))
            job, ends = await finished(sim)
            assert job.status.holds("Failed") and job.status.failures.counted == budget + 1
            assert len(ends) == budget + 1
            assert not sim.world.agents or await gone(sim)

    run_virtual(main())


async def gone(sim: Simulation) -> bool:
    await sim.until(lambda: not sim.world.agents, "agents are told to exit", within_s=60.0)
    return True


def test_suspend_and_resume_go_on_where_training_stood() -> None:
    async def main() -> None:
        async with Simulation(seed=3) as sim:
            sim.cluster.create_job(manifest())
            training = sim.world.training("digits")
            training.length = 20
            await trained_to(sim, 5)
            sim.cluster.update_job_spec(NAMESPACE, "digits", {"suspend": True})
            await sim.until(lambda: not sim.world.agents, "no worker runs", within_s=60.0)
            stood = training.position
            await asyncio.sleep(600.0)
            assert training.position == stood and not sim.job().status.finished
            sim.cluster.update_job_spec(NAMESPACE, "digits", {"suspend": False})
            job, _ = await finished(sim)
            assert job.status.holds("Complete") and job.status.failures.counted == 0

    run_virtual(main())


def test_a_job_of_the_same_name_starts_afresh() -> None:
    async def main() -> None:
        async with Simulation(seed=3) as sim:
            sim.cluster.create_job(manifest())
            sim.world.training("digits").length = 10**6
            await sim.until_training()
            first = sim.job().metadata.uid
            sim.cluster.remove_job(NAMESPACE, "digits")
            sim.cluster.create_job(manifest())
            sim.world.trainings.clear()
            job, ends = await finished(sim)
            assert job.metadata.uid != first and ends == ["AllRanksSucceeded"]
            assert job.status.failures.counted == 0
            await sim.until(lambda: not sim.world.agents, "no agent of either job is left", within_s=60.0)

    run_virtual(main())


def test_jobs_do_not_disturb_each_other() -> None:
    async def main() -> None:
        async with Simulation(seed=3) as sim:
            names = [f"job-{number}" for number in range(12)]
            for name in names:
                sim.cluster.create_job(manifest(name))
            await sim.until(
                lambda: all(sim.job(name).status.finished for name in names),
                "all are finished",
                within_s=120.0,
                every_s=1.0,
            )
            assert {sim.job(name).status.phase for name in names} == {"Complete"}
            assert all(attempt == 1 for _, attempt, _, _ in sim.world.starts)

    run_virtual(main())


@pytest.mark.parametrize("index", [0, 1], ids=["rank 0's worker", "another worker"])
def test_a_container_that_was_started_again_trains_again(index: int) -> None:
    """Its peers have lost it and never find it again in the old attempt: its own word, which says nothing new, has to
    be heard after that."""

    async def main() -> None:
        async with Simulation(seed=3) as sim:
            sim.cluster.create_job(manifest(workers=3))
            await trained_to(sim, 2)
            sim.world.restart_container(sim.agent(index))
            await sim.until_training(2, within_s=10.0)
            job, ends = await finished(sim)
            assert ends == ["ContainerRestarted", "AllRanksSucceeded"] and job.status.failures.counted == 1

    run_virtual(main())


def test_workers_that_doubted_each_other_begin_anew_once_they_speak() -> None:
    async def main() -> None:
        async with Simulation(seed=3) as sim:
            sim.cluster.create_job(manifest(workers=2))
            await trained_to(sim, 2)
            first, second = sim.agent(0), sim.agent(1)
            sim.world.incidents += 1
            first.lost_peers.add(1)
            second.lost_peers.add(0)
            for agent in (first, second):
                error = {"type": "RuntimeError", "message": "timed out", "traceback": "", "communication": True}
                agent.end_rank(0, contract.END_EXCEPTION, exit_code=1, error=error)
            await sim.until_training(2, within_s=10.0)
            _, ends = await finished(sim)
            assert ends == ["CommunicationError", "AllRanksSucceeded"]

    run_virtual(main())


def test_agents_hear_of_the_next_attempt_before_its_events_are_told() -> None:
    """Only the status is what an attempt rests on: an API server that is slow with events holds up no restart."""

    async def main() -> None:
        async with Simulation(seed=1, pace=Pace(report=0.2)) as sim:
            sim.world.training("digits").length = 10**6
            sim.cluster.create_job(manifest())
            await sim.until_training()
            await asyncio.sleep(30.0)

            async def slow(call: Call, moment: Moment) -> None:
                if call.verb == "create_event":
                    await asyncio.sleep(20.0)

            sim.on_call = slow
            assert sim.world.fail_rank(sim.agent(1))
            await sim.until_training(attempt=2, within_s=10.0)

    run_virtual(main())


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("pace_s", [1.0, 60.0])
def test_each_attempt_that_came_further_has_progressed_however_rarely_that_is_told(
    monkeypatch: pytest.MonkeyPatch, lost: int, pace_s: float
) -> None:
    """A new report, and right after it the pod is gone without a word, again and again: no attempt was in vain."""
    monkeypatch.setattr(coordinator, "PACE_LEAST_S", pace_s)
    monkeypatch.setattr(coordinator, "PACE_MOST_S", pace_s)

    async def main() -> None:
        async with Simulation(seed=3) as sim:
            training = sim.world.training("digits")
            training.length, training.every = 60, 20
            sim.cluster.create_job(manifest(failurePolicy={"maxFailures": -1, "noProgressAttempts": 3}))
            for times in range(1, 6):
                await trained_to(sim, 20 + times)
                await sim.until_training(times)
                await asyncio.sleep(0.2)
                sim.world.lose_pod(sim.agent(lost))
                await sim.until_training(times + 1)
                training.position = 0
                assert sim.job().status.failures.since_progress == 0, times
            job, _ = await finished(sim)
            assert job.status.holds("Complete") and job.status.failures.counted == 5

    run_virtual(main())


def test_an_agent_that_tells_of_its_sigterm_before_the_watch_tells_of_the_eviction_costs_no_failure() -> None:
    async def main() -> None:
        async with Simulation(seed=3, cluster_type=FlakyCluster) as sim:
            policy = {"maxFailures": 0}
            sim.cluster.create_job(manifest(checkpoint={"storage": "/checkpoints"}, failurePolicy=policy))
            sim.world.training("digits").length = 30
            await trained_to(sim, 3)
            sim.cluster.rng = random.Random(1)
            sim.cluster.watch_stands_until = asyncio.get_running_loop().time() + 10.0
            await asyncio.sleep(1.0)
            sim.world.evict_pod(sim.agent(1))
            job, ends = await finished(sim)
            assert ends == ["Preempted", "AllRanksSucceeded"] and job.status.failures.preemptions == 1

    run_virtual(main())


@pytest.mark.parametrize("killed", [False, True])
def test_a_member_without_an_agent_that_is_gone_before_all_had_a_node_is_not_made_again(killed: bool) -> None:
    """The others wait for it in vain: what it had told them went with it."""

    async def main() -> None:
        async with Simulation(seed=3) as sim:
            agent = {"runtime": {"agent": "Disabled"}}
            sim.cluster.create_job(manifest(workers=3, failurePolicy={"maxFailures": 0}, **agent))
            sim.world.pace.schedule = (0.1, 0.1)
            sim.world.capacity = 2
            await sim.until(lambda: len(sim.world.agents) == 2, "two run, and the third has no node")
            if killed:
                sim.kill_operator()
            gone = sim.world.agents[sorted(sim.world.agents)[0]]
            sim.world.evict_pod(gone, grace_s=0)
            await asyncio.sleep(2.0)
            sim.world.capacity = None
            if killed:
                sim.start_operator()
            job, ends = await finished(sim)
            assert job.status.holds("Complete") and len(ends) == 2, ends
            names = [call.name for call in sim.writes if call.verb == "create_pod"]
            assert len(names) == len(set(names)) == 6, names

    run_virtual(main())
