"""What of a checkpoint is shown to people: the same whoever reports it."""

from __future__ import annotations

import math
from pathlib import Path

from support.checkpoint import Job
from trainjob.checkpoint.records import shown
from trainjob.checkpoint.storage_child.operations import perform
from trainjob.checkpoint.stores.transfer import nothing
from trainjob_api import contract

METRICS = {"loss": 0.5, "val": {"loss": 0.7, "by": {"class": 1}}, "name": "x", "flag": True, "bad": math.inf}
SHOWN = {"loss": 0.5, "val.loss": 0.7, "val.by.class": 1}


def test_finite_numbers_are_shown_nested_ones_by_dotted_names() -> None:
    assert shown.metrics(METRICS) == SHOWN


def test_no_more_than_status_has_room_for() -> None:
    assert list(shown.metrics({f"m{n}": n for n in range(100)})) == [f"m{n}" for n in range(contract.METRICS_LIMIT)]


def test_the_storage_child_shows_what_the_agent_showed(tmp_path: Path) -> None:
    """Its word on the newest and the best checkpoint replaces the agent's after each commit."""
    job = Job(tmp_path)
    job.save("1-1-1", metrics=METRICS)
    request = {"run": 1, "keep": 1, "score_attribute": "loss", "protect": []}
    kept = perform({"op": "retain", "storage": job.store.uri(), **request}, nothing)
    assert kept["latest"]["metrics"] == kept["best"]["metrics"] == SHOWN


def test_a_number_from_before_does_not_stand_in_for_one_that_is_nan_now() -> None:
    """A progress keeps dotted names, and the next report has nested ones."""
    before = shown.metrics({"val": {"loss": 0.5}, "accuracy": 0.5})
    assert shown.metrics({**before, "val": {"loss": float("nan")}}) == {"accuracy": 0.5}
    assert shown.metrics({**before, "val": {"loss": 0.25}}) == {"val.loss": 0.25, "accuracy": 0.5}
