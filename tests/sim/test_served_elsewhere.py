"""A namespace that another installation serves: its jobs are left alone, and their agents too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.puppets import Pace
from support.simulation import NAMESPACE, Operator, Simulation, manifest
from support.virtual_time import run_virtual
from trainjob_api import contract
from trainjob_operator.memory import Moment


class Claims:
    """As the test says."""

    why: str | None = None

    def holds(self, namespace: str) -> bool:
        return self.why is None

    async def served_by(self, namespace: str) -> str | None:
        return self.why


class Served(Simulation):
    def __init__(self, **named: Any) -> None:
        self.claims = Claims()
        super().__init__(**named)

    def start_operator(self) -> None:
        super().start_operator()
        assert self.operator is not None
        self.operator.reconciler._claims = self.claims


def test_one_that_lost_the_namespace_stops_nothing_and_says_so() -> None:
    async def main() -> None:
        async with Served(seed=1, pace=Pace(report=1.0)) as sim:
            sim.cluster.create_job(manifest())
            sim.world.training("digits").length = 10**6
            await sim.until_training()
            await asyncio.sleep(20.0)
            sim.claims.why = "namespace team is served by ops"
            sim.world.fail_rank(sim.agent(1))
            await asyncio.sleep(5.0)
            sim.calls.clear()
            await asyncio.sleep(600.0)
            assert {call.verb for call, moment in sim.calls if moment is Moment.BEFORE} <= {"get_job"}
            told = [event["message"] for event in sim.cluster.events() if event["reason"] == "ServedElsewhere"]
            assert told == ["namespace team is served by ops"]
            assert all(agent.alive for agent in sim.world.agents.values()), "nobody was told to end"
            assert sim.job().status.attempt.number == 1  # type: ignore[union-attr]
            sim.claims.why = None
            await sim.until_training(attempt=2)

    run_virtual(main())


def test_ranks_of_the_other_installation_run_on() -> None:
    async def main() -> None:
        async with Served(seed=1, pace=Pace(report=1.0)) as sim:
            sim.cluster.create_job(manifest())
            sim.world.training("digits").length = 10**6
            await sim.until_training()
            sim.claims.why = "namespace team is served by ops"
            sim.kill_operator()
            sim.start_operator()
            await asyncio.sleep(300.0)
            assert sim.agent(0).ranks[0]["state"] == contract.RANK_RUNNING
            assert isinstance(sim.operator, Operator)

    run_virtual(main())


@pytest.mark.parametrize("heard", [True, False], ids=["watched", "in a gap"])
def test_a_job_of_the_other_installation_that_is_deleted_is_forgotten(heard: bool) -> None:
    async def main() -> None:
        async with Served(seed=1, pace=Pace(report=1.0)) as sim:
            sim.claims.why = "namespace team is served by ops"
            sim.cluster.create_job(manifest())
            await asyncio.sleep(100.0)
            assert sim.operator is not None
            reconciler = sim.operator.reconciler
            assert reconciler.namespaces() == {NAMESPACE} and reconciler.waiting() == 1
            if not heard:
                reconciler._remembered.known.begin()
            sim.cluster.remove_job(NAMESPACE, "digits")
            await asyncio.sleep(60.0)
            assert reconciler.namespaces() == set() and reconciler.waiting() == 0

    run_virtual(main())


def test_a_job_of_the_other_installation_that_nobody_can_read_is_left_to_it() -> None:
    async def main() -> None:
        async with Served(seed=1) as sim:
            sim.claims.why = "namespace team is served by ops"
            sim.cluster.create_job(manifest(workers="many"))
            await asyncio.sleep(100.0)
            assert sim.writes == []
            assert sim.operator is not None and sim.operator.reconciler.waiting() == 1, "it may be ours one day"

    run_virtual(main())


@pytest.mark.parametrize("workers", [1, "many"], ids=["readable", "unreadable"])
def test_a_job_of_the_other_installation_is_read_once_whatever_has_failed(workers: Any) -> None:
    async def main() -> None:
        async with Served(seed=1, pace=Pace(report=1.0)) as sim:
            sim.claims.why = "namespace team is served by ops"
            sim.cluster.create_job(manifest(workers=workers))
            await asyncio.sleep(100.0)
            assert sim.operator is not None
            reconciler, key = sim.operator.reconciler, (NAMESPACE, "digits")
            reconciler._remembered.known.doubt(key)  # as a turn that failed leaves it
            sim.calls.clear()
            await asyncio.sleep(600.0)
            assert [call.verb for call, moment in sim.calls if moment is Moment.BEFORE] == ["get_job"]
            sim.cluster.remove_job(NAMESPACE, "digits")
            await asyncio.sleep(1.0)
            assert reconciler.namespaces() == set() and reconciler.waiting() == 0

    run_virtual(main())


def test_a_finished_job_of_the_other_installation_is_kept_small() -> None:
    async def main() -> None:
        async with Served(seed=1, pace=Pace(report=1.0)) as sim:
            sim.cluster.create_job(manifest())
            await sim.until(lambda: sim.job().status.finished, "it is finished")
            sim.claims.why = "namespace team is served by ops"
            sim.kill_operator()
            sim.start_operator()
            await asyncio.sleep(100.0)
            assert sim.operator is not None
            known = sim.operator.reconciler._remembered.known
            assert known._entries[(NAMESPACE, "digits")].job is None

    run_virtual(main())


def test_what_its_jobs_lacked_is_forgotten() -> None:
    """When the namespace comes back nobody makes room for a job as it stood before."""

    async def main() -> None:
        async with Served(seed=1, pace=Pace(report=1.0)) as sim:
            sim.world.capacity = 4
            elastic = {"minWorkers": 2, "maxWorkers": 4, "growAfterSeconds": 0}
            sim.cluster.create_job(manifest("trains", workers=4, elastic=elastic))
            sim.world.training("trains").length = 10**6
            await sim.until_training(name="trains")
            sim.cluster.create_job(manifest("waits", workers=2))
            hood = sim.operator.reconciler._remembered.neighbourhood  # type: ignore[union-attr]
            key = NAMESPACE, "trains"
            await sim.until(lambda: len(hood.of(key)) == 1, "the other one is known", every_s=0.01)
            sim.claims.why = "namespace team is served by ops"
            await asyncio.sleep(120.0)
            assert not hood.of(key) and not hood.of((NAMESPACE, "waits"))

    run_virtual(main())
