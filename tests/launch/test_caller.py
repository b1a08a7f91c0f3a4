"""The caller's side of a local job: a Ctrl-C at the worst of moments."""

from __future__ import annotations

import queue
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from support.jobs import job
from trainjob.launch.local.caller import Caller
from trainjob.launch.local.drive import Stop
from trainjob.screen.asked import Asker
from trainjob_api.v1alpha1 import TrainJob


class Interrupted(queue.SimpleQueue[Any]):
    """Ctrl-C comes between the end of the job being taken out of it and being looked at."""

    pressed = False

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if self.pressed and self.empty():
            pytest.fail("it waits for what nobody puts there any more")
        found = super().get(block, timeout)
        if found is None and not self.pressed:
            self.pressed = True
            raise KeyboardInterrupt
        return found


class Drives:
    """A job that is over at once, or cannot be driven."""

    asked_to_stop = False

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def run(self, publish: Callable[..., None]) -> TrainJob:
        if self._error is not None:
            raise self._error
        return job()

    def stop(self, how: Stop) -> None:
        """There is nothing left to stop."""


@pytest.mark.parametrize("error", [None, ValueError("broken")])
def test_a_ctrl_c_as_the_job_ends_does_not_wait_for_its_end_for_ever(error: Exception | None) -> None:
    recorder: Any = SimpleNamespace(due_s=None)
    driver: Any = Drives(error)
    caller = Caller(driver, lambda event: None, recorder, Asker.SHELL)
    caller._events = Interrupted()
    if error is None:
        assert caller.run() == (job(), True)
    else:
        with pytest.raises(ValueError, match="broken"):
            caller.run()
