"""The Secret with the coordinator's CA is lost: pods that trust the old one are found, told, and replaced."""

from __future__ import annotations

import asyncio
import json

import pytest

from support.simulation import NAMESPACE, Simulation, manifest
from support.virtual_time import run_virtual
from trainjob_api import contract
from trainjob_operator.agents.endpoint import Answer
from trainjob_operator.core.model import Installation


class TwoAuthorities(Simulation):
    """Agents speak only with an operator whose CA is that of their pod."""

    ca = "the first CA"

    def start_operator(self) -> None:
        super().start_operator()
        assert self.operator is not None
        self.operator.reconciler._installation = Installation(
            coordinator_url="http://coordinator", coordinator_ca=self.ca
        )

    async def post(self, body: bytes) -> Answer:
        report = json.loads(body)
        pod = self.world.pod(report["namespace"], report["pod"])
        env = {entry["name"]: entry.get("value") for entry in pod["spec"]["containers"][0]["env"]}
        if env[contract.ENV_COORDINATOR_CA] != self.ca:
            raise ConnectionError("certificate verify failed")
        return await super().post(body)

    def lose_authority(self) -> None:
        self.kill_operator()
        self.ca = "the second CA"
        self.start_operator()

    def told(self) -> list[str]:
        return [event["message"] for event in self.cluster.events() if event["reason"] == "AuthorityLost"]


async def training(sim: Simulation) -> None:
    sim.cluster.create_job(manifest())
    sim.world.training("digits").length = 400
    await sim.until_training()
    await asyncio.sleep(20.0)


def test_what_trains_goes_on_and_its_job_tells_what_to_do() -> None:
    async def main() -> None:
        async with TwoAuthorities(seed=1) as sim:
            await training(sim)
            before = {pod["metadata"]["uid"] for pod in sim.cluster.pods()}
            sim.lose_authority()
            await asyncio.sleep(120.0)
            (message,) = sim.told()
            assert "digits-0 and digits-1" in message or "digits-0, digits-1" in message
            assert "tj restart digits -n team" in message
            assert {pod["metadata"]["uid"] for pod in sim.cluster.pods()} == before
            assert sim.agent(0).ranks[0]["state"] == contract.RANK_RUNNING
            degraded = sim.job().status.condition("Degraded")
            assert degraded is not None and (degraded.status, degraded.reason) == ("True", "AuthorityLost")
            assert "digits-0, digits-1 trust another CA" in degraded.message
            assert "tj restart digits -n team" in degraded.message

    run_virtual(main())


def test_the_advice_helps() -> None:
    async def main() -> None:
        async with TwoAuthorities(seed=1) as sim:
            await training(sim)
            sim.lose_authority()
            await asyncio.sleep(20.0)
            sim.cluster.annotate_job(NAMESPACE, "digits", {contract.ANNOTATION_RESTART: "2030-01-01T00:00:00Z"})
            await sim.until_training(attempt=2, within_s=120.0)
            trusted = {
                entry["value"]
                for agent in (sim.agent(0), sim.agent(1))
                for entry in agent.pod["spec"]["containers"][0]["env"]
                if entry["name"] == contract.ENV_COORDINATOR_CA
            }
            assert trusted == {"the second CA"}
            await sim.until(lambda: not sim.job().status.holds("Degraded"), "healthy again", within_s=120.0)
            await sim.until_finished(within_s=900.0)
            assert sim.job().status.failures.counted == 0

    run_virtual(main())


@pytest.mark.parametrize("fault", ["rank", "pod"])
def test_after_a_failure_all_pods_have_the_new_authority(fault: str) -> None:
    async def main() -> None:
        async with TwoAuthorities(seed=1) as sim:
            await training(sim)
            sim.lose_authority()
            await asyncio.sleep(20.0)
            if fault == "rank":
                sim.world.fail_rank(sim.agent(1))
            else:
                sim.world.lose_pod(sim.agent(1))
            await sim.until_training(attempt=2, within_s=1800.0)
            job = await sim.until_finished(within_s=1800.0)
            assert job.status.holds("Complete") and len(sim.told()) == 1

    run_virtual(main())
