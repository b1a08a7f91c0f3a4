"""What `tj list` reads of a job that runs on this machine: the record follows the job, and catches up when it stands."""

from __future__ import annotations

import errno
import queue
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from support.launchers import WAITS, local_launcher
from support.patience import HANG_S
from support.scenario import wait_until
from support.trainjobs import document
from trainjob.checkpoint.records import layout
from trainjob.launch.local import lock
from trainjob.launch.local.lock import JobLock, JobRunning
from trainjob.launch.local.registry import output, presence, records
from trainjob.launch.local.registry.recorder import WRITE_EVERY_S, Recorder
from trainjob_api import defaults
from trainjob_api.v1alpha1 import TrainJob


def test_what_comes_soon_after_a_write_is_written_once_it_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    recorder = Recorder(TrainJob.model_validate(document()), lambda text: None, lambda text: None)

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


def test_what_a_full_disk_had_no_room_for_is_written_once_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    now, full = 1000.0, False
    monkeypatch.setattr(time, "monotonic", lambda: now)
    write = records.write

    def write_if_there_is_room(record: records.Record) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(record)

    monkeypatch.setattr(records, "write", write_if_there_is_room)
    told: list[str] = []
    recorder = Recorder(TrainJob.model_validate(document()), told.append, lambda text: None)
    now, full = now + WRITE_EVERY_S, True
    recorder.status(TrainJob.model_validate(document({"spec.workers": 3})))
    assert len(told) == 1 and recorder.due_s == WRITE_EVERY_S
    now, full = now + WRITE_EVERY_S, False
    recorder.catch_up()
    ((record,), _) = records.find_all()
    assert TrainJob.model_validate(record.job).spec.workers == 3 and recorder.due_s is None


def test_how_a_job_ended_is_on_disk_before_its_output_is_compressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found: list[str | None] = []

    def compress(path: str) -> None:
        ((record,), _) = records.find_all()
        found.append(record.outcome)

    monkeypatch.setattr(output, "compress", compress)
    job = TrainJob.model_validate(document({"spec.checkpoint.storage": str(tmp_path / "store")}))
    recorder = Recorder(job, lambda text: None, lambda text: None)
    recorder.line("r00 | trains")
    recorder.end(job)
    assert found == [records.STOPPED]


def test_a_storage_folder_that_goes_is_told_when_it_is_noticed_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(presence, "LOOK_S", 0.01)
    notes: queue.SimpleQueue[str] = queue.SimpleQueue()
    last: list[str] = []
    attempt = {"number": 1, "run": 1, "cause": "Started", "worldSize": 1, "members": "0", "state": "Running"}
    status = {"attempt": {**attempt, "workers": 1, "startedAt": "2030-01-01T00:00:00Z"}}
    store = str(tmp_path / "store")
    job = TrainJob.model_validate(document({"spec.checkpoint.storage": store, "status": status}))
    recorder = Recorder(job, last.append, notes.put)
    folder = Path(str(recorder.record.folder))
    recorder.line("r00 | before")
    claim = folder / layout.run_key(1)
    claim.parent.mkdir(parents=True)
    claim.write_text("{}")
    recorder.status(job)
    wait_until(lambda: recorder._presence is not None and recorder._presence._seen == 1)
    away = tmp_path / "away"
    shutil.move(store, away)
    told = notes.get(timeout=HANG_S)
    assert f"the storage folder {folder} is gone" in told
    recorder.line("r00 | after")
    assert recorder.due_s is not None, "it is on its way into the record"
    recorder._write()
    ((written,), _) = records.find_all()
    assert written.storage_gone is not None
    shutil.rmtree(store)
    shutil.move(str(away), store)
    assert "is there again" in notes.get(timeout=HANG_S)
    shutil.rmtree(store)
    assert "is gone" in notes.get(timeout=HANG_S)
    recorder.line("r00 | at last")
    recorder.end(job)
    assert len(last) == 1 and "only what was saved since is in it" in last[0] and "mount the volume" in last[0]
    pieces = output.of_run(recorder.record.output, recorder.record.started)
    assert [list(output.lines(each)) for each in pieces] == [["r00 | at last"]]


def test_a_run_beside_one_whose_lock_it_cannot_see_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service has a /tmp of its own: two trained in one folder, and the first one's last word replaced the other's
    record.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    job = TrainJob.model_validate(document({"spec.checkpoint.storage": str(tmp_path / "store")}))
    folder = str(defaults.job_storage(job))
    (tmp_path / "own").mkdir()
    launcher, _ = local_launcher(folder, WAITS, at=str(tmp_path / "own"))
    first = Recorder(job, lambda text: None, lambda text: None).record
    record = replace(first, pid=launcher.pid, born=lock.started(launcher.pid))
    records.write(record)
    records.ask_to_stop(record)
    try:
        with JobLock(folder), pytest.raises(JobRunning, match=rf"launcher pid {launcher.pid}\)"):
            Recorder(job, lambda text: None, lambda text: None)
        assert records.find_all()[0] == [record] and records.is_asked_to_stop(record.id)
    finally:
        launcher.communicate()
    with JobLock(folder):
        second = Recorder(job, lambda text: None, lambda text: None).record
        assert records.find_all()[0] == [second] and not records.is_asked_to_stop(record.id)
        # As in a notebook whose state folder was full at the end of the first.
        Recorder(job, lambda text: None, lambda text: None)
