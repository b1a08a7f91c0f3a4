"""Storage that goes away under a running job and comes back, or that takes a checkpoint never: what status says, and
what onUploadFailure does.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.scenario import Stage
from trainjob.launch.local.backend import LocalEvent
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob

pytestmark = pytest.mark.slow


def failing(job: TrainJob) -> TrainJob:
    """With onUploadFailure: Fail."""
    checkpoint = job.spec.checkpoint.model_copy(update={"on_upload_failure": "Fail"})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"checkpoint": checkpoint})})


class Watch:
    """Puts something in storage's way once the job has a run, before its first step (`--hold 0`), and sees what status
    says of it.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.folder = stage.storage / "default" / "job" / "checkpoints"
        self.degraded: list[tuple[str, str]] = []
        self._done = False

    def __call__(self, event: LocalEvent) -> None:
        if event.kind == "line" and "starts from the beginning" in event.text and not self._done:
            self._done = True
            self.block()
            self._stage.go()
        if event.job is not None:
            found = event.job.status.condition("Degraded")
            if found is not None and found.status == "True" and (found.reason, found.message) not in self.degraded:
                self.degraded.append((found.reason, found.message))
                self.told()

    def block(self) -> None:
        """A file where the folder would be (root would write through mere permissions)."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.write_text("in the way")

    def told(self) -> None:
        """Status says it: storage comes back."""
        self.folder.unlink(missing_ok=True)


def test_storage_that_goes_away_and_comes_back_shows_in_status_and_stops_nothing(stage: Stage) -> None:
    watch = Watch(stage)
    told = stage.run(stage.job("--steps", "2", "--hold", "0"), watch)
    assert told.status.holds("Complete"), told.text()
    assert told.attempts == 1 and told.status.failures.counted == 0
    assert watch.degraded and {reason for reason, _ in watch.degraded} == {contract.REASON_CHECKPOINT_FAILING}
    assert "cannot be stored: worker" in watch.degraded[0][1] and "Move it away (ls -ld" in watch.degraded[0][1]
    assert stage.committed() == ["1-1-1", "1-1-2"], "nothing that was acknowledged is lost"


class Foreign(Watch):
    """Under the first checkpoint's name lies something else: it can never be stored."""

    def block(self) -> None:
        """As a second job in the same folder would."""
        target = self.folder / "1-1-1" / "part-0"
        target.parent.mkdir(parents=True)
        target.write_text("somebody else's")

    def told(self) -> None:
        """It stays."""


def test_a_checkpoint_that_can_never_be_stored_is_dropped_and_the_next_ones_are_stored(stage: Stage) -> None:
    watch = Foreign(stage)
    told = stage.run(stage.job("--steps", "3", "--hold", "0"), watch)
    assert told.status.holds("Complete"), told.text()
    assert told.attempts == 1
    assert stage.committed() == ["1-1-2", "1-1-3"]
    assert any(
        "Checkpoint 1-1-1 was dropped" in line or "checkpoint 1-1-1 is not stored" in line for line in told.lines
    ), told.text()


@pytest.mark.parametrize("pause", ["0.4", "0"], ids=["while it reports", "after the last report"])
def test_with_fail_the_next_report_raises_on_all_ranks_and_the_reason_is_storage(stage: Stage, pause: str) -> None:
    watch = Foreign(stage)
    steps = "1" if pause == "0" else "50"
    told = stage.run(failing(stage.job("--steps", steps, "--pause", pause, "--hold", "0", max_failures=0)), watch)
    assert told.status.holds("Failed"), told.text()
    failure = told.status.last_failure
    assert failure is not None and failure.reason == contract.REASON_STORAGE, told.text()
    assert "Checkpoint 1-1-1 was dropped" in failure.message and "onUploadFailure is Fail" in failure.message
    if steps != "1":
        saved = [
            sorted(note.step for note in told.notes if note.what == "saved" and note.rank == rank) for rank in (0, 1)
        ]
        assert saved[0] == saved[1], "all ranks alike"


def test_trouble_that_passes_fails_no_job(stage: Stage) -> None:
    watch = Watch(stage)
    told = stage.run(failing(stage.job("--steps", "2", "--hold", "0", max_failures=0)), watch)
    assert told.status.holds("Complete"), told.text()
    assert Path(watch.folder, "1-1-2").exists()
