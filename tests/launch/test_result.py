"""What a run left, as `Result` shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.checkpoint import Job
from trainjob import Checkpoint, Result
from trainjob.checkpoint.choice import inventory
from trainjob.checkpoint.choice.settle import settle
from trainjob.checkpoint.publishing.retention import Policy
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.stores.path_store import PathStore
from trainjob.launch.errors import ConfigError, LaunchError
from trainjob.launch.job import LOCAL_NAMESPACE, job_name


def made(*losses: float) -> Result:
    return Result(path="/nowhere", best_checkpoints=[(Checkpoint(f"/at/{x}"), {"loss": x}) for x in losses])


def test_one_made_by_hand_is_asked_for_its_best() -> None:
    result = made(3.0, 1.0, 2.0)
    assert result.get_best_checkpoint("loss", "min") == Checkpoint("/at/1.0")
    assert result.get_best_checkpoint("loss", "max") == Checkpoint("/at/3.0")
    assert made().get_best_checkpoint("loss", "min") is None


def test_a_metric_that_no_checkpoint_has_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(ConfigError, match=r"metric='accuracy'.*there are: \['loss'\]"):
        made(1.0).get_best_checkpoint("accuracy", "max")
    with pytest.raises(ConfigError, match="mode='best'"):
        made(1.0).get_best_checkpoint("loss", "best")


def test_handles_of_one_place_are_equal() -> None:
    assert Checkpoint("/at/1") == Checkpoint("/at/1") != Checkpoint("/at/2")
    assert len({Checkpoint("/at/1"), Checkpoint("/at/1")}) == 1 and Checkpoint("/at/1") != "/at/1"


def test_metrics_are_those_of_the_checkpoint_and_the_best_come_last(tmp_path: Path) -> None:
    job = Job(tmp_path)
    settle(job.store, "a", "auto", [])
    for index, loss in enumerate((0.3, 0.1, 0.2, 0.5), 1):
        job.save(f"1-1-{index}", metrics={"loss": loss})
    result = Result.from_path(job.store.uri())
    assert [m["loss"] for _, m in result.best_checkpoints] == [0.3, 0.1, 0.2, 0.5], "in the order of the reports"
    inventory.write_policy(job.store, 1, Policy(2, "loss", "min"))
    result = Result.from_path(job.store.uri())
    assert [m["loss"] for _, m in result.best_checkpoints] == [0.2, 0.1]
    assert result.metrics == {"loss": 0.5} and result.checkpoint is not None and result.checkpoint.id == "1-1-4"


@pytest.mark.parametrize("name", ["My_Run=1", "digits", "Run A"])
def test_the_name_that_was_given_finds_the_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / LOCAL_NAMESPACE / job_name(name)
    folder.mkdir(parents=True)
    settle(PathStore(str(folder)), "a", "auto", [])
    found = Result.from_path(tmp_path / name)
    assert found.path == Result.from_path(found.path).path and job_name(name) in found.path


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="give <storage path>/<name>"):
        Result.from_path(tmp_path / "nothing")


def test_a_run_that_goes_on_has_the_checkpoints_of_the_runs_before(tmp_path: Path) -> None:
    job = Job(tmp_path)
    settle(job.store, "a", "auto", [])
    for index, loss in ((1, 0.3), (2, 0.1)):
        job.save(f"1-1-{index}", metrics={"loss": loss})
    settle(job.store, "b", "auto", [])
    assert [c.id for c, _ in Result.from_path(job.store.uri()).best_checkpoints] == ["1-1-1", "1-1-2"]
    job.save("1-1-3", metrics={"loss": 0.0})  # of a leftover process: the second run does not go on from it
    job.save("2-1-3", metrics={"loss": 0.2})
    settle(job.store, "c", "auto", [])
    inventory.write_policy(job.store, 3, Policy(2, "loss", "min"))
    result = Result.from_path(job.store.uri())
    assert [c.id for c, _ in result.best_checkpoints] == ["2-1-3", "1-1-2"]
    assert result.checkpoint is not None and result.checkpoint.id == "2-1-3" and result.metrics == {"loss": 0.2}
    settle(job.store, "d", "none", [])
    assert Result.from_path(job.store.uri()).best_checkpoints == [], "it began anew"


def reported(job: Job, run: int, attempt: int, start: int, *checkpoints: str | None) -> None:
    """The history of an attempt that resumed at that position: one report for each, with its checkpoint or none."""
    rows: list[dict[str, Any]] = [{"kind": "start", "position": start}]
    for number, id_ in enumerate(checkpoints, 1):
        row = {"kind": "report", "position": start + number, "step": start + number, "metrics": {"loss": run}}
        rows.append({**row, "checkpoint": id_, "run": run, "attempt": attempt})
        rows.append({"kind": "log", "position": start + number, "step": start + number, "metrics": {}})
    job.store.put(layout.history_key(run, attempt), "".join(json.dumps(row) + "\n" for row in rows).encode())


def told(result: Result) -> list[tuple[int, int]]:
    return [(row["run"], row["position"]) for row in result.rows]


def test_a_run_that_goes_on_has_the_reports_of_the_runs_before(tmp_path: Path) -> None:
    job = Job(tmp_path)
    settle(job.store, "a", "auto", [])
    job.save("1-1-2")
    reported(job, 1, 1, 0, None, "1-1-2", None, None)
    settle(job.store, "b", "auto", [])
    assert told(Result.from_path(job.store.uri())) == [(1, 1), (1, 2)], "the rest is to be done again"
    reported(job, 2, 1, 2, None, "2-1-2")
    job.save("2-1-2", position=4)
    settle(job.store, "c", "auto", [])
    reported(job, 3, 1, 4, None)
    result = Result.from_path(job.store.uri())
    assert told(result) == [(1, 1), (1, 2), (2, 3), (2, 4), (3, 5)], "what was done again counts as it was done then"
    settle(job.store, "d", "none", [])
    reported(job, 4, 1, 0, None)
    assert told(Result.from_path(job.store.uri())) == [(4, 1)], "it began anew"


def test_a_run_that_goes_on_from_an_overtaken_checkpoint_has_the_reports_that_led_to_it(tmp_path: Path) -> None:
    job = Job(tmp_path)
    settle(job.store, "a", "auto", [])
    reported(job, 1, 1, 0, "1-1-1", "1-1-2")
    reported(job, 1, 2, 1, None, "1-2-2", None)
    job.save("1-1-2")
    settle(job.store, "b", "auto", [])  # those of the second attempt are gone
    reported(job, 2, 1, 2, None)
    found = Result.from_path(job.store.uri())
    assert [row["checkpoint"] for row in found.rows] == ["1-1-1", "1-1-2", None] and told(found)[-1] == (2, 3)


def test_a_run_that_goes_on_from_elsewhere_has_its_own(tmp_path: Path) -> None:
    job = Job(tmp_path)
    settle(job.store, "a", "auto", [])
    job.save("1-1-1")
    settle(job.store, "b", str(job.path("1-1-1")), [])
    job.save("2-1-2")
    assert [c.id for c, _ in Result.from_path(job.store.uri()).best_checkpoints] == ["2-1-2"]


def test_an_older_run_whose_checkpoints_cannot_be_told_hides_no_others(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for run, uid in ((1, "a"), (2, "b")):
        settle(job.store, uid, "auto", [])
        job.save(f"{run}-1-{run}")
    settle(job.store, "c", "auto", [])
    (Path(job.store.uri()) / "runs" / "2.json").write_text("torn")
    result = Result.from_path(job.store.uri())
    assert [c.id for c, _ in result.best_checkpoints] == ["2-1-2"], "what run 2 went on from is not known"
