"""What `tj list` reads of a job that runs on this machine: the record follows the job, and catches up when it stands."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from support.trainjobs import document
from trainjob.launch.local.registry import records
from trainjob.launch.local.registry.recorder import WRITE_EVERY_S, Recorder
from trainjob_api.v1alpha1 import TrainJob


def test_what_comes_soon_after_a_write_is_written_once_it_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    recorder = Recorder(TrainJob.model_validate(document()), lambda text: None)

    def on_disk() -> int:
        ((record,), _) = records.find_all()
        return TrainJob.model_validate(record.job).spec.workers

    def job(workers: int) -> TrainJob:
        return TrainJob.model_validate(document({"spec.workers": workers}))

    now += WRITE_EVERY_S
    recorder.status(job(3))
    assert on_disk() == 3 and recorder.due_s is None
    now += WRITE_EVERY_S / 4
    recorder.status(job(4))
    assert on_disk() == 3 and recorder.due_s == pytest.approx(WRITE_EVERY_S * 3 / 4)
    recorder.catch_up()
    assert on_disk() == 3
    now += WRITE_EVERY_S * 3 / 4
    assert recorder.due_s == 0
    recorder.catch_up()
    assert on_disk() == 4 and recorder.due_s is None
