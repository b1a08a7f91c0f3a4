"""What a local job's control side shows of it while others change it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from support.jobs import attempt, condition, job, progress
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
COMPLETE = _COMPLETE.model_copy(update={"metadata": _COMPLETE.metadata.model_copy(update={"resource_version": "2"})})
LOOKS = 3


def test_a_look_that_began_before_the_jobs_end_does_not_show_it_with_the_progress_of_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[TrainJob] = []
    looks: list[TrainJob] = []
    driver: Any = Driver(RUNNING, SimpleNamespace(), "", lambda: False)  # type: ignore[arg-type]

    async def observe(*_: object) -> Observed:
        looks.append(driver.job)
        if len(looks) == LOOKS:
            driver._saw(COMPLETE)  # the reconciler, meanwhile
        return Observed(job=RUNNING)

    async def look_on() -> None:
        driver._changed = asyncio.Event()
        driver._publish = lambda kind, **content: shown.append(content["job"])
        looking = asyncio.create_task(
            driver._show_progress(
                None, SimpleNamespace(views=None, listening_since=None), SimpleNamespace(taking_s=0.0)
            )
        )
        for _ in range(100):
            await asyncio.sleep(0)
        looking.cancel()

    monkeypatch.setattr(drive, "SHOW_EVERY_S", 0)
    monkeypatch.setattr(drive, "observe", observe)
    asyncio.run(look_on())
    assert [(each.status.phase, each.status.progress.step) for each in shown] == [("Running", 300), ("Complete", 450)]
