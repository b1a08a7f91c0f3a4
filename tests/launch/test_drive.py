"""What a local job's control side shows of it while others change it."""

from __future__ import annotations

import asyncio
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from support.jobs import at, attempt, condition, job, progress
from trainjob.launch.local import drive
from trainjob.launch.local.drive import Driver
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.core.model import Observed

RUNNING = job({"phase": "Running", "attempt": attempt(), "progress": progress(300)})
_COMPLETE = job(
    {
        "phase": "Complete",
        "attempt": attempt(state="Ended"),
        "progress": progress(450),
        "conditions": [condition("Complete", "True", "Completed")],
    }
)
LATER = datetime.fromisoformat(at(60))
LOOKS = 3


def _of_version(of: TrainJob, version: str) -> TrainJob:
    return of.model_copy(update={"metadata": of.metadata.model_copy(update={"resource_version": version})})


COMPLETE = _of_version(_COMPLETE, "2")


async def look_on(driver: Any, told: list[tuple[str, TrainJob]], turns: int) -> None:
    """Let it look at its job meanwhile, over and over."""
    listen(driver, told)
    coordinator, kubelet = SimpleNamespace(views=None, listening_since=None), SimpleNamespace(taking_s=0.0)
    looking = asyncio.create_task(driver._show_progress(None, coordinator, kubelet))
    for _ in range(turns):
        await asyncio.sleep(0)
    looking.cancel()


def listen(driver: Any, told: list[tuple[str, TrainJob]]) -> None:
    """From now on what it tells comes there."""
    driver._changed = asyncio.Event()
    driver._publish = lambda kind, **content: told.append((kind, content["job"]))


def shown(told: list[tuple[str, TrainJob]]) -> list[TrainJob]:
    """The states of the job that were."""
    return [each for kind, each in told if kind == "status"]


def test_a_look_that_began_before_the_jobs_end_does_not_show_it_with_the_progress_of_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[str, TrainJob]] = []
    looks: list[TrainJob] = []
    driver: Any = Driver(RUNNING, SimpleNamespace(), "", lambda: False)  # type: ignore[arg-type]

    async def observe(*_: object) -> Observed:
        looks.append(driver.job)
        if len(looks) == LOOKS:
            driver._saw(COMPLETE)  # the reconciler, meanwhile
        return Observed(job=RUNNING)

    monkeypatch.setattr(drive, "SHOW_EVERY_S", 0)
    monkeypatch.setattr(drive, "observe", observe)
    asyncio.run(look_on(driver, told, 100))
    assert [(each.status.phase, each.status.progress.step) for each in shown(told)] == [
        ("Running", 300),
        ("Complete", 450),
    ]


def test_a_committed_status_does_not_take_back_what_was_seen_of_the_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A turn leaves progress that is not due yet as it was written last: up to ten seconds old."""
    told: list[tuple[str, TrainJob]] = []
    driver: Any = Driver(RUNNING, SimpleNamespace(), "", lambda: False)  # type: ignore[arg-type]
    degraded = {"phase": "Running", "attempt": attempt(), "conditions": [condition("Degraded", "True", "Slow", "why")]}

    def take_progress(turn: Any, *, at_end: bool) -> None:
        turn.change(progress=COMPLETE.status.progress.model_copy(update={"last_report_time": LATER}))

    async def observe(*_: object) -> Observed:
        return Observed(job=RUNNING)

    async def look_on_and_commit() -> None:
        await look_on(driver, told, 20)
        for version, committed in enumerate((job({**degraded, "progress": progress(300)}), job(degraded))):
            driver._saw(_of_version(committed, str(version + 2)))

    monkeypatch.setattr(drive, "SHOW_EVERY_S", 0)
    monkeypatch.setattr(drive, "observe", observe)
    monkeypatch.setattr(drive, "take_progress", take_progress)
    asyncio.run(look_on_and_commit())
    assert [each.status.progress.step for each in shown(told)] == [450, 450]
    assert shown(told)[-1].status.holds("Degraded")
    assert driver.job.status.progress.step == 450, "killed at once it ends with what was shown of it"


def test_a_job_that_becomes_complete_as_its_stop_is_looked_into_stays_complete() -> None:
    """The word of an agent that all is done may be taken by a turn while storage is asked for the same."""
    told: list[tuple[str, TrainJob]] = []
    stopped = job(
        {"phase": "Suspended", "attempt": attempt(state="Ended"), "conditions": [condition("Suspended", "True", "S")]}
    )
    driver: Any = Driver(stopped, SimpleNamespace(), "", lambda: False)  # type: ignore[arg-type]

    def asked(views: object) -> bool:
        driver._saw(COMPLETE)
        return False  # the storage is away

    async def end() -> None:
        listen(driver, told)
        driver._has_completed = asked
        await driver._show_end(SimpleNamespace(views=lambda key: {}))

    asyncio.run(end())
    assert [each.status.phase for each in shown(told)] == ["Complete"]
    assert driver.job.status.holds("Complete")


def test_who_follows_the_reports_of_a_job_is_told_to_look_after_its_last_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A report comes to storage a second after the job's progress tells of it, and nothing else may follow for long."""
    told: list[tuple[str, TrainJob]] = []
    driver: Any = Driver(RUNNING, SimpleNamespace(), "", lambda: False)  # type: ignore[arg-type]

    async def observe(*_: object) -> Observed:
        return Observed(job=RUNNING)

    monkeypatch.setattr(drive, "SHOW_EVERY_S", 0)
    monkeypatch.setattr(drive, "observe", observe)
    asyncio.run(look_on(driver, told, 10 * drive.LOOKS))
    assert [(kind, each.status.progress.step) for kind, each in told] == [
        ("status", 300),
        *[("look", 300)] * drive.LOOKS,
    ]
