"""Rank 0's queue of checkpoints to validate: each comes to an end, whatever storage does."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from support.checkpoint import Job
from trainjob.checkpoint.choice.settle import settle
from trainjob.checkpoint.errors import FULL, StoreError
from trainjob.checkpoint.reading import validations
from trainjob.checkpoint.reading.validations import Validation
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.stores.path_store import PathStore
from trainjob.launch.handover import validations as queue_of_rank_0
from trainjob.launch.handover.validation import ValidationConfig
from trainjob.launch.handover.validations import Validations, give_up
from trainjob_api.rank_messages import Validated


class Refusing(PathStore):
    """Puts that fail: so many of them, after so many."""

    def __init__(self, folder: Path, after: int, count: int) -> None:
        super().__init__(str(folder))
        self.left_alone, self.refusals = after, count

    def put(self, key: str, data: bytes) -> None:
        self.left_alone -= 1
        if self.left_alone < 0 < self.refusals:
            self.refusals -= 1
            raise StoreError(FULL, "the disk is full")
        super().put(key, data)


class Broken(PathStore):
    def size(self, key: str) -> int | None:
        if "1-1-1" in key:
            raise RuntimeError("nobody thought of this")
        return super().size(key)


class Unforeseen(PathStore):
    """An end of a validation cannot be written, for a reason that nobody thought of."""

    def put(self, key: str, data: bytes) -> None:
        if validations.FAILED.encode() in data and b"1-1-1" in key.encode():
            raise RuntimeError("nobody thought of this")
        super().put(key, data)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    found = Job(tmp_path)
    settle(found.store, "a", "auto", [])
    for n in (1, 2):
        found.save(f"1-1-{n}", metrics={"loss": n})
    return found


def validate(job: Job, store: Any, *ids: str) -> list[Validated]:
    """What rank 0's agent is told. The function cannot be loaded: each validation fails."""
    told: list[Validated] = []
    config = ValidationConfig(fn=lambda checkpoint: {})
    queue = Validations(str(job.folder / "no payload"), config, store, 1, told.append, pauses_s=(0.0, 0.0))
    queue.start()
    for id_ in ids:
        queue.begin(id_, True)
    queue.finish()
    return told


def statuses(job: Job) -> dict[str, str]:
    return {str(id_): found.status for id_, found in validations.read(job.store, 1).items()}


@pytest.mark.parametrize(("refusals", "end"), [(2, validations.FAILED), (3, validations.PENDING)])
def test_an_end_that_cannot_be_written_is_tried_again_and_told_all_the_same(job: Job, refusals: int, end: str) -> None:
    told = validate(job, Refusing(job.folder, 1, refusals), "1-1-1")
    assert told == [Validated("1-1-1"), Validated("1-1-1", over=True)]
    assert statuses(job) == {"1-1-1": end}


def test_a_wish_that_cannot_be_written_fails_no_training_and_is_fulfilled(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    told = validate(job, Refusing(job.folder, 0, 1), "1-1-1")
    assert told == [Validated("1-1-1"), Validated("1-1-1", over=True)]
    assert statuses(job) == {"1-1-1": validations.FAILED}
    assert "a restart forgets it: the disk is full" in capsys.readouterr().err


def test_whatever_one_fails_with_the_next_is_validated(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    told = validate(job, Broken(str(job.folder)), "1-1-1", "1-1-2")
    assert [word.id for word in told if word.over] == ["1-1-1", "1-1-2"]
    assert set(statuses(job).values()) == {validations.FAILED}
    assert "RuntimeError: nobody thought of this" in capsys.readouterr().err


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise ValueError("I/O operation on closed file.")


@pytest.mark.parametrize("breaks", ["its words", "its end"])
def test_what_cannot_be_said_or_written_at_an_end_keeps_nobody_waiting(
    job: Job, monkeypatch: pytest.MonkeyPatch, breaks: str
) -> None:
    if breaks == "its words":
        monkeypatch.setattr(sys, "stderr", Closed())
        store: Any = Broken(str(job.folder))
    else:
        store = Unforeseen(str(job.folder))
    told = validate(job, store, "1-1-1", "1-1-2")
    assert [word.id for word in told if word.over] == ["1-1-1", "1-1-2"]


def test_a_checkpoint_that_was_dropped_keeps_nobody_waiting(
    job: Job, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its upload never came, and what was reported after it is on storage."""
    monkeypatch.setattr(queue_of_rank_0, "LOOK_AGAIN_S", (3600.0, 3600.0))
    (job.folder / layout.manifest_key(CheckpointId(1, 1, 1))).unlink()
    told = validate(job, job.store, "1-1-1")
    assert told == [Validated("1-1-1"), Validated("1-1-1", over=True)]
    assert statuses(job) == {"1-1-1": validations.FAILED}
    assert "1-1-1 is not validated: it was dropped or removed" in capsys.readouterr().err


def test_an_attempt_that_validates_nothing_gives_up_what_others_left_with_a_word(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    for n, status in ((1, validations.PENDING), (2, validations.VALIDATED)):
        validations.write(job.store, CheckpointId(1, 1, n), Validation(status, {"a": 0.5}, {"timeout_s": 3.0}))
    told: list[Validated] = []
    give_up(job.store, 1, told.append)
    assert told == [Validated("1-1-1", over=True)]
    assert statuses(job) == {"1-1-1": validations.FAILED, "1-1-2": validations.VALIDATED}
    assert "1-1-1 was to be validated" in capsys.readouterr().err
    give_up(job.store, 1, told.append)
    assert len(told) == 1 and not capsys.readouterr().err


def test_a_storage_that_refuses_keeps_no_training_from_its_end(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    validations.write(job.store, CheckpointId(1, 1, 1), Validation(validations.PENDING))
    told: list[Validated] = []
    give_up(Refusing(job.folder, 0, 1), 1, told.append)
    assert not told and "cannot be given up: the disk is full" in capsys.readouterr().err
