"""A node on which two jobs suffered is kept away from by the pods of a third; a new operator knows it without a write."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from support.simulation import NAMESPACE, Simulation, manifest
from support.virtual_time import VirtualClock, run_virtual
from trainjob_api import contract
from trainjob_api.v1alpha1 import Failure, SuspectNode


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")


async def suffered(
    sim: Simulation, name: str, node: str, ago_s: float, namespace: str = NAMESPACE, **status: Any
) -> None:
    """A job that is suspended, and broke there."""
    failure = Failure(
        attempt=1,
        time=VirtualClock().now() - timedelta(seconds=ago_s),
        reason=contract.REASON_WORKER_UNREACHABLE,
        node=node,
    )
    document = manifest(name, suspend=True)
    document["metadata"]["namespace"] = namespace
    made = sim.cluster.create_job(document)
    version = made["metadata"]["resourceVersion"]
    await sim.cluster.patch_job_status(namespace, name, version, {"lastFailure": failure.to_json(), **status})


async def avoided(sim: Simulation, name: str = "digits", **spec: Any) -> Sequence[str]:
    """Which of the nodes `bad` and `fine` the pods of a new job keep away from."""
    sim.cluster.create_job(manifest(name, **spec))
    await sim.until(lambda: sim.job(name).status.phase == "Running", f"{name} trains")
    return avoided_by(sim, name)


def avoided_by(sim: Simulation, name: str) -> Sequence[str]:
    pods = [pod for pod in sim.cluster.pods(NAMESPACE) if pod["metadata"]["labels"][contract.LABEL_JOB] == name]
    texts = [json.dumps(pod["spec"].get("affinity") or {}) for pod in pods]
    assert texts and len(set(texts)) == 1, texts
    return [node for node in ("bad", "fine") if f'"{node}"' in texts[0]]


@pytest.mark.parametrize(("ago_s", "avoided"), [(60.0, True), (4000.0, False)])
def test_a_third_job_keeps_away_from_it_after_an_operator_restart_too(ago_s: float, avoided: bool) -> None:
    async def main() -> None:
        async with Simulation(seed=1) as sim:
            sim.kill_operator()
            await suffered(sim, "one", "bad", ago_s)
            await suffered(sim, "two", "bad", ago_s)
            await suffered(sim, "three", "fine", ago_s)
            sim.start_operator()
            await sim.until(lambda: sim.job("three").status.phase == "Suspended", "looked at")
            written = len(sim.writes)
            sim.cluster.create_job(manifest())
            await sim.until_training(1)
            pods = [
                pod for pod in sim.cluster.pods(NAMESPACE) if pod["metadata"]["labels"][contract.LABEL_JOB] == "digits"
            ]
            assert len(pods) == 2
            for pod in pods:
                affinity = json.dumps(pod["spec"].get("affinity") or {})
                assert ('"bad"' in affinity) == avoided and '"fine"' not in affinity
                assert "requiredDuringScheduling" not in affinity, "a suspicion leaves no job without a place"
            told = [event for event in sim.cluster.events(NAMESPACE) if event["reason"] == contract.REASON_BAD_NODE]
            assert len(told) == avoided and all("one (WorkerUnreachable), two" in event["message"] for event in told)
            assert all(call.name not in ("one", "two") for call in sim.writes[written:])

    run_virtual(main())


def test_what_a_job_said_of_a_node_outlives_a_later_failure_and_an_operator_restart() -> None:
    """Its last failure was elsewhere, and the script's own."""

    async def main() -> None:
        async with Simulation(seed=1) as sim:
            sim.kill_operator()
            then = VirtualClock().now() - timedelta(seconds=600)
            said = [SuspectNode(node="bad", time=then, reason="PodLost").to_json()]
            await suffered(sim, "one", "bad", 600.0)
            await suffered(sim, "two", "fine", 60.0, suspects=said)
            sim.start_operator()
            await sim.until(lambda: sim.job("two").status.phase == "Suspended", "looked at")
            assert await avoided(sim) == ["bad"]

    run_virtual(main())


@pytest.mark.parametrize("restarted", [False, True])
def test_a_node_that_is_made_anew_under_the_same_name_starts_afresh(restarted: bool) -> None:
    async def main() -> None:
        async with Simulation(seed=1) as sim:
            sim.kill_operator()
            sim.cluster.add_node("bad")
            await asyncio.sleep(10.0)
            for name in ("one", "two"):
                await suffered(sim, name, "bad", 5.0)
            sim.start_operator()
            await sim.until(lambda: sim.job("two").status.phase == "Suspended", "looked at")
            assert await avoided(sim, "before") == ["bad"]
            sim.cluster.remove_node("bad")
            await asyncio.sleep(60.0)
            assert await avoided(sim, "while") == ["bad"], "the same may come back"
            sim.cluster.add_node("bad")
            if restarted:
                sim.kill_operator()
                sim.start_operator()
            await asyncio.sleep(5.0)
            assert await avoided(sim, "after") == []

    run_virtual(main())


def test_jobs_of_two_namespaces_prove_nothing_together() -> None:
    async def main() -> None:
        async with Simulation(seed=1) as sim:
            sim.kill_operator()
            await suffered(sim, "one", "bad", 60.0)
            await suffered(sim, "two", "bad", 60.0, namespace="other")
            sim.start_operator()
            await sim.until(lambda: sim.job("one").status.phase == "Suspended", "looked at")
            assert await avoided(sim) == []

    run_virtual(main())


def test_an_operator_whose_clock_was_a_day_ahead_has_a_node_kept_away_from_for_an_hour() -> None:
    async def main() -> None:
        async with Simulation(seed=1) as sim:
            sim.kill_operator()
            for name in ("one", "two"):
                await suffered(sim, name, "bad", -86_400.0)
            sim.start_operator()
            await sim.until(lambda: sim.job("two").status.phase == "Suspended", "looked at")
            assert await avoided(sim, "before") == ["bad"]
            await asyncio.sleep(3700.0)
            assert await avoided(sim, "after") == []

    run_virtual(main())


def test_an_elastic_job_grows_away_from_a_node_that_has_become_bad() -> None:
    async def main() -> None:
        async with Simulation(seed=1) as sim:
            elastic = {"minWorkers": 2, "maxWorkers": 3, "shrinkAfterSeconds": 0, "growAfterSeconds": 0}
            training = sim.world.training("digits")
            training.length, training.every = 10**6, 2
            assert await avoided(sim, elastic=elastic, checkpoint={"storage": "/checkpoints"}) == []
            for name in ("one", "two"):
                await suffered(sim, name, "bad", 1.0)
            await asyncio.sleep(5.0)
            sim.cluster.update_job_spec(NAMESPACE, "digits", {"workers": 3})
            await sim.until(lambda: sim.job().status.attempt.workers == 3, "it has grown", within_s=1200.0)
            third = sim.cluster.pods(NAMESPACE)[-1]
            assert third["metadata"]["name"] == "digits-2"
            assert '"bad"' in json.dumps(third["spec"].get("affinity") or {})

    run_virtual(main())


def test_one_job_that_breaks_there_again_and_again_proves_nothing_to_others() -> None:
    async def main() -> None:
        async with Simulation(seed=1) as sim:
            sim.cluster.add_node("bad")
            sim.cluster.create_job(manifest("often", failurePolicy={"maxFailures": -1}))
            sim.world.training("often").length = 10**6
            for attempt in (1, 2, 3):
                await sim.until_training(attempt, "often")
                await asyncio.sleep(30.0)
                sim.cluster.bind_pod(NAMESPACE, sim.agent(1, "often").pod_name, "bad")
                sim.world.lose_pod(sim.agent(1, "often"))
            await sim.until_training(4, "often")
            assert [suspect.node for suspect in sim.job("often").status.suspects] in (["bad"], [])
            assert await avoided(sim) == []

    run_virtual(main())
