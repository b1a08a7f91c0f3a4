"""Spare workers for real: one is up and warm, a worker is lost, and training goes on with the spare."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from scenarios.test_pods import agent_of
from support import large_package
from support.scenario import LOOPS, Stage, Told, acknowledged
from trainjob.launch.local.backend import LocalEvent
from trainjob_api.v1alpha1 import TrainJob

pytestmark = pytest.mark.slow


class Strike:
    """A listener: kills the agent of a pod once all spares are ready and enough is saved; ranks are held until then,
    and until the next spare is ready.
    """

    def __init__(self, stage: Stage, pod: str, signal_: int = signal.SIGKILL) -> None:
        self._stage, self._pod, self._signal = stage, pod, signal_
        self._job: TrainJob | None = None
        self.saved: dict[int, int] = {}
        """By rank, when it struck: the newest step that had been acknowledged."""
        self.shown: list[str] = []
        """What was said of spares, each word once in a row."""

    def __call__(self, event: LocalEvent) -> None:
        self._job = job = event.job or self._job
        said = job.status.workers.spares if job is not None else None
        if said is not None and said != (self.shown or [""])[-1]:
            self.shown.append(said)
        notes = self._stage.read_notes()
        saved = acknowledged(notes)
        if not self.saved and said == "1/1" and min(saved.values(), default=0) >= 3 and len(saved) == 2:
            os.kill(agent_of(self._stage, self._pod), self._signal)
            self.saved = acknowledged(self._stage.read_notes())
        elif self.saved and job is not None and job.status.attempt and job.status.attempt.number > 1 and said == "1/1":
            self._stage.go()


def with_a_spare(job: TrainJob) -> TrainJob:
    """The same job with one spare worker."""
    runtime = job.spec.runtime.model_copy(update={"spare_workers": 1})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"runtime": runtime})})


def went_on_with_the_spare(told: Told, strike: Strike, members: str) -> None:
    """It did so, and nothing was lost that was acknowledged."""
    status, attempt = told.status, told.status.attempt
    assert strike.saved, told.text()
    assert status.holds("Complete") and attempt is not None, told.text()
    assert (attempt.number, attempt.members, attempt.from_spares) == (2, members, "2"), told.text()
    assert status.failures.counted == 1 and status.next_slot == 4, told.text()
    for rank in (0, 1):
        resumed = told.starts(rank)[-1]
        assert resumed[0] == 2 and resumed[1] > strike.saved[rank], (told.starts(rank), strike.saved)
    assert len({note.pod for note in told.notes}) == 3, "two pods of the first attempt, and the spare's"
    assert strike.shown[0] == "0/1" and strike.shown.count("1/1") == 2, f"its successor came: {strike.shown}"
    # No pod had to come up: the write that told of the loss began the next attempt.
    parts = attempt.parts_ms
    assert parts is not None and parts.waited == 0, told.text()
    assert any("stood by as spare" in event.text for event in told.events if event.kind == "event"), told.text()


@pytest.mark.parametrize(("pod", "members"), [("job-1", "0,2"), ("job-0", "1-2")])
def test_a_lost_worker_is_replaced_by_the_spare(stage: Stage, pod: str, members: str) -> None:
    strike = Strike(stage, pod)
    told = stage.run(
        with_a_spare(stage.job("--steps", "40", "--pause", "0.05", "--hold", "20", "--mode", "SYNC")), strike
    )
    went_on_with_the_spare(told, strike, members)


class StrikeOnceItHasLearned:
    """A listener: kills the agent of a pod once the spare has what the workers have learned, and lets go."""

    def __init__(self, stage: Stage, pod: str) -> None:
        self._stage, self._pod = stage, pod
        self._have_learned = 0
        self.struck = False

    def __call__(self, event: LocalEvent) -> None:
        if event.kind == "line" and "are imported ahead: large" in event.text:
            self._have_learned += 1
        saved = acknowledged(self._stage.read_notes())
        if not self.struck and self._have_learned == 3 and len(saved) == 2:
            os.kill(agent_of(self._stage, self._pod), signal.SIGKILL)
            self.struck = True
            self._stage.go()


def test_a_spare_has_what_the_workers_have_learned(stage: Stage) -> None:
    """Also rank 0's place is taken by a rank that imports nothing again."""
    path = os.pathsep.join([str(large_package.install(stage.root)), *filter(None, sys.path)])
    strike = StrikeOnceItHasLearned(stage, "job-0")
    job = stage.job(
        *("--steps", "10", "--hold", "5", "--mode", "SYNC"),
        script=LOOPS / "imports.py",
        environment={"PYTHONPATH": path},
    )
    runtime = job.spec.runtime.model_copy(update={"prefork": "auto", "spare_workers": 1})
    told = stage.run(job.model_copy(update={"spec": job.spec.model_copy(update={"runtime": runtime})}), strike)
    assert strike.struck and told.status.holds("Complete") and told.attempts == 2, told.text()
    assert sorted(
        line.partition("in attempt ")[2] for line in told.lines if "in attempt" in line and " it was " in line
    ) == [
        "1 it was imported",
        "1 it was imported",
        "2 it was there",
        "2 it was there",
    ], told.text()
