"""The Secret with the coordinator's CA is lost: pods that trust the old one are found, told, and replaced."""

from __future__ import annotations

import asyncio
import json

import pytest

from support.core import make_job
from support.simulation import NAMESPACE, Simulation, manifest
from support.virtual_time import VirtualClock, run_virtual
from trainjob_api import contract
from trainjob_operator.agents.answers import Answer
from trainjob_operator.cluster import Rejected, Unavailable
from trainjob_operator.core.make import is_strange
from trainjob_operator.core.model import Installation, Observed, PodPhase, PodView
from trainjob_operator.loop.authority import REFUSED_REST_S, TOLD_AT_ONCE, Authority
from trainjob_operator.memory import Call, MemoryCluster, Moment

KUBELET_S = 75.0
"""From an annotation to the file in the pod."""


class TwoAuthorities(Simulation):
    """Agents speak only with an operator whose CA is that of their pod."""

    ca = "the first CA"
    audience: str | None = None
    """None: pods as earlier versions made them, whose agents hear of no other CA."""
    lost_at = 0.0

    def start_operator(self) -> None:
        super().start_operator()
        assert self.operator is not None
        self.operator.reconciler._installation = Installation(
            coordinator_url="http://coordinator", coordinator_ca=self.ca, token_audience=self.audience
        )

    async def post(self, body: bytes) -> Answer:
        report = json.loads(body)
        pod = self.world.pod(report["namespace"], report["pod"])
        env = {entry["name"]: entry.get("value") for entry in pod["spec"]["containers"][0]["env"]}
        told = pod["metadata"].get("annotations", {}).get(contract.ANNOTATION_AUTHORITY)
        heard = contract.ENV_COORDINATOR_CA_FILE in env and self.world.clock.monotonic() > self.lost_at + KUBELET_S
        if (told if heard else env[contract.ENV_COORDINATOR_CA]) != self.ca:
            raise ConnectionError("certificate verify failed")
        return await super().post(body)

    def lose_authority(self) -> None:
        self.kill_operator()
        self.ca, self.lost_at = "the second CA", self.world.clock.monotonic()
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


def test_running_agents_hear_of_the_new_one_and_no_pod_is_replaced() -> None:
    async def main() -> None:
        async with TwoAuthorities(seed=1) as sim:
            sim.kill_operator()
            sim.audience = contract.TOKEN_AUDIENCE
            sim.start_operator()
            await training(sim)
            before = {pod["metadata"]["uid"] for pod in sim.cluster.pods()}
            sim.lose_authority()
            await asyncio.sleep(KUBELET_S + 20.0)
            assert sim.operator is not None and sim.operator.coordinator.connected() == 2
            patches = [call for call in sim.writes if call.verb == "patch_pod"]
            assert [call.name for call in patches] == ["digits-0", "digits-1"], "once each"
            sim.world.fail_rank(sim.agent(1), exit_code=3)
            job = await sim.until_finished(within_s=900.0)
            assert {pod["metadata"]["uid"] for pod in sim.cluster.pods()} == before and sim.told() == []
            assert job.status.last_failure is not None and job.status.last_failure.exit_code == 3, "heard at once"

    run_virtual(main())


def with_annotations(sim: TwoAuthorities) -> None:
    """Pods whose agents can hear of another CA."""
    sim.kill_operator()
    sim.audience = contract.TOKEN_AUDIENCE
    sim.start_operator()


def patched(sim: Simulation) -> list[str]:
    return [call.name for call in sim.writes if call.verb == "patch_pod"]


def test_workers_that_may_not_be_told_are_told_of_and_replaced() -> None:
    async def main() -> None:
        async with TwoAuthorities(seed=1) as sim:
            with_annotations(sim)
            await training(sim)
            sim.obstacles["patch_pod"] = lambda: Rejected("403: pods is forbidden: cannot patch")
            sim.lose_authority()
            await asyncio.sleep(KUBELET_S + 20.0)
            (message,) = sim.told()
            assert "digits-0, digits-1" in message
            assert patched(sim) == ["digits-0", "digits-1"], "not again at every turn"
            assert sim.job().status.holds("Degraded")
            sim.cluster.annotate_job(NAMESPACE, "digits", {contract.ANNOTATION_RESTART: "2030-01-01T00:00:00Z"})
            await sim.until_training(attempt=2, within_s=120.0)
            assert sim.job().status.slots == "2-3"

    run_virtual(main())


def test_a_webhook_that_does_not_answer_keeps_no_job_from_its_turns(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with TwoAuthorities(seed=1) as sim:
            with_annotations(sim)
            await training(sim)
            sim.obstacles["patch_pod"] = lambda: Unavailable("500: failed calling webhook")
            sim.lose_authority()
            await asyncio.sleep(100.0)
            assert not [record.message for record in caplog.records if "turn failed" in record.message]
            assert 2 <= len(patched(sim)) <= 5, "tried again, and not at every turn"
            del sim.obstacles["patch_pod"]
            await asyncio.sleep(30.0 + KUBELET_S + 20.0)
            assert sim.operator is not None and sim.operator.coordinator.connected() == 2 and sim.told() == []

    run_virtual(main())


def test_of_many_that_may_not_be_told_each_is_tried_once() -> None:
    async def main() -> None:
        asked: list[str] = []

        async def refuse(call: Call, moment: Moment) -> None:
            asked.append(call.name)
            raise Rejected("403: pods is forbidden")

        cluster = MemoryCluster(VirtualClock())
        cluster.faults = refuse
        many = TOLD_AT_ONCE + 6
        pods = tuple(
            PodView(
                slot=slot,
                name=f"digits-{slot}",
                uid=f"uid-{slot}",
                phase=PodPhase.RUNNING,
                authority="another",
                authority_follows=True,
            )
            for slot in range(many)
        )
        observed, authority = Observed(job=make_job(workers=many), pods=pods), Authority()
        answers = [await authority.tell(cluster, observed, "our CA", float(turn)) for turn in range(3)]
        assert answers == [([], 0.0), ([], 0.0), ([], None)]
        assert asked == [pod.name for pod in pods]
        found = authority.with_strangers(observed.job.key, pods, "our CA")
        assert all(is_strange(pod.make) for pod in found)

    run_virtual(main())


def test_one_that_can_be_told_after_all_asks_for_a_turn() -> None:
    """Its job is said to trust another CA no longer; the watch's word of our own patch is no news."""

    async def main() -> None:
        async def refuse(call: Call, moment: Moment) -> None:
            raise Rejected("403: pods is forbidden")

        cluster = MemoryCluster(VirtualClock(), faults=refuse)
        pod = cluster.add_pod({"metadata": {"name": "digits-0", "namespace": "ml"}, "spec": {}})
        view = PodView(
            slot=0,
            name="digits-0",
            uid=pod["metadata"]["uid"],
            phase=PodPhase.RUNNING,
            authority="another",
            authority_follows=True,
        )
        observed, authority = Observed(job=make_job(workers=1), pods=(view,)), Authority()
        assert await authority.tell(cluster, observed, "our CA", 0.0) == ([], 0.0)
        cluster.faults = None
        told, again_s = await authority.tell(cluster, observed, "our CA", REFUSED_REST_S + 1.0)
        assert len(told) == 1 and again_s == 0.0

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
