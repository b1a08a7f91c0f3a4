"""A worker that falls silent: replaced when a second witness says so too, left alone otherwise."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from support.puppets import Pace
from support.simulation import NAMESPACE, Simulation, manifest
from support.virtual_time import run_virtual
from trainjob_api import contract
from trainjob_operator.cluster import Conflict
from trainjob_operator.memory import Moment

NOTICED_S = 45.0
"""Until the node controller calls a node NotReady."""
EVICTED_S = NOTICED_S + 30.0
"""Until Kubernetes itself would delete its pods."""


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")


async def trains(sim: Simulation, workers: int = 3) -> None:
    """Attempt 1, without reports that would have agents speak between polls; every worker on a node of its own."""
    sim.cluster.create_job(manifest(workers=workers))
    sim.world.training("digits").length = 10**6
    await sim.until_training()
    await asyncio.sleep(5.0)


def node_of(sim: Simulation, index: int) -> str:
    agent = sim.agent(index)
    return str(sim.world.pod(NAMESPACE, agent.pod_name)["spec"]["nodeName"])


def spread() -> Simulation:
    """Each worker has a node of its own."""
    sim = Simulation(seed=3, pace=Pace(report=10**6))
    numbers = iter(range(100))
    sim.world.some_node = lambda: _next_node(sim, numbers)  # type: ignore[method-assign]
    return sim


def _next_node(sim: Simulation, numbers: Iterator[int]) -> str:
    node = f"node-{next(numbers)}"
    sim.cluster.add_node(node)
    return node


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize(
    ("index", "peers_after_s", "within_s"),
    [(1, 15.0, 31.5), (0, 15.0, 31.5), (1, None, NOTICED_S + 1.0), (0, None, NOTICED_S + 1.0)],
)
def test_the_worker_of_a_lost_node_is_replaced_before_kubernetes_gives_it_up(
    index: int, peers_after_s: float | None, within_s: float
) -> None:
    async def main() -> None:
        async with spread() as sim:
            await trains(sim)
            before = {pod["metadata"]["name"] for pod in sim.cluster.pods()}
            node, lost = node_of(sim, index), sim.agent(index).pod_name
            at = now()
            sim.world.lose_node(node, noticed_after_s=NOTICED_S, peers_after_s=peers_after_s)
            await sim.until(
                lambda: any(pod["metadata"]["name"] == "digits-3" for pod in sim.cluster.pods()),
                "a replacement",
                within_s=EVICTED_S,
            )
            assert now() - at <= within_s
            await sim.until_training(2, within_s=10.0)
            left = sim.world.pod(NAMESPACE, lost)
            assert "deletionTimestamp" in left["metadata"], "deleted, not by force: it stays until its node is back"
            assert {pod["metadata"]["name"] for pod in sim.cluster.pods()} == before | {"digits-3"}
            status = sim.job().status
            assert (status.failures.counted, status.failures.preemptions) == (0, 1)
            failure = status.last_failure
            assert failure is not None
            assert (failure.reason, failure.pod, failure.node) == (contract.REASON_WORKER_UNREACHABLE, lost, node)
            witness = f"its node {node} is NotReady (NodeStatusUnknown)" if peers_after_s is None else "cannot reach it"
            assert (
                failure.message.startswith(f"the agent of {lost} has been silent for ") and witness in failure.message
            )
            # A node that Kubernetes still takes for good is kept away from.
            assert status.failures.avoid_nodes == ([] if peers_after_s is None else [node])

    run_virtual(main())


def test_a_single_worker_is_replaced_by_its_nodes_word_alone() -> None:
    async def main() -> None:
        async with spread() as sim:
            await trains(sim, workers=1)
            at = now()
            sim.world.lose_node(node_of(sim, 0), noticed_after_s=NOTICED_S)
            await sim.until_training(2, within_s=EVICTED_S)
            assert now() - at < NOTICED_S + 5.0

    run_virtual(main())


@pytest.mark.parametrize(("seed", "silent_together"), [(3, False), (4, True), (5, True), (6, False)])
def test_two_workers_of_one_node_are_one_incident(seed: int, silent_together: bool) -> None:
    """Also where the second one's last word came so late that its silence is told a moment after the first one's."""

    async def main() -> None:
        async with Simulation(seed=seed, pace=Pace(report=10**6)) as sim:
            sim.world.some_node = lambda: _shared_node(sim)  # type: ignore[method-assign]
            await trains(sim, workers=3)
            lost = sim.world.lose_node("node-0")
            assert len(lost) == 2
            await sim.until_training(2, within_s=EVICTED_S)
            status = sim.job().status
            assert (status.failures.counted, status.failures.preemptions, status.next_slot) == (0, 1, 5)
            assert status.last_failure is not None
            assert status.last_failure.message.endswith("; 1 more lost with it") == silent_together

    run_virtual(main())


def _shared_node(sim: Simulation) -> str:
    """The first two pods share a node."""
    node = "node-0" if sum(1 for pod in sim.cluster.pods() if pod["spec"].get("nodeName")) < 2 else "node-1"
    with contextlib.suppress(Conflict):
        sim.cluster.add_node(node)
    return node


def test_what_wakes_up_on_a_lost_node_joins_nothing() -> None:
    """The machine was only cut off: its worker comes back after its successor trains."""

    async def main() -> None:
        async with spread() as sim:
            await trains(sim)
            zombie = sim.agent(1)
            node = node_of(sim, 1)
            sim.world.mute(zombie)
            sim.world.lost_nodes.add(node)
            sim.world.evictions += 1
            sim.world.spawn(sim.world.notice_lost_node(node, NOTICED_S))
            await sim.until_training(2, within_s=EVICTED_S)
            assert zombie.alive and zombie.attempt == 1
            zombie.muted = False
            await sim.until(lambda: not zombie.alive, "it is told to leave", within_s=30.0)
            assert zombie.attempt == 1
            assert [attempt for _, attempt, _, uid in sim.world.starts if uid == zombie.pod_uid] == [1]

    run_virtual(main())


def test_silence_without_a_witness_is_left_alone_and_costs_few_looks() -> None:
    async def main() -> None:
        async with spread() as sim:
            await trains(sim)
            sim.world.mute(sim.agent(1))
            await asyncio.sleep(60.0)
            sim.calls.clear()
            await asyncio.sleep(3600.0)
            assert sim.writes == []
            attempt = sim.job().status.attempt
            assert attempt is not None and (attempt.number, attempt.state) == (1, "Running")
            looks = sum(call.verb == "get_node" for call, moment in sim.calls if moment is Moment.BEFORE)
            assert 55 <= looks <= 120, "its node is looked at about once a minute"

    run_virtual(main())


def test_all_silent_while_pods_run_is_told_and_nothing_else() -> None:
    """One of the nodes is even NotReady: where nobody is heard, that may be the same broken way."""

    async def main() -> None:
        async with spread() as sim:
            await trains(sim)
            for index in range(3):
                sim.world.mute(sim.agent(index))
            sim.cluster.set_node_ready(node_of(sim, 2), "Unknown", "NodeStatusUnknown")
            await asyncio.sleep(600.0)
            said = sim.job().status.condition("Degraded")
            assert said is not None and (said.status, said.reason) == ("True", contract.REASON_UNREACHABLE)
            attempt = sim.job().status.attempt
            assert attempt is not None and (attempt.number, attempt.state) == (1, "Running")
            assert len(sim.cluster.pods()) == 3

    run_virtual(main())


def test_a_new_leader_gives_all_agents_their_time() -> None:
    async def main() -> None:
        async with spread() as sim:
            await trains(sim)
            quiet = sim.agent(1)
            sim.cluster.set_node_ready(node_of(sim, 1), "Unknown", "NodeStatusUnknown")
            sim.world.mute(quiet)
            sim.kill_operator()
            await asyncio.sleep(120.0)
            sim.start_operator()
            await asyncio.sleep(25.0)
            quiet.muted = False
            await asyncio.sleep(120.0)
            attempt = sim.job().status.attempt
            assert attempt is not None and (attempt.number, attempt.state) == (1, "Running")
            assert sim.job().status.failures.preemptions == 0

    run_virtual(main())


@pytest.mark.parametrize(("away_s", "found_after_s"), [(30.0, 30.0), (60.0, EVICTED_S - 60.0), (90.0, 0.0)])
def test_a_node_lost_while_nobody_led_is_found_by_the_next_leader(away_s: float, found_after_s: float) -> None:
    """By the silence that the new leader hears itself, or by the eviction, whichever comes first."""

    async def main() -> None:
        async with spread() as sim:
            await trains(sim)
            sim.kill_operator()
            sim.world.lose_node(node_of(sim, 1), noticed_after_s=NOTICED_S, peers_after_s=None)
            await asyncio.sleep(away_s)
            sim.start_operator()
            at = now()
            await sim.until_training(2, within_s=60.0)
            assert found_after_s <= now() - at < found_after_s + 6.0
            assert sim.job().status.failures.preemptions == 1

    run_virtual(main())


def test_a_worker_lost_before_the_attempt_begins_is_replaced_too() -> None:
    async def main() -> None:
        async with spread() as sim:
            sim.world.pace.start = (0.2, 0.3)
            sim.world.training("digits").length = 10**6
            waits = asyncio.Event()
            bring_up = sim.world.bring_up

            async def late_third(pod: dict[str, object]) -> None:
                if pod["metadata"]["name"] == "digits-2":  # type: ignore[index]
                    await waits.wait()
                await bring_up(pod)

            sim.world.bring_up = late_third  # type: ignore[method-assign]
            sim.cluster.create_job(manifest(workers=3))
            await sim.until(lambda: len(sim.world.agents) == 2, "two of three are up")
            await asyncio.sleep(5.0)
            node = next(pod["spec"]["nodeName"] for pod in sim.cluster.pods() if pod["metadata"]["name"] == "digits-1")
            sim.world.lose_node(node)
            sim.world.evictions = 0
            await sim.until(lambda: sim.job().status.slots == "0,2-3", "the lost one is given up", within_s=EVICTED_S)
            waits.set()
            await sim.until_training(1, within_s=30.0)
            status = sim.job().status
            assert (status.failures.counted, status.failures.preemptions) == (0, 0), "nothing ran, nothing is charged"
            assert any(
                event["reason"] == contract.REASON_WORKER_UNREACHABLE and "digits-1" in event["message"]
                for event in sim.cluster.events()
            )

    run_virtual(main())


def test_an_agent_whose_peers_lost_it_is_asked_at_once() -> None:
    """A broken connection between two agents ends nothing by itself, and whoever was lost speaks long before its
    poll is over.
    """

    async def main() -> None:
        async with spread() as sim:
            await trains(sim)
            assert sim.operator is not None
            views = sim.operator.coordinator.views
            leader, member = sim.agent(0), sim.agent(1)
            before = views((NAMESPACE, "digits"))[member.pod_uid].heard_at
            leader.lost_peers.add(1)
            leader.speak()
            await asyncio.sleep(0.5)
            assert views((NAMESPACE, "digits"))[member.pod_uid].heard_at > before

    run_virtual(main())
