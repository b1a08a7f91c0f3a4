"""The loop: turns follow events and deadlines, failures rest and are tried again, nothing ends a worker."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Any

import pytest

from support.clusters import NAMESPACE, Recorder, manifest
from support.simulation import Simulation
from support.virtual_time import VirtualClock, run_virtual
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.cluster import Conflict, Unavailable
from trainjob_operator.core.model import Installation
from trainjob_operator.loop import creates, look
from trainjob_operator.loop import reconciler as module
from trainjob_operator.loop.means import Hears, Means
from trainjob_operator.loop.reconciler import Reconciler
from trainjob_operator.memory import Call, MemoryCluster, Moment


def test_a_new_job_gets_its_pods() -> None:
    async def main() -> None:
        async with Simulation() as sim:
            sim.cluster.create_job(manifest(workers=3))
            await asyncio.sleep(0.01)
            assert [pod["metadata"]["name"] for pod in sim.cluster.pods()] == ["digits-0", "digits-1", "digits-2"]
            assert sim.job().status.slots == "0-2"

    run_virtual(main())


def test_jobs_that_were_there_before_get_a_turn_too() -> None:
    async def main() -> None:
        async with Simulation() as sim:
            sim.kill_operator()
            sim.cluster.create_job(manifest())
            sim.start_operator()
            await sim.until_finished()

    run_virtual(main())


def test_one_jobs_trouble_is_not_anothers() -> None:
    async def main() -> None:
        async with Simulation() as sim:

            async def first_is_refused(call: Call, moment: Moment) -> None:
                if call.name == "first":
                    raise Unavailable("503")

            sim.on_call = first_is_refused
            sim.cluster.create_job(manifest("first"))
            sim.cluster.create_job(manifest("second"))
            await sim.until_finished("second", within_s=60.0)
            tries = [
                at for at, (call, moment) in enumerate(sim.calls) if call.name == "first" and moment is Moment.BEFORE
            ]
            assert 3 < len(tries) < 30, "it rests between its tries"

    run_virtual(main())


def test_a_write_conflict_is_looked_at_again_soon() -> None:
    async def main() -> None:
        async with Simulation() as sim:
            refused = 0

            async def conflict_once(call: Call, moment: Moment) -> None:
                nonlocal refused
                if call.verb == "patch_job_status" and moment is Moment.BEFORE and not refused:
                    refused += 1
                    raise Conflict("somebody wrote first")

            sim.on_call = conflict_once
            sim.cluster.create_job(manifest())
            await asyncio.sleep(0.15)
            assert refused == 1 and len(sim.cluster.pods()) == 2

    run_virtual(main())


def test_a_broken_watch_is_opened_again() -> None:
    class Broken(MemoryCluster):
        opened = 0

        async def watch(self) -> Any:
            Broken.opened += 1
            if Broken.opened < 4:
                raise Unavailable("410 Gone")
            async for key in super().watch():
                yield key

    async def main() -> None:
        async with Simulation(cluster_type=Broken) as sim:
            sim.cluster.create_job(manifest())
            await sim.until_finished()
            assert Broken.opened == 4

    run_virtual(main())


def test_a_list_that_fails_after_it_has_begun_is_tried_ever_more_rarely_and_not_before_it_may_be() -> None:
    class Refused(MemoryCluster):
        opened: list[float] = []  # noqa: RUF012 - one cluster, looked at below
        asked_to_wait_s = 0.0

        async def watch(self) -> Any:
            self.opened.append(asyncio.get_running_loop().time())
            async for news in super().watch():
                yield news
                raise Unavailable("429 Too Many Requests", self.asked_to_wait_s)

    async def main() -> None:
        async with Simulation(cluster_type=Refused):
            await asyncio.sleep(60.0)
            assert len(Refused.opened) < 20, "0.2 s, doubled up to 10 s"
            Refused.asked_to_wait_s = 25.0
            await asyncio.sleep(60.0)
            last, before_it = Refused.opened[-1], Refused.opened[-2]
            assert last - before_it >= 25.0

    run_virtual(main())


def test_a_bug_in_a_turn_ends_no_worker(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Only a broken rule can show this, so one is put in its place."""
    sound = look.decide
    broken = 3

    def decide(*arguments: Any) -> Any:
        nonlocal broken
        broken -= 1
        if broken >= 0:
            raise RuntimeError("a rule divided by zero")
        return sound(*arguments)

    monkeypatch.setattr(look, "decide", decide)

    async def main() -> None:
        async with Simulation() as sim:
            sim.cluster.create_job(manifest())
            await sim.until_finished()

    run_virtual(main())
    assert "a rule divided by zero" in caplog.text


def test_a_turn_that_hangs_is_given_up() -> None:
    async def main() -> None:
        async with Simulation() as sim:
            hung = False

            async def hang_once(call: Call, moment: Moment) -> None:
                nonlocal hung
                if call.verb == "list_pods" and not hung:
                    hung = True
                    await asyncio.Event().wait()

            sim.on_call = hang_once
            sim.cluster.create_job(manifest())
            await sim.until_finished(within_s=2 * module.TURN_TIMEOUT_S)

    run_virtual(main())


def test_a_job_of_many_workers_hears_of_an_edit_while_its_pods_are_created(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creates, "MOST_A_TURN", 20)

    async def slowly(call: Call, moment: Moment) -> None:
        if call.verb == "create_pod" and moment is Moment.BEFORE:
            await asyncio.sleep(1.0)

    async def main() -> None:
        async with Simulation() as sim:
            sim.on_call = slowly
            sim.cluster.create_job(manifest(workers=64))
            await asyncio.sleep(1.5)
            sim.cluster.update_job_spec("team", "digits", {"suspend": True})
            await asyncio.sleep(60.0)
            assert sum(call.verb == "create_pod" and moment is Moment.BEFORE for call, moment in sim.calls) == 20
            assert sim.cluster.pods() == []

    run_virtual(main())


def test_the_pods_that_a_turn_leaves_to_the_next_are_created_without_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creates, "MOST_A_TURN", 3)

    async def main() -> None:
        async with Simulation() as sim:
            sim.cluster.create_job(manifest(workers=8))
            await asyncio.sleep(0.1)
            assert sorted(pod["metadata"]["name"] for pod in sim.cluster.pods()) == [f"digits-{n}" for n in range(8)]
            await sim.until_finished()

    run_virtual(main())


def test_why_is_logged_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Simulation() as sim:
            sim.cluster.create_job(manifest())
            await sim.until_finished()
            await asyncio.sleep(300.0)

    with caplog.at_level(logging.INFO):
        run_virtual(main())
    said = [record.getMessage() for record in caplog.records if "team/digits: " in record.getMessage()]
    assert all(one != other for one, other in itertools.pairwise(said)), said
    assert any("attempt 1 begins" in sentence for sentence in said)


def test_the_launcher_sees_each_committed_job() -> None:
    async def main() -> None:
        async with Simulation() as sim:
            assert sim.operator is not None
            seen: list[TrainJob] = []
            view = Reconciler(
                Means(cluster=sim.cluster, agents=sim.operator.coordinator, clock=VirtualClock()),
                Installation(coordinator_url="http://c"),
                hears=Hears(on_job=seen.append),
            )
            sim.cluster.create_job(manifest())
            await view.turn((NAMESPACE, "digits"))
            assert [job.status.slots for job in seen] == ["0-1"]
            assert (
                seen[0].metadata.resource_version == sim.cluster.job(NAMESPACE, "digits")["metadata"]["resourceVersion"]
            )

    run_virtual(main())


def test_a_deleted_jobs_agents_go_home_and_its_pods_with_it() -> None:
    async def main() -> None:
        async with Simulation() as sim:
            sim.cluster.create_job(manifest())
            sim.world.training("digits").length = 10**6
            await sim.until_training()
            sim.cluster.remove_job(NAMESPACE, "digits")
            await sim.until(
                lambda: not sim.cluster.pods() and not sim.world.agents, "no pod and no agent is left", within_s=10.0
            )

    run_virtual(main())


def test_the_service_of_the_job_is_made_once() -> None:
    async def main() -> None:
        async with Simulation() as sim:
            calls = Recorder()
            sim.on_call = calls
            sim.cluster.create_job(manifest())
            await sim.until_finished()
            assert calls.verbs.count("create_service") == 1

    run_virtual(main())


class LateWatch(MemoryCluster):
    """Its watch tells of everything a second late: after the turn that did it."""

    async def watch(self) -> Any:
        async for news in super().watch():
            await asyncio.sleep(1.0)
            yield news


def test_what_a_turn_has_created_is_shown_though_nothing_else_happens() -> None:
    """The answers to the creates were known before the watch told of them, so that what it told was no news."""

    async def main() -> None:
        async with Simulation(cluster_type=LateWatch) as sim:
            sim.world.pace.schedule = (10**6, 10**6)
            sim.cluster.create_job(manifest(workers=2))
            await asyncio.sleep(10.0)
            created = sim.job().status.condition("ResourcesCreated")
            assert created is not None and created.status == "True", created
            sim.calls.clear()
            await asyncio.sleep(600.0)
            assert sim.writes == []

    run_virtual(main())
