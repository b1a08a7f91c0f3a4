"""A node on which two jobs suffered is kept away from by the pods of a third; a new operator knows it without a write."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from support.simulation import NAMESPACE, Simulation, manifest
from support.virtual_time import VirtualClock, run_virtual
from trainjob_api import contract
from trainjob_api.v1alpha1 import Failure


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")


async def suffered(sim: Simulation, name: str, node: str, ago_s: float) -> None:
    """A job that is suspended, and broke there."""
    failure = Failure(
        attempt=1,
        time=VirtualClock().now() - timedelta(seconds=ago_s),
        reason=contract.REASON_WORKER_UNREACHABLE,
        node=node,
    )
    made = sim.cluster.create_job(manifest(name, suspend=True))
    version = made["metadata"]["resourceVersion"]
    await sim.cluster.patch_job_status(NAMESPACE, name, version, {"lastFailure": failure.to_json()})


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
