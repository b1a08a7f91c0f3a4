"""Creates that the API server refuses or does not take: bounded calls, stable words, nothing else waits for them."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from datetime import timedelta

import pytest

from support.clusters import NAMESPACE, manifest
from support.core import T0, make_job
from support.simulation import FlakyCluster, Simulation
from support.virtual_time import EPOCH, run_virtual
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJobStatus
from trainjob_operator.cluster import ClusterError, Conflict, Manifest, Rejected, Unavailable
from trainjob_operator.core.model import CreatePod, Decision, Observed
from trainjob_operator.core.moments import aware
from trainjob_operator.loop.creates import Creates
from trainjob_operator.memory import Call, MemoryCluster, Moment


def counts(sim: Simulation) -> Counter[str]:
    return Counter(call.verb for call, moment in sim.calls if moment is Moment.BEFORE)


class Quota:
    """So many pods and no more; each answer takes another time."""

    def __init__(self, sim: Simulation, pods: int, words: str = "exceeded quota: team") -> None:
        self.sim, self.pods, self.words = sim, pods, words
        self.rng = random.Random(7)
        sim.on_call = self

    async def __call__(self, call: Call, moment: Moment) -> None:
        if call.verb == "create_pod" and moment is Moment.BEFORE:
            await asyncio.sleep(self.rng.uniform(0.0, 0.05))
            if len(self.sim.cluster.pods()) >= self.pods:
                raise Rejected(f'pods "{call.name}" is forbidden: {self.words.format(self.rng.random())}')


@pytest.mark.parametrize("words", ["exceeded quota: team", "request {} is denied"], ids=["the same", "new each time"])
def test_over_quota_a_job_at_rest_asks_rarely(words: str) -> None:
    async def main() -> None:
        async with Simulation() as sim:
            Quota(sim, 32, words)
            sim.cluster.create_job(manifest(workers=64))
            await asyncio.sleep(300.0)
            sim.calls.clear()
            await asyncio.sleep(600.0)
            seen = counts(sim)
            assert seen["create_pod"] <= 11 * 32 and seen["get_pod"] == 0, seen
            assert seen["get_job"] <= 80, seen
            if words == "exceeded quota: team":
                assert seen["patch_job_status"] == seen["create_event"] == 0

    run_virtual(main())


def test_over_quota_the_events_of_the_pods_that_run_ask_for_no_more_creates() -> None:
    async def main() -> None:
        async with Simulation() as sim:
            Quota(sim, 32)
            sim.cluster.create_job(manifest(workers=64))
            await asyncio.sleep(60.0)
            seen = counts(sim)
            assert seen["create_pod"] <= 64 + 5 * 32 and seen["get_pod"] <= 64, seen

    run_virtual(main())


def test_room_in_a_quota_that_a_pod_of_its_own_leaves_is_used_at_once() -> None:
    async def main() -> None:
        async with Simulation() as sim:
            Quota(sim, 2)
            sim.cluster.create_job(manifest(workers=3))
            await asyncio.sleep(300.0)
            sim.cluster.remove_pod(NAMESPACE, "digits-0", grace_s=0)
            await asyncio.sleep(1.0)
            assert len(sim.cluster.pods()) == 2

    run_virtual(main())


@pytest.mark.parametrize(
    "error", [Unavailable("failed calling webhook: 500"), Unavailable("429: slow down", retry_after_s=90.0)]
)
def test_creates_that_get_no_answer_are_told_and_starve_nothing(error: ClusterError) -> None:
    async def main() -> None:
        async with Simulation() as sim:
            sim.world.pace.report = 10_000.0
            sim.cluster.create_job(manifest())
            await sim.until_training()

            async def broken(call: Call, moment: Moment) -> None:
                if call.verb == "create_pod" and moment is Moment.BEFORE:
                    raise error

            sim.on_call = broken
            sim.cluster.update_job_spec(NAMESPACE, "digits", {"suspend": True})
            await asyncio.sleep(120.0)
            assert sim.cluster.pods() == []
            sim.cluster.update_job_spec(NAMESPACE, "digits", {"suspend": False})
            sim.calls.clear()
            await asyncio.sleep(600.0)
            said = sim.job().status.condition("ResourcesCreated")
            assert said is not None and (said.reason, said.message) == (contract.REASON_CREATE_FAILING, str(error))
            seen = counts(sim)
            assert seen["create_pod"] <= (2 * 8 if "429" in str(error) else 2 * 26), seen
            assert seen["patch_job_status"] <= 4, seen
            sim.on_call = None
            await sim.until_training(2, within_s=120.0)
            await sim.until(
                lambda: sim.job().status.condition("ResourcesCreated").reason == contract.REASON_CREATED,  # type: ignore[union-attr]
                "the condition is over",
                60.0,
            )

    run_virtual(main())


class LateCreate(FlakyCluster):
    """The first create of one pod is given up by its sender, and takes effect seconds later."""

    late: str | None = None
    landed_at = math.inf

    async def create_pod(self, namespace: str, pod: Manifest, *, strict: bool = False) -> Manifest:
        if pod["metadata"]["name"] == self.late:
            self.late = None
            self.late_pods.add(pod["metadata"]["name"])

            async def arrive() -> None:
                await asyncio.sleep(3.0)
                self.landed_at = asyncio.get_running_loop().time()
                await MemoryCluster.create_pod(self, namespace, pod)

            self.task = asyncio.ensure_future(arrive())
            raise Unavailable("time-out; the request is still on its way")
        return await super().create_pod(namespace, pod, strict=strict)


@pytest.mark.parametrize("restarted", [False, True], ids=["the same operator", "another one"])
def test_no_group_without_agents_begins_beside_a_pod_that_comes_too_late(restarted: bool) -> None:
    async def main() -> None:
        async with Simulation(cluster_type=LateCreate) as sim:
            sim.cluster.late = "digits-0"
            sim.world.add_foreign_pod(NAMESPACE, "digits-1", {})
            sim.cluster.create_job(manifest(workers=2, runtime={"agent": "Disabled"}))
            await sim.until(lambda: sim.cluster.late is None, "the create was sent", every_s=0.01)
            if restarted:
                sim.kill_operator()
                sim.start_operator()
            job = await sim.until_finished()
            attempt = job.status.attempt
            assert job.status.holds("Complete") and attempt is not None and attempt.number == 2
            assert (aware(attempt.started_at) - EPOCH).total_seconds() > sim.cluster.landed_at

    run_virtual(main())


def test_a_turn_that_is_given_up_leaves_its_creates_unanswered() -> None:
    creates = Creates()
    decision = Decision(status=TrainJobStatus(), actions=(CreatePod(0),))
    with pytest.raises(TimeoutError), creates.sending(decision, lambda: 100.0):
        raise TimeoutError
    look = Observed(job=make_job(), pods=(), service=None)
    assert creates.seen(look, 130.0, T0).creates_land_until == T0 + timedelta(seconds=30)
    assert creates.seen(look, 160.0, T0).creates_land_until is None


def test_a_write_that_was_refused_leaves_no_create_unanswered() -> None:
    creates = Creates()
    decision = Decision(status=TrainJobStatus(), actions=(CreatePod(0),))
    with pytest.raises(Conflict), creates.sending(decision, lambda: 100.0):
        raise Conflict("somebody wrote first")
    look = Observed(job=make_job(), pods=(), service=None)
    assert creates.seen(look, 100.0, T0).creates_land_until is None


def test_a_pod_that_comes_while_a_read_is_under_way_is_not_lost() -> None:
    """That there is no such pod is slow to arrive, and older than the pod, of which the watch has told meanwhile."""

    async def main() -> None:
        async with Simulation(cluster_type=LateCreate) as sim:
            sim.cluster.late = "digits-1"

            async def slow(call: Call, moment: Moment) -> None:
                if call.verb == "get_pod" and moment is Moment.AFTER:
                    await asyncio.sleep(5.0)

            sim.on_call = slow
            sim.cluster.create_job(manifest(workers=2, runtime={"agent": "Disabled"}))
            job = await sim.until_finished()
            assert job.status.holds("Complete") and job.status.attempt is not None and job.status.attempt.number == 1
            assert job.status.failures.counted == 0

    run_virtual(main())
