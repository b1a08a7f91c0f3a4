"""Reading a job's folder for Result and the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.checkpoint import Job, write_tree
from trainjob.checkpoint.choice import catalogue
from trainjob.checkpoint.choice.settle import settle
from trainjob.checkpoint.errors import DamagedError, StoreError
from trainjob.checkpoint.records import layout


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_good_checkpoints_of_the_newest_run_oldest_first(job: Job) -> None:
    assert catalogue.latest_run(job.store) is None and catalogue.list_checkpoints(job.store) == []
    settle(job.store, "a", "auto", [])
    job.save("1-1-1")
    settle(job.store, "b", "auto", [])
    assert catalogue.latest_run(job.store) == 2 and catalogue.list_checkpoints(job.store) == []
    for id_ in ("2-2-1", "2-1-10", "2-1-9"):
        job.save(id_)
    job.share("2-3-1", 0)
    (job.path("2-1-10") / "empty").unlink()
    warnings: list[str] = []
    assert [str(m.id) for m in catalogue.list_checkpoints(job.store, warnings=warnings)] == ["2-1-9", "2-2-1"]
    assert len(warnings) == 1 and "empty is damaged: expected 0 bytes, found no such file" in warnings[0]
    assert [str(m.id) for m in catalogue.list_checkpoints(job.store, run=1)] == ["1-1-1"]
    claim = catalogue.read_claim(job.store, 2)
    assert claim is not None and claim.job_uid == "b" and str(claim.resumes) == "1-1-1"
    assert catalogue.read_end(job.store, 2) is None


def test_a_checkpoint_is_opened_verified(job: Job, tmp_path: Path) -> None:
    manifest = job.save("1-1-1")
    path = catalogue.checkpoint_uri(job.store, manifest.id)
    assert catalogue.open_checkpoint(path) == (manifest, path)
    (job.path("1-1-1") / "model.pt").write_bytes(b"!" * 250)
    assert catalogue.open_checkpoint(path, verify=False) == (manifest, path)
    with pytest.raises(DamagedError, match=r"model\.pt is damaged: expected crc32"):
        catalogue.open_checkpoint(path)
    with pytest.raises(StoreError, match=r"has no .trainjob/manifest.json"):
        catalogue.open_checkpoint(str(write_tree(tmp_path / "plain", {"x": b""})))


def row(kind: str, position: int, step: int) -> dict[str, Any]:
    return {"kind": kind, "position": position, "step": step}


def put(job: Job, attempt: int, *rows: dict[str, Any]) -> None:
    job.store.put(layout.history_key(1, attempt), "".join(json.dumps(r) + "\n" for r in rows).encode())


def steps(job: Job, warnings: list[str] | None = None) -> list[tuple[str, int]]:
    return [(r["kind"], r["step"]) for r in catalogue.history(job.store, 1, warnings)]


def test_rows_that_a_resume_superseded_are_dropped(job: Job) -> None:
    put(
        job,
        1,
        row("start", 0, 0),
        row("log", 0, 1),
        row("report", 1, 2),
        row("log", 1, 3),
        row("report", 2, 4),
        row("log", 2, 5),
        row("report", 3, 6),
    )
    assert [s for _, s in steps(job)] == [1, 2, 3, 4, 5, 6]
    put(job, 2, row("start", 2, 0))
    assert [s for _, s in steps(job)] == [1, 2, 3, 4]
    put(job, 2, row("start", 2, 0), row("log", 2, 50), row("report", 3, 60))
    put(job, 10, row("start", 3, 0), row("log", 3, 70))
    put(job, 9, row("start", 3, 0), row("log", 3, 69))
    assert steps(job) == [
        ("log", 1),
        ("report", 2),
        ("log", 3),
        ("report", 4),
        ("log", 50),
        ("report", 60),
        ("log", 70),
    ]
    put(job, 11, row("start", 0, 0), row("report", 1, 99))
    assert steps(job) == [("report", 99)]


def test_where_an_attempt_resumed_is_seen_without_its_own_word_too(job: Job) -> None:
    put(job, 1, row("report", 1, 1), row("report", 2, 2), row("report", 3, 3))
    put(job, 2, row("report", 2, 20))
    assert [s for _, s in steps(job)] == [1, 20]
    put(job, 3, row("log", 2, 30))
    assert [s for _, s in steps(job)] == [1, 20, 30]


def test_a_torn_line_is_passed_over(job: Job) -> None:
    job.store.put(
        "history/1-1.jsonl", b'{"kind": "report", "position": 1, "step": 1}\nnonsense\n{"kind": "log"}\n{"kind": "rep'
    )
    job.store.put("history/2-1.jsonl", b'{"kind": "report", "position": 1, "step": 7}\n')
    job.store.put("history/notes.txt", b"not ours")
    warnings: list[str] = []
    assert steps(job, warnings) == [("report", 1)]
    assert [w.split(", ")[1] for w in warnings] == [
        f"line {n} is no row of history and is passed over" for n in (2, 3, 4)
    ]
    assert catalogue.history(job.store, 3) == []


def test_names_of_segments() -> None:
    assert layout.parse_history("2-1.jsonl") == (2, 1, 0)
    assert layout.parse_history("2-1.10.jsonl") == (2, 1, 10)
    for other in ("2-1.0.jsonl", "2-1.01.jsonl", "2-1..jsonl", "2-1.1.jsonl.tmp"):
        assert layout.parse_history(other) is None
    for segment in (0, 3):
        assert layout.parse_history(layout.history_key(2, 1, segment).rpartition("/")[2]) == (2, 1, segment)


def test_the_segments_of_an_attempt_are_read_in_their_order(job: Job) -> None:
    for segment in (0, 1, 2, 10):
        row = {"kind": "report", "position": segment + 1, "step": segment, "metrics": {"loss": "NaN"}}
        job.store.put(layout.history_key(1, 1, segment), (json.dumps(row) + "\n").encode())
    rows = catalogue.history(job.store, 1)
    assert [row["step"] for row in rows] == [0, 1, 2, 10]
    assert all(row["metrics"]["loss"] != row["metrics"]["loss"] for row in rows), "NaN is a number again"
