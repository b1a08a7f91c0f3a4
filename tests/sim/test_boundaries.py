"""Planned changes of a job that trains: no step is made twice, whoever wishes what, and the operator may be away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from support.puppets import Pace
from support.simulation import NAMESPACE, Death, Simulation, manifest
from support.virtual_time import run_virtual
from trainjob.agent import draining
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob

LENGTH, EVERY = 60, 4
STORED = {"checkpoint": {"storage": "/checkpoints"}}
ELASTIC = {"elastic": {"minWorkers": 1, "maxWorkers": 4, "shrinkAfterSeconds": 5, "growAfterSeconds": 5}}


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")


async def started(sim: Simulation, **spec: object) -> None:
    """A job with a checkpoint every few steps, that has made some of them."""
    sim.cluster.create_job(manifest(**{**STORED, **spec}))
    training = sim.world.training("digits")
    training.length, training.every = LENGTH, EVERY
    await sim.until(lambda: training.position >= 6, "some steps", every_s=0.05)


async def ended(sim: Simulation) -> tuple[TrainJob, list[str | None]]:
    job = await sim.until_finished()
    assert job.status.holds("Complete"), job.status.to_json()
    assert (job.status.failures.counted, job.status.failures.preemptions) == (0, 0)
    return job, [entry.end_cause for entry in job.status.history]


def update(**spec: object) -> Callable[[Simulation], object]:
    return lambda sim: sim.cluster.update_job_spec(NAMESPACE, "digits", spec)


CHANGES: dict[str, tuple[Callable[[Simulation], object], str]] = {
    "smaller": (update(workers=1), contract.REASON_SCALED),
    "larger": (update(workers=4), contract.REASON_SCALED),
    "restart": (
        lambda sim: sim.cluster.annotate_job(NAMESPACE, "digits", {contract.ANNOTATION_RESTART: "x"}),
        contract.REASON_RESTART_REQUESTED,
    ),
    "suspend": (update(suspend=True), contract.REASON_SUSPENDED),
}


def test_an_attempt_of_which_one_member_is_not_heard_trains_if_rank_0_says_so() -> None:
    """Nobody has told that all of its ranks run, and it has made steps all the same."""

    async def main() -> None:
        async with Simulation(seed=3, pace=Pace(report=0.5)) as sim:
            await started(sim, workers=2)
            CHANGES["restart"][0](sim)

            def has_joined() -> bool:
                group = sim.world.groups.get((sim.job().metadata.uid, 2))
                return group is not None and all(agent.member is not None for agent in group.members.values())

            await sim.until(has_joined, "attempt 2 has been joined", every_s=0.0001)
            other = sim.agent(1)
            sim.world.mute(other)
            before = sim.world.training("digits").position
            await sim.until(lambda: sim.world.training("digits").position > before + 1, "more steps", every_s=0.05)
            assert sim.job().status.attempt is not None and sim.job().status.attempt.running_at is None
            update(suspend=True)(sim)
            await asyncio.sleep(5.0)
            other.muted = False
            await sim.until(lambda: not sim.world.agents, "no worker runs", within_s=90.0)
            update(suspend=False)(sim)
            await ended(sim)
            assert sim.world.training("digits").steps == list(range(1, LENGTH + 1))

    run_virtual(main())


@pytest.mark.parametrize("what", CHANGES)
def test_a_planned_change_costs_no_step(what: str) -> None:
    change, cause = CHANGES[what]

    async def main() -> None:
        async with Simulation(seed=3) as sim:
            await started(sim, workers=2)
            change(sim)
            if what == "suspend":
                await sim.until(lambda: not sim.world.agents, "no worker runs", within_s=60.0)
                assert sim.world.training("digits").storage.manifests, "what was saved last is stored"
                update(suspend=False)(sim)
            _, ends = await ended(sim)
            assert ends == [cause, contract.REASON_COMPLETED]
            assert sim.world.training("digits").steps == list(range(1, LENGTH + 1))

    run_virtual(main())


def test_an_elastic_job_grows_at_a_boundary() -> None:
    async def main() -> None:
        async with Simulation(seed=3, pace=Pace(report=0.5)) as sim:
            sim.world.capacity = 2
            await started(sim, workers=3, **ELASTIC)
            assert sim.agent(1).group.workers == 2
            sim.world.capacity = 3
            job, ends = await ended(sim)
            assert ends == [contract.REASON_RESIZED, contract.REASON_COMPLETED]
            assert [entry.world_size for entry in job.status.history] == [2, 3]
            assert sim.world.training("digits").steps == list(range(1, LENGTH + 1))

    run_virtual(main())


def test_an_elastic_job_that_is_scaled_up_waits_for_no_growth() -> None:
    async def main() -> None:
        async with Simulation(seed=3) as sim:
            await started(sim, workers=2, elastic={**ELASTIC["elastic"], "growAfterSeconds": 10**6})
            update(workers=4)(sim)
            job, ends = await ended(sim)
            assert ends == [contract.REASON_SCALED, contract.REASON_COMPLETED]
            assert [entry.world_size for entry in job.status.history] == [2, 4]
            assert sim.world.training("digits").steps == list(range(1, LENGTH + 1))

    run_virtual(main())


def test_an_elastic_job_goes_on_smaller_and_counts_the_loss_once() -> None:
    async def main() -> None:
        async with Simulation(seed=3, pace=Pace(report=0.5)) as sim:
            await started(sim, workers=3, **ELASTIC)
            sim.world.capacity = 2
            sim.world.lose_pod(sim.agent(1))
            job = await sim.until_finished()
            assert job.status.holds("Complete") and job.status.failures.counted == 1
            assert [entry.world_size for entry in job.status.history] == [3, 2]

    run_virtual(main())


def test_a_wish_that_is_taken_back_changes_nothing() -> None:
    async def main() -> None:
        async with Simulation(seed=3) as sim:
            await started(sim, workers=2)
            sim.world.training("digits").every = 1000
            update(workers=1)(sim)
            await sim.until(lambda: sim.job().status.boundary is not None, "it waits", every_s=0.05)
            update(workers=2)(sim)
            _, ends = await ended(sim)
            assert ends == [contract.REASON_COMPLETED]
            assert sim.world.training("digits").steps == list(range(1, LENGTH + 1))

    run_virtual(main())


def test_a_loop_that_saves_nothing_is_stopped_after_the_time_out() -> None:
    async def main() -> None:
        async with Simulation(seed=3) as sim:
            await started(sim, workers=2, boundaryTimeoutSeconds=3)
            sim.world.training("digits").length = 10**6
            sim.world.training("digits").every = 10**6
            update(suspend=True)(sim)
            await sim.until(lambda: not sim.world.agents, "no worker runs", within_s=60.0)
            assert sim.job().status.holds("Suspended")

    run_virtual(main())


@pytest.mark.parametrize("seed", range(4))
def test_without_an_operator_training_goes_on_from_a_boundary(seed: int) -> None:
    """It dies with the wish on its way; its successor finds it in status, and the agents ask again."""

    async def main() -> None:
        async with Simulation(seed=seed) as sim:
            await started(sim, workers=2)
            update(workers=1)(sim)
            await sim.until(lambda: sim.job().status.boundary is not None, "it waits", every_s=0.01)
            await asyncio.sleep(0.05 * seed)
            sim.kill_operator()
            training = sim.world.training("digits")
            if training.position < training.length:
                before = training.position
                await sim.until(lambda: training.position >= before + EVERY + 1, "training goes on", within_s=30.0)
            sim.start_operator()
            await ended(sim)

    run_virtual(main())


@pytest.mark.parametrize("at", range(0, 60, 3))
def test_the_operator_killed_at_any_call_of_a_resize_ends_in_the_same_state(at: int) -> None:
    async def main() -> None:
        async with Simulation(seed=1) as sim:
            await started(sim, workers=2)
            sim.world.training("digits").length = length = 4 * LENGTH
            sim.on_call = Death(sim, at=len(sim.calls) + at)
            update(workers=3)(sim)
            job = await sim.until_finished()
            assert job.status.holds("Complete") and job.status.failures.counted == 0
            assert [entry.world_size for entry in job.status.history][-1] == 3
            assert sim.world.training("digits").steps == list(range(1, length + 1))

    run_virtual(main())


def leave(how: str, slot: int, grace_s: int) -> Callable[[Simulation], object]:
    def evict(sim: Simulation) -> object:
        if how == "told to end":
            return sim.world.terminate(sim.agent(slot))
        if how == "announced":
            return sim.world.announce_eviction(sim.agent(slot))
        if how == "tainted":
            return sim.world.announce_node(sim.world.node_of(sim.agent(slot)))
        if how == "evicted":
            return sim.world.evict_pod(sim.agent(slot), grace_s=grace_s)
        agent = sim.agent(slot)
        sim.world.incidents += 1
        return asyncio.ensure_future(sim.cluster.delete_pod(NAMESPACE, agent.pod_name, agent.pod_uid, grace_s))

    return evict


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("how", ["evicted", "deleted", "told to end", "announced", "tainted"])
def test_a_worker_that_goes_away_reaches_a_checkpoint_first(how: str, slot: int) -> None:
    """Rank 0's worker too: its agent serves the others until the attempt has ended."""

    async def main() -> None:
        async with Simulation(seed=5) as sim:
            await started(sim, workers=3)
            leave(how, slot, 30)(sim)
            job = await sim.until_finished()
            assert job.status.holds("Complete"), job.status.to_json()
            taken = how in ("evicted", "announced", "tainted")
            cause = contract.REASON_PREEMPTED if taken else contract.REASON_POD_LOST
            assert [entry.end_cause for entry in job.status.history] == [cause, contract.REASON_COMPLETED]
            books = (job.status.failures.preemptions, job.status.failures.counted)
            assert books == ((1, 0) if taken else (0, 1))
            assert sim.world.training("digits").steps == list(range(1, LENGTH + 1))

    run_virtual(main())


def test_without_time_for_it_the_attempt_ends_at_once() -> None:
    async def main() -> None:
        async with Simulation(seed=5) as sim:
            await started(sim, workers=3)
            leave("evicted", 1, int(contract.DRAIN_RESERVE_S))(sim)
            await sim.until(lambda: sim.job("digits").status.attempt.number == 2, "the next attempt", within_s=30.0)
            assert sim.job("digits").status.failures.preemptions == 1

    run_virtual(main())


def test_a_loop_that_saves_nothing_in_time_ends_with_time_left_to_store() -> None:
    async def main() -> None:
        async with Simulation(seed=5) as sim:
            await started(sim, workers=2)
            training = sim.world.training("digits")
            training.every = 10**6
            began = sim.world.clock.now()
            leave("evicted", 1, 30)(sim)
            job = await sim.until_finished()
            ended_at = job.status.history[0].ended_at
            assert ended_at is not None and job.status.failures.preemptions == 1
            assert 15 <= (ended_at - began).total_seconds() <= 30 - contract.DRAIN_RESERVE_S + 1

    run_virtual(main())


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("down_s", [0.3, 5.0])
def test_an_operator_that_starts_anew_while_a_worker_goes_away_ends_nothing(down_s: float, slot: int) -> None:
    """Before its agents have spoken to it, it knows of none that it trains."""

    async def main() -> None:
        async with Simulation(seed=5) as sim:
            await started(sim, workers=3)
            training = sim.world.training("digits")
            training.length, training.every = 4 * LENGTH, 10**6
            leave("evicted", slot, 60)(sim)
            await sim.until(lambda: sim.job().status.boundary is not None, "it waits", every_s=0.01)
            await asyncio.sleep(1.0)
            sim.kill_operator()
            await asyncio.sleep(down_s)
            sim.start_operator()
            await asyncio.sleep(5.0)
            attempt = sim.job().status.attempt
            assert attempt is not None and (attempt.number, attempt.state) == (1, "Running")
            training.every = EVERY
            job = await sim.until_finished()
            assert [entry.end_cause for entry in job.status.history] == [
                contract.REASON_PREEMPTED,
                contract.REASON_COMPLETED,
            ]
            assert training.steps == list(range(1, training.length + 1))

    run_virtual(main())


@pytest.mark.parametrize("how", ["deleted", "suspended at once"])
def test_where_the_job_itself_ends_no_rank_waits_for_a_word(how: str) -> None:
    """Its pods are told to end while their ranks train; that it is over is the word."""

    async def main() -> None:
        async with Simulation(seed=5) as sim:
            await started(sim, workers=3, boundaryTimeoutSeconds=0)
            sim.world.training("digits").length = sim.world.training("digits").every = 10**6
            agents = list(sim.world.agents.values())
            assert len(agents) == 3
            began = sim.world.clock.monotonic()
            if how == "deleted":
                sim.cluster.remove_job(NAMESPACE, "digits")
            else:
                update(suspend=True)(sim)
            await sim.until(lambda: all(agent.quiet for agent in agents), "no rank runs", every_s=0.05)
            assert sim.world.clock.monotonic() - began < draining.ANSWER_S

    run_virtual(main())


@pytest.mark.parametrize("what", ["smaller", "restart", "suspend"])
def test_a_new_leader_hears_a_job_before_it_ends_its_attempt(what: str) -> None:
    """The one before died as the attempt began: status does not say that it trains, and it does for long."""
    change, cause = CHANGES[what]

    async def main() -> None:
        async with Simulation(seed=3, pace=Pace(report=0.5)) as sim:
            training = sim.world.training("digits")
            training.length, training.every = LENGTH, 10
            sim.cluster.create_job(manifest(workers=2, **STORED))
            await sim.until(lambda: sim.job().status.attempt is not None, "an attempt begins", every_s=0.001)
            sim.kill_operator()
            await sim.until(lambda: training.position >= 18, "steps", every_s=0.05)
            attempt = sim.job().status.attempt
            assert attempt is not None and attempt.running_at is None
            change(sim)
            sim.start_operator()
            if what == "suspend":
                await sim.until(lambda: not sim.world.agents, "no worker runs", within_s=60.0)
                update(suspend=False)(sim)
            _, ends = await ended(sim)
            assert ends == [cause, contract.REASON_COMPLETED]
            assert training.steps == list(range(1, LENGTH + 1))

    run_virtual(main())


@pytest.mark.parametrize("slots", [3, 4])
def test_what_removed_workers_have_of_the_last_checkpoint_is_waited_for(slots: int) -> None:
    """A new leader hears of the boundary before it has heard what they store."""

    async def main() -> None:
        for late in range(8):
            async with Simulation(seed=late, pace=Pace(report=0.5)) as sim:
                await started(sim, workers=slots)
                sim.kill_operator()
                update(workers=1)(sim)
                await asyncio.sleep(1.0 + 0.25 * late)
                sim.start_operator()
                _, ends = await ended(sim)
                assert ends == [contract.REASON_SCALED, contract.REASON_COMPLETED]
                assert sim.world.training("digits").steps == list(range(1, LENGTH + 1)), late

    run_virtual(main())
