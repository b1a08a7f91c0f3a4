"""The follower hands each report out once, in order, and its checkpoint once that is committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainjob.launch.outcome.reports import Follower, Report


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[int, list[dict[str, Any]]] = {}

    def report(self, attempt: int, x: int, checkpoint: str | None = None, kind: str = "report") -> None:
        self.rows.setdefault(attempt, []).append(
            {"kind": kind, "metrics": {"x": x}, "checkpoint": checkpoint, "position": x}
        )
        (self.path / "history").mkdir(exist_ok=True)
        text = "".join(json.dumps(row) + "\n" for row in self.rows[attempt])
        (self.path / "history" / f"1-{attempt}.jsonl").write_text(text)

    def commit(self, identity: str) -> None:
        own = self.path / "checkpoints" / identity / ".trainjob"
        own.mkdir(parents=True)
        (own / "manifest.json").write_text("{}")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def shown(reports: list[Report]) -> list[tuple[int, str | None]]:
    return [(r.by_rank[0]["x"], r.checkpoint.id if r.checkpoint else None) for r in reports]


def test_reports_come_once_and_log_rows_never(folder: Folder) -> None:
    follower = Follower(str(folder.path))
    assert follower.poll(None, 1) == []
    assert follower.poll(1, 1) == []
    folder.report(1, 1)
    folder.report(1, 9, kind="log")
    assert shown(follower.poll(1, 1)) == [(1, None)]
    folder.report(1, 2)
    assert shown(follower.poll(1, 1)) == [(2, None)]
    assert follower.poll(1, 1) == []


def test_metrics_come_by_rank_where_they_are_kept(folder: Folder) -> None:
    folder.report(1, 1)
    folder.rows[1][-1]["ranks"] = [{"x": 1}, {"x": "inf"}]
    folder.report(1, 2)
    first, second = Follower(str(folder.path)).poll(1, 1)
    assert first.by_rank == [{"x": 1}, {"x": "inf"}] and second.by_rank == [{"x": 2}]


def test_a_report_waits_for_its_checkpoint_and_so_do_those_behind_it(folder: Folder) -> None:
    follower = Follower(str(folder.path))
    folder.report(1, 1, "1-1-1")
    folder.report(1, 2)
    assert follower.poll(1, 1) == []
    folder.commit("1-1-1")
    assert shown(follower.poll(1, 1)) == [(1, "1-1-1"), (2, None)]


def test_a_checkpoint_that_was_dropped_is_not_waited_for(folder: Folder) -> None:
    follower = Follower(str(folder.path))
    folder.report(1, 1, "1-1-1")
    folder.report(1, 2, "1-1-2")
    folder.report(1, 3, "1-1-3")
    folder.commit("1-1-2")
    assert shown(follower.poll(1, 1)) == [(1, None), (2, "1-1-2")]
    assert shown(follower.poll(1, 1, final=True)) == [(3, None)]


def test_attempts_follow_each_other(folder: Folder) -> None:
    follower = Follower(str(folder.path))
    folder.report(1, 1, "1-1-1")
    folder.report(3, 2)
    assert shown(follower.poll(1, 3)) == [(1, None), (2, None)]


def test_a_torn_line_is_left_for_the_next_look(folder: Folder) -> None:
    follower = Follower(str(folder.path))
    folder.report(1, 1)
    path = folder.path / "history" / "1-1.jsonl"
    whole = path.read_text()
    path.write_text(whole + '{"kind": "rep')
    assert shown(follower.poll(1, 1)) == [(1, None)]
    folder.report(1, 2)
    assert shown(follower.poll(1, 1)) == [(2, None)]


def test_the_segments_of_a_long_attempt_are_one(folder: Folder) -> None:
    """Also where a report's checkpoint was dropped and the next one that is stored stands in the next segment."""
    follower = Follower(str(folder.path))
    folder.report(1, 1)
    assert shown(follower.poll(1, 1)) == [(1, None)]
    folder.report(1, 2, "1-1-2")
    second = folder.path / "history" / "1-1.1.jsonl"
    second.write_text(json.dumps({"kind": "report", "metrics": {"x": 3}, "checkpoint": "1-1-3"}) + "\n")
    assert follower.poll(1, 1) == []
    folder.commit("1-1-3")
    assert shown(follower.poll(1, 1)) == [(2, None), (3, "1-1-3")]
    second.write_text(second.read_text() + json.dumps({"kind": "report", "metrics": {"x": 4}}) + "\n")
    assert shown(follower.poll(1, 1)) == [(4, None)]
