"""What lies in a job's folder: states, latest, best, in use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.checkpoint import Job
from trainjob.checkpoint.choice import catalogue, inventory
from trainjob.checkpoint.choice.settle import settle
from trainjob.checkpoint.publishing.retention import Policy
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.storage_child.operations import perform
from trainjob.checkpoint.stores.store import Store
from trainjob.checkpoint.stores.transfer import nothing


@pytest.fixture
def job(tmp_path: Path, any_store: Store) -> Job:
    """A job whose first run has begun."""
    found = Job(tmp_path, any_store)
    settle(found.store, "a", "auto", [])
    return found


def states(job: Job, run: int | None = None) -> dict[str, str]:
    return {str(entry.id): entry.state for entry in inventory.look(job.store, run)}


def test_every_folder_has_its_state(job: Job) -> None:
    for id_ in ("1-1-1", "1-1-2", "1-1-3", "1-1-4"):
        job.save(id_)
    job.share("1-1-5", 0)
    job.store.delete(layout.file_key(CheckpointId.parse("1-1-2"), "empty"))
    job.store.create(layout.damaged_key(CheckpointId.parse("1-1-3")), b'{"why": "a bit"}')
    job.store.create(layout.retired_key(CheckpointId.parse("1-1-4")), b"{}\n")
    settle(job.store, "b", "auto", [])
    job.save("2-1-1")
    assert states(job, 1) == {
        "1-1-1": inventory.GOOD,
        "1-1-2": inventory.DAMAGED,
        "1-1-3": inventory.DAMAGED,
        "1-1-4": inventory.RETIRED,
        "1-1-5": inventory.UNFINISHED,
    }
    assert list(states(job)) == [*states(job, 1), "2-1-1"]
    why = {str(entry.id): entry.why for entry in inventory.look(job.store, 1)}
    assert "empty is damaged: expected 0 bytes" in why["1-1-2"]
    assert "a bit" in why["1-1-3"]
    # What readers take is the same to everybody.
    assert [str(m.id) for m in catalogue.list_checkpoints(job.store, run=1)] == [
        id_ for id_, state in states(job, 1).items() if state == inventory.GOOD
    ]


def test_latest_and_best_are_retentions_own(job: Job) -> None:
    for n, loss in enumerate((3.0, 1.0, float("nan"), 1.0, 2.0), 1):
        job.save(f"1-1-{n}", metrics={"val": {"loss": loss}})
    entries = inventory.look(job.store, 1)
    best = inventory.best(entries, Policy(None, "val.loss", "min"))
    assert best is not None and str(best.id) == "1-1-4", "of equal ones the newest"
    assert inventory.best(entries, Policy(None, "accuracy", "max")) is None
    assert inventory.best(entries, Policy()) is None
    latest = inventory.latest(entries)
    assert latest is not None and str(latest.id) == "1-1-5"
    assert inventory.latest([]) is None


def history(job: Job, run: int, attempt: int, position: int) -> None:
    rows = [{"kind": "start", "position": position}, {"kind": "report", "position": position + 1}]
    job.store.put(layout.history_key(run, attempt), "".join(json.dumps(row) + "\n" for row in rows).encode())


def test_in_use_is_what_the_newest_attempt_started_from(job: Job) -> None:
    def used(run: int) -> str | None:
        found = inventory.in_use(job.store, run, inventory.look(job.store, run))
        return None if found is None else str(found)

    assert used(1) is None
    history(job, 1, 1, 0)
    for n in (1, 2, 3):
        job.save(f"1-1-{n}", position=n)
    assert used(1) is None, "it started from nothing"
    history(job, 1, 2, 2)
    job.save("1-2-1", position=3)
    assert used(1) == "1-1-2"
    settle(job.store, "b", "auto", [])
    assert used(2) == "1-2-1", "a run that has none of its own goes on from the run before"
    job.save("2-1-1", position=4)
    history(job, 2, 1, 3)
    assert used(2) == "1-2-1"
    job.store.create(layout.end_key(2), b"{}")
    assert used(2) is None
    history_without_start = layout.history_key(1, 3)
    job.store.put(history_without_start, b"torn")
    assert used(1) is None


def test_the_score_is_noted_where_the_next_one_finds_it(job: Job) -> None:
    assert inventory.read_policy(job.store, 1) == Policy()
    job.save("1-1-1", metrics={"loss": 0.5})
    request = {"op": "retain", "storage": job.store.uri(), "run": 1, "keep": None, "protect": []}
    perform(request, nothing)
    assert inventory.read_policy(job.store, 1) == Policy()
    perform({**request, "score_attribute": "loss", "score_order": "min"}, nothing)
    assert inventory.read_policy(job.store, 1) == Policy(None, "loss", "min")
    perform({**request, "keep": 3, "score_attribute": "loss", "score_order": "min"}, nothing)
    assert inventory.read_policy(job.store, 1) == Policy(3, "loss", "min")
    job.store.put(layout.policy_key(1), b'{"score_attribute": "loss", "keep": "many"}')
    assert inventory.read_policy(job.store, 1) == Policy(None, "loss", "max")
    job.store.put(layout.policy_key(1), b"torn")
    assert inventory.read_policy(job.store, 1) == Policy()
    assert catalogue.latest_run(job.store) == 1, "the note is no claim"
