"""Deletions that the API server refuses: told once, tried ever more rarely, and nothing else waits for them."""

from __future__ import annotations

import asyncio
from collections import Counter

from support.clusters import manifest
from support.simulation import Simulation
from support.virtual_time import run_virtual
from trainjob_operator.cluster import Rejected
from trainjob_operator.memory import Moment


def refuse_deletes(sim: Simulation, *verbs: str) -> None:
    """As a policy that protects objects does."""
    for verb in verbs:
        sim.obstacles[verb] = lambda: Rejected("a policy protects this")


def counts(sim: Simulation) -> Counter[str]:
    return Counter(call.verb for call, moment in sim.calls if moment is Moment.BEFORE)


def test_a_pod_that_nobody_may_delete_is_tried_ever_more_rarely_and_told_once() -> None:
    async def main() -> None:
        async with Simulation(seed=1) as sim:
            sim.cluster.create_job(manifest(podCleanup="All"))
            refuse_deletes(sim, "delete_pod")
            await sim.until_finished()
            await asyncio.sleep(300.0)
            sim.calls.clear()
            await asyncio.sleep(600.0)
            seen = counts(sim)
            assert 0 < seen["delete_pod"] <= 2 * 11, seen
            assert sum(seen.values()) <= 3 * 11, seen
            (told,) = (event for event in sim.cluster.events() if event["reason"] == "FailedDelete")
            assert told["count"] == 1
            del sim.obstacles["delete_pod"]
            await sim.until(lambda: not sim.cluster.pods(), "they are deleted", within_s=61.0)

    run_virtual(main())


def test_a_job_that_nobody_may_delete_is_tried_ever_more_rarely() -> None:
    async def main() -> None:
        async with Simulation(seed=1) as sim:
            sim.cluster.create_job(manifest(ttlSecondsAfterFinished=10))
            await sim.until_finished()
            refuse_deletes(sim, "delete_job")
            await asyncio.sleep(300.0)
            sim.calls.clear()
            await asyncio.sleep(600.0)
            seen = counts(sim)
            assert 0 < seen["delete_job"] <= 11, seen
            assert sum(seen.values()) <= 3 * 11, seen
            del sim.obstacles["delete_job"]
            await sim.until(lambda: not sim.cluster.jobs(), "it is deleted", within_s=61.0)

    run_virtual(main())
