"""Somebody edits or deletes a job's Service: its workers find each other by it, so it is put right and told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.puppets import Pace
from support.simulation import NAMESPACE, Simulation, manifest
from support.virtual_time import run_virtual
from trainjob_operator.cluster import Manifest, NotFound, Rejected
from trainjob_operator.loop.known_job import READ_AGAIN_S
from trainjob_operator.memory import Call, Moment

EDITS: dict[str, dict[str, Any]] = {
    "selector": {"selector": {"app": "web"}},
    "more selector": {"selector": {"trainjob.dev/job": "digits", "app": "web"}},
    "no selector": {"selector": None},
    "ports": {"ports": [{"name": "x", "port": 80}]},
    "readiness": {"publishNotReadyAddresses": False},
}


def service(sim: Simulation) -> Manifest:
    return sim.cluster._store.get("Service", NAMESPACE, "digits")


def told(sim: Simulation) -> list[str]:
    return [event["message"] for event in sim.cluster.events() if event["reason"] == "ServiceRestored"]


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_an_edited_service_is_put_right_before_the_next_attempt(edit: dict[str, Any]) -> None:
    async def main() -> None:
        async with Simulation(seed=1, pace=Pace(report=10**6)) as sim:
            sim.cluster.create_job(manifest())
            await sim.until_training()
            await asyncio.sleep(120.0)
            before = service(sim)
            changed = {name: value for name, value in {**before["spec"], **edit}.items() if value is not None}
            sim.cluster._store.update("Service", NAMESPACE, "digits", lambda found: found.update(spec=changed))
            sim.world.fail_rank(sim.agent(1))
            await sim.until_training(attempt=2)
            assert service(sim)["spec"] == before["spec"]
            (message,) = told(sim)
            assert next(iter(edit)) in message

    run_virtual(main())


@pytest.mark.parametrize("edit", [None, *EDITS.values()], ids=["deleted", *EDITS])
def test_what_becomes_of_a_service_is_mended_while_its_job_trains(edit: dict[str, Any] | None) -> None:
    """The watch tells of it."""

    async def main() -> None:
        async with Simulation(seed=1, pace=Pace(report=10**6)) as sim:
            sim.cluster.create_job(manifest())
            await sim.until_training()
            await asyncio.sleep(120.0)
            before = service(sim)
            if edit is None:
                sim.cluster._store.delete("Service", NAMESPACE, "digits")
            else:
                sim.cluster._store.update("Service", NAMESPACE, "digits", lambda found: found["spec"].update(edit))
            await asyncio.sleep(5.0)
            assert service(sim)["spec"] == before["spec"] and len(told(sim)) == 1
            sim.calls.clear()
            await asyncio.sleep(600.0)
            assert not any("service" in call.verb for call, _ in sim.calls), "it is known to be right"
            assert sim.job().status.attempt is not None and sim.job().status.attempt.number == 1

    run_virtual(main())


@pytest.mark.parametrize("then", ["nothing", "deleted", "changed"])
def test_a_service_without_its_label_is_read_before_the_next_attempt(then: str) -> None:
    """To the watch it is gone."""

    async def main() -> None:
        async with Simulation(seed=1, pace=Pace(report=10**6)) as sim:
            sim.cluster.create_job(manifest())
            await sim.until_training()
            await asyncio.sleep(120.0)
            store, before = sim.cluster._store, service(sim)
            store.update("Service", NAMESPACE, "digits", lambda found: found["metadata"].update(labels={}))
            await asyncio.sleep(60.0)
            if then == "deleted":
                store.delete("Service", NAMESPACE, "digits")
            elif then == "changed":
                store.update("Service", NAMESPACE, "digits", lambda found: found["spec"].update(selector={"a": "b"}))
            sim.calls.clear()
            sim.world.fail_rank(sim.agent(1))
            await sim.until_training(attempt=2)
            assert any(call.verb == "get_service" for call, _ in sim.calls)
            assert service(sim)["spec"] == before["spec"] and len(told(sim)) == (then != "nothing")

    run_virtual(main())


def test_a_deleted_service_is_made_again() -> None:
    async def main() -> None:
        async with Simulation(seed=1, pace=Pace(report=10**6)) as sim:
            sim.cluster.create_job(manifest())
            await sim.until_training()
            sim.cluster._store.delete("Service", NAMESPACE, "digits")
            await asyncio.sleep(READ_AGAIN_S + 600.0)
            assert service(sim)["spec"]["selector"]
            assert told(sim) == ["the Service digits was deleted and is made again: workers find each other by it"]
            created = sim.job().status.condition("ResourcesCreated")
            assert created is not None and created.status == "True", created

    run_virtual(main())


def test_a_new_job_is_told_of_no_service() -> None:
    async def main() -> None:
        async with Simulation(seed=1) as sim:
            sim.cluster.create_job(manifest())
            await sim.until_finished()
            assert told(sim) == []

    run_virtual(main())


def test_a_label_or_annotation_of_somebody_is_nobodys_business() -> None:
    async def main() -> None:
        async with Simulation(seed=1, pace=Pace(report=10**6)) as sim:
            sim.cluster.create_job(manifest())
            await sim.until_training()
            metadata = {**service(sim)["metadata"], "annotations": {"owner": "me"}}
            sim.cluster._store.update("Service", NAMESPACE, "digits", lambda found: found.update(metadata=metadata))
            await asyncio.sleep(READ_AGAIN_S + 600.0)
            assert service(sim)["metadata"]["annotations"] == {"owner": "me"} and told(sim) == []

    run_virtual(main())


def test_a_service_that_may_not_be_put_right_stops_no_job() -> None:
    async def main() -> None:
        async with Simulation(seed=1, pace=Pace(report=1.0)) as sim:

            async def forbidden(call: Call, moment: Moment) -> None:
                if call.verb == "patch_service":
                    raise Rejected("services is forbidden: cannot patch")

            sim.on_call = forbidden
            sim.cluster.create_job(manifest())
            sim.world.training("digits").length = 30
            await sim.until_training()
            await asyncio.sleep(15.0)
            spec = {**service(sim)["spec"], "selector": {"a": "b"}}
            sim.cluster._store.update("Service", NAMESPACE, "digits", lambda found: found.update(spec=spec))
            sim.world.fail_rank(sim.agent(1))
            job = await sim.until_finished()
            assert job.status.holds("Complete")
            assert any("cannot patch" in event["message"] for event in sim.cluster.events())

    run_virtual(main())


def test_a_service_that_went_with_its_job_is_not_made_again() -> None:
    async def main() -> None:
        async with Simulation(seed=1) as sim:
            sim.cluster.create_job(manifest())
            await sim.until_training()
            sim.cluster.remove_job(NAMESPACE, "digits")
            await asyncio.sleep(120.0)
            with pytest.raises(NotFound):
                service(sim)

    run_virtual(main())
