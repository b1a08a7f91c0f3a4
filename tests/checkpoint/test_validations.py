"""What validations measured counts for whoever ranks or lists checkpoints."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from support.checkpoint import Interposed, Job
from trainjob.checkpoint.choice import catalogue, inventory
from trainjob.checkpoint.choice.settle import settle
from trainjob.checkpoint.publishing.retention import Policy
from trainjob.checkpoint.publishing.retire import Retainer
from trainjob.checkpoint.reading import validations
from trainjob.checkpoint.reading.validations import Validation
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.storage_child.operations import OPERATIONS
from trainjob.checkpoint.stores.store import Store


@pytest.fixture
def job(tmp_path: Path, any_store: Store) -> Job:
    found = Job(tmp_path, any_store)
    settle(found.store, "a", "auto", [])
    for n in (1, 2, 3):
        found.save(f"1-1-{n}", metrics={"loss": n})
    return found


def measure(job: Job, n: int, status: str = validations.VALIDATED, **metrics: float) -> None:
    validations.write(job.store, CheckpointId(1, 1, n), Validation(status, metrics, {"timeout_s": None}))


def test_readers_see_the_measured_metrics_beside_the_reported_ones(job: Job) -> None:
    measure(job, 1, accuracy=0.5)
    measure(job, 2, validations.PENDING)
    found = {entry.id.index: entry for entry in inventory.look(job.store, 1)}
    assert [found[n].validation for n in (1, 2, 3)] == [validations.VALIDATED, validations.PENDING, ""]
    metrics = [dict(manifest.note.metrics) for manifest in catalogue.list_checkpoints(job.store)]
    assert metrics == [{"loss": 1, "accuracy": 0.5}, {"loss": 2}, {"loss": 3}]


def test_a_record_keeps_what_was_asked_and_numbers_that_are_none(job: Job) -> None:
    measure(job, 3, accuracy=math.nan)
    (found,) = validations.read(job.store, 1).values()
    assert found.task == {"timeout_s": None} and math.isnan(found.metrics["accuracy"])
    assert validations.read(job.store, 2) == {}


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"status": "?"}', b'{"status": "VALIDATED", "metrics": 3}'])
def test_a_record_that_makes_no_sense_is_left_out(job: Job, text: bytes) -> None:
    job.store.put(layout.validation_key(CheckpointId(1, 1, 1)), text)
    assert validations.read(job.store, 1) == {} and len(inventory.look(job.store, 1)) == 3


def test_what_was_measured_stays_whatever_a_lost_attempt_still_writes(job: Job) -> None:
    id_ = CheckpointId(1, 1, 1)
    measure(job, 1, accuracy=0.5)
    for late in (validations.FAILED, validations.TIMEOUT):
        validations.end(job.store, id_, Validation(late))
        assert validations.read(job.store, 1)[id_].metrics == {"accuracy": 0.5}
    validations.end(job.store, id_, Validation(validations.VALIDATED, {"accuracy": 0.25}))
    assert validations.read(job.store, 1)[id_].metrics == {"accuracy": 0.25}


def test_retention_ranks_by_them(job: Job) -> None:
    measure(job, 1, accuracy=0.9)
    measure(job, 2, accuracy=0.1)
    done = Retainer(job.store, 1).retain(Policy(1, "accuracy"), set(), validates=True)
    assert [str(id_) for id_ in done.removed] == ["1-1-2"], "the best by its validation stays, and the latest"
    assert done.best is not None and done.best.metrics == {"loss": 1, "accuracy": 0.9}


def test_one_that_is_being_validated_stays_however_it_ranks(job: Job) -> None:
    measure(job, 1, validations.PENDING)
    done = Retainer(job.store, 1).retain(Policy(1, "loss"), {CheckpointId(1, 1, 1)}, validates=True)
    assert [str(id_) for id_ in done.removed] == ["1-1-2"]


def test_an_agent_that_begins_anew_counts_what_was_validated_before_it_without_being_told(job: Job) -> None:
    measure(job, 1, accuracy=0.9)
    measure(job, 2, accuracy=0.1)
    done = Retainer(job.store, 1, attempt=2).retain(Policy(1, "accuracy"), set())
    assert [str(id_) for id_ in done.removed] == ["1-1-2"], "the best by its validation stays, and the latest"
    assert done.best is not None and done.best.metrics == {"loss": 1, "accuracy": 0.9}


def test_one_whose_validation_an_earlier_attempt_left_open_stays(job: Job) -> None:
    measure(job, 1, validations.PENDING)
    retainer = Retainer(job.store, 1, attempt=2)
    assert [str(id_) for id_ in retainer.retain(Policy(1, "loss"), set()).removed] == ["1-1-2"]
    measure(job, 1, validations.FAILED)
    assert [str(id_) for id_ in retainer.retain(Policy(1), set(), validates=True).removed] == ["1-1-1"]


def test_one_whose_end_could_not_be_written_is_over_for_retention_and_for_the_list(job: Job) -> None:
    measure(job, 1, validations.PENDING)
    measure(job, 3, validations.PENDING)
    over = {"run": 1, "over": ["1-1-1"]}
    listed = OPERATIONS["reported"].run(job.store, over, lambda total: None)["checkpoints"]
    assert [row.get("validation") for row in listed] == [validations.FAILED, None, validations.PENDING]
    done = Retainer(job.store, 1).retain(Policy(1), set(), validates=True, over={CheckpointId(1, 1, 1)})
    assert [str(id_) for id_ in done.removed] == ["1-1-1", "1-1-2"]


def test_a_validation_that_is_over_is_read_once(job: Job, any_store: Store) -> None:
    keys: list[str] = []

    class Noted(Interposed):
        def read(self, key: str) -> bytes | None:
            keys.append(key)
            return any_store.read(key)

    noted: Any = Noted(any_store, 0, lambda: None)
    measure(job, 1, accuracy=0.5)
    measure(job, 2, validations.PENDING)
    first = validations.read(noted, 1)
    assert set(keys) == {layout.validation_key(CheckpointId(1, 1, n)) for n in (1, 2)}
    keys.clear()
    measure(job, 2, accuracy=0.7)
    found = validations.read(noted, 1, first)
    assert keys == [layout.validation_key(CheckpointId(1, 1, 2))]
    assert found == validations.read(job.store, 1) and found[CheckpointId(1, 1, 2)].metrics == {"accuracy": 0.7}
