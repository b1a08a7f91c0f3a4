"""Progress of many jobs shares one allowance of writes; what matters does not wait for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from support.puppets import Pace
from support.simulation import NAMESPACE, Simulation, manifest
from support.virtual_time import run_virtual
from trainjob_operator.loop import progress_writer
from trainjob_operator.memory import Call, Moment

JOBS = [f"digits-{number}" for number in range(8)]
RATE = 0.2
"""Writes a second of eight jobs: each in 40 s."""


@contextlib.asynccontextmanager
async def all_training() -> AsyncIterator[Simulation]:
    """JOBS, each of which reports every other second, without an end."""
    async with Simulation(seed=1, pace=Pace(report=2.0)) as sim:
        for name in JOBS:
            sim.cluster.create_job(manifest(name, workers=1))
            sim.world.training(name).length = 10**6
        for name in JOBS:
            await sim.until_training(name=name)
        yield sim


def allow(monkeypatch: pytest.MonkeyPatch, rate: float) -> None:
    """So many writes of progress a second, one at a time."""
    monkeypatch.setattr(progress_writer, "WRITES_A_SECOND", rate)
    monkeypatch.setattr(progress_writer, "WRITES_AT_ONCE", 1.0)


def test_progress_of_all_jobs_is_bounded_and_each_has_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, RATE)

    async def main() -> None:
        async with all_training() as sim:
            await asyncio.sleep(60.0)
            sim.calls.clear()
            before = {name: sim.job(name).status.progress.position for name in JOBS}
            for _ in range(4):
                await asyncio.sleep(90.0)
                for name in JOBS:
                    shown = sim.job(name).status.progress
                    assert shown.position > before[name], name
                    before[name] = shown.position
            writes = [call for call in sim.writes if call.verb == "patch_job_status"]
            assert 360 * RATE - 5 <= len(writes) <= 360 * RATE + len(JOBS), "a turn of the resync may write it too"

    run_virtual(main())


def test_what_is_written_is_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, RATE)

    async def main() -> None:
        async with all_training() as sim:
            await asyncio.sleep(100.0)
            versions = {name: sim.job(name).metadata.resource_version for name in JOBS}
            while len(versions) > 3:
                await asyncio.sleep(0.05)
                for name in list(versions):
                    job = sim.job(name)
                    if job.metadata.resource_version != versions[name]:
                        del versions[name]
                        reached = sim.world.training(name).position
                        assert reached - job.status.progress.position <= 4, "some seconds' worth, not forty"

    run_virtual(main())


def test_a_failure_does_not_wait_for_the_progress_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def recovery_s(rate: float) -> float:
        allow(monkeypatch, rate)
        async with all_training() as sim:
            await asyncio.sleep(100.0)
            begun = asyncio.get_running_loop().time()
            sim.world.fail_rank(sim.agent(0, name=JOBS[3]))
            await sim.until_training(attempt=2, name=JOBS[3])
            return asyncio.get_running_loop().time() - begun

    assert run_virtual(recovery_s(0.01)) <= run_virtual(recovery_s(100.0)) + 1.0


class Held:
    """The answer to one status write is held for so long, as a webhook holds it; a hook for `on_call`."""

    def __init__(self, seconds: float, moment: Moment) -> None:
        self._seconds, self._moment = seconds, moment
        self.begun, self.over = asyncio.Event(), asyncio.Event()

    async def __call__(self, call: Call, moment: Moment) -> None:
        if call.verb == "patch_job_status" and moment is self._moment and not self.begun.is_set():
            self.begun.set()
            await asyncio.sleep(self._seconds)
            self.over.set()


@contextlib.asynccontextmanager
async def progress_held(seconds: float, moment: Moment) -> AsyncIterator[tuple[Simulation, Held]]:
    """A job that trains, and one write of its progress that is held."""
    async with Simulation(seed=1, pace=Pace(report=0.5)) as sim:
        sim.cluster.create_job(manifest())
        sim.world.training("digits").length = 10**6
        await sim.until_training()
        await asyncio.sleep(60.0)
        held = Held(seconds, moment)
        sim.on_call = held
        await held.begun.wait()
        yield sim, held


@pytest.mark.parametrize("moment", Moment)
def test_an_edit_is_heard_while_a_write_of_progress_hangs(moment: Moment) -> None:
    async def main() -> None:
        async with progress_held(25.0, moment) as (sim, held):
            await asyncio.sleep(1.0)
            sim.cluster.update_job_spec(NAMESPACE, "digits", {"suspend": True})
            await sim.until(lambda: sim.job().status.phase == "Suspended", "it is suspended", within_s=20.0)
            assert not held.over.is_set()
            sim.cluster.update_job_spec(NAMESPACE, "digits", {"suspend": False})
            await sim.until_training(attempt=2)
            await held.over.wait()
            await asyncio.sleep(60.0)
            assert sim.job().status.attempt.number == 2  # type: ignore[union-attr]

    run_virtual(main())


def test_a_turn_beside_a_write_of_progress_takes_nothing_back() -> None:
    """It looked at the job before the write was answered, and what it would show has to wait."""

    async def main() -> None:
        async with progress_held(3.0, Moment.AFTER) as (sim, held):
            assert sim.operator is not None
            reconciler, key = sim.operator.reconciler, (NAMESPACE, "digits")
            while reconciler._shown.admit(key, asyncio.get_running_loop().time()) == 0.0:
                pass
            reconciler.enqueue(key)
            await held.over.wait()
            sim.calls.clear()
            await asyncio.sleep(60.0)
            reads = [call.verb for call, moment in sim.calls if moment is Moment.BEFORE and not call.writes]
            assert reads == [], "the next write is refused, and all is read anew"
            assert 4 <= len(sim.writes) <= 7

    run_virtual(main())
