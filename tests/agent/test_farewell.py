"""What an agent leaves in its container's termination message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.agent_rig import ROOT, Rig
from support.quick_agent import TERMINATION_LOG
from trainjob.agent.control import farewell
from trainjob_api import contract, last_word
from trainjob_api.last_word import LastWord

QUICK = [str(ROOT / "tests" / "support" / "quick_agent.py")]


def report(*ranks: dict[str, Any], **fields: Any) -> Any:
    return {
        "run": 1,
        "attempt": 2,
        "completed": False,
        "ranks": [{"state": contract.RANK_ENDED, **rank} for rank in ranks],
        **fields,
    }


def lost_peer(rank: int, at: float) -> dict[str, Any]:
    error = {"type": "RuntimeError", "message": "closed by peer", "communication": True}
    return {"rank": rank, "kind": contract.END_EXCEPTION, "exit_code": 1, "ended_at": at, "error": error}


def test_a_complete_run_says_so_and_nothing_else() -> None:
    broken = {"rank": 0, "kind": contract.END_EXIT, "exit_code": 3, "ended_at": 5.0}
    assert (
        farewell.farewell(report(broken, completed=True), 0, "the job is complete")
        == "trainjob: completed run=1 attempt=2"
    )


CHECKPOINT = {"id": "1-2-60", "step": 60, "uri": "s3://bucket/1-2-60", "time": 5.0, "bytes": 7, "metrics": {"a": 1.0}}
PROGRESS = {"position": 60, "step": 60, "metrics": {"loss": 0.25}, "time": 6.0}


def shown(**fields: Any) -> Any:
    """What a complete run's last word shows, as whoever reads it gets it."""
    line = farewell.farewell(report(completed=True, **fields), 0, "the job is complete")
    assert len(line.encode()) <= contract.TERMINATION_LIMIT
    word = last_word.from_text(line)
    assert word is not None and (word.completed, word.run, word.attempt, word.text) == (True, 1, 2, "")
    return last_word.shown_in(word.shown)


def test_of_a_complete_run_it_is_told_how_far_it_came() -> None:
    checkpoint = {name: value for name, value in CHECKPOINT.items() if name != "metrics"}
    assert shown(progress=PROGRESS, latest=CHECKPOINT, best=CHECKPOINT, checkpoint_count=3) == {
        "progress": PROGRESS,
        "latest": checkpoint,
        "best": checkpoint,
        "checkpoint_count": 3,
    }
    assert shown(progress=PROGRESS, latest=None, best=None, checkpoint_count=0) == {"progress": PROGRESS}
    assert shown(progress={**PROGRESS, "time": 0.0}) == {}, "where it resumed from is no report"


@pytest.mark.parametrize(
    ("metrics", "uri", "kept"),
    [
        (500, 100, {"metrics", "uri", "count"}),
        (950, 100, {"uri", "count"}),
        (950, 950, {"count"}),
        (0, 950, {"count"}),
    ],
    ids=["no best", "no metrics", "ids alone", "a place alone is too long"],
)
def test_what_there_is_no_room_for_is_left_out_and_the_word_stays(metrics: int, uri: int, kept: set[str]) -> None:
    checkpoint = {**CHECKPOINT, "uri": "u" * uri}
    numbers = {"m" * metrics: 1.0} if metrics else {}
    progress = {**PROGRESS, "metrics": numbers}
    found = shown(progress=progress, latest=checkpoint, best={**checkpoint, "uri": "b" * 900}, checkpoint_count=3)
    assert found["latest"]["id"] == "1-2-60" and found["progress"]["position"] == 60 and "best" not in found
    here = {name for name in ("metrics",) if name in found["progress"]}
    here |= {name for name in ("uri",) if name in found["latest"]} | (
        {"count"} if "checkpoint_count" in found else set()
    )
    assert here == kept


def test_where_there_is_no_room_at_all_it_is_complete() -> None:
    assert shown(progress=PROGRESS, latest={**CHECKPOINT, "id": "x" * 2000}) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", "[" * 100_000, '{"position": 3}'])
def test_what_is_no_such_word_shows_nothing(text: str) -> None:
    assert last_word.shown_in(text) == {}


@pytest.mark.parametrize(
    ("ranks", "line"),
    [
        ([], "code=81: nobody answers"),
        ([{"rank": 4, "kind": contract.END_OK, "exit_code": 0, "ended_at": 1.0}], "code=81: nobody answers"),
        ([{"rank": 4, "kind": contract.END_STOPPED, "signal": 9, "ended_at": 1.0}], "code=81: nobody answers"),
        (
            [{"rank": 4, "kind": contract.END_EXIT, "exit_code": 3, "ended_at": 7.5}],
            "code=81 rank=4 kind=exit exit=3 at=7.500",
        ),
        (
            [
                {"rank": 5, "kind": contract.END_SIGNAL, "signal": 9, "ended_at": 9.0},
                {"rank": 4, "kind": contract.END_SIGNAL, "signal": 11, "ended_at": 8.0},
            ],
            "code=81 rank=4 kind=signal signal=11 at=8.000",
        ),
        (
            [lost_peer(4, 1.0), {"rank": 5, "kind": contract.END_EXIT, "exit_code": 3, "ended_at": 2.0}],
            "code=81 rank=5 kind=exit exit=3 at=2.000",
        ),
        (
            [lost_peer(4, 1.0)],
            "code=81 rank=4 kind=exception exit=1 at=1.000 communication=1 type=RuntimeError: closed by peer",
        ),
    ],
)
def test_the_first_cause_is_told_else_why_the_agent_ends(ranks: list[dict[str, Any]], line: str) -> None:
    assert (
        farewell.farewell(report(*ranks), contract.EXIT_NO_COORDINATOR, "nobody answers")
        == f"trainjob: ended run=1 attempt=2 {line}"
    )


@pytest.mark.parametrize("word", [
    LastWord(True, 3, 9),
    LastWord(True, 3, 9, shown='{"progress":{"metrics":{"a  b: c":1}}}'),
    LastWord(attempt=0, code=81, text="no coordinator for 600 s, and nothing left to do"),
    LastWord(run=1, attempt=2, code=80, rank=17, kind=contract.END_EXCEPTION, exit_code=1, ended_at=1.25, communication=True, error="my.Error", text="a: b=c"),
    LastWord(run=1, attempt=2, code=80, rank=0, kind=contract.END_SIGNAL, signal=9, ended_at=1.0),
])  # fmt: skip
def test_what_is_written_is_what_is_read(word: LastWord) -> None:
    assert last_word.from_text(last_word.to_text(word)) == word


def test_one_line_within_the_limit_whatever_an_exception_says() -> None:
    error = {"type": "Evil: code=0\n", "message": "é\n" * 4000}
    line = farewell.farewell(
        report({"rank": 1, "kind": contract.END_EXCEPTION, "exit_code": 1, "ended_at": 1.0, "error": error}), 80, ""
    )
    assert len(line.encode()) <= contract.TERMINATION_LIMIT and "\n" not in line
    word = last_word.from_text(line)
    assert word is not None and (word.code, word.error) == (80, "Evil_code_0_") and word.text.startswith("é é")


@pytest.mark.parametrize(
    "text", ["", "Traceback (most recent call last):", "trainjob: finished", "xtrainjob: completed run=1", "trainjob: completed run=1\nattempt=1", "trainjob: ended run=" + "9" * 200]
)  # fmt: skip
def test_other_messages_are_no_last_word(text: str) -> None:
    assert last_word.from_text(text) is None


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    farewell.leave(str(tmp_path / "log"), "word")
    farewell.leave(str(tmp_path), "word")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "log").write_text("something longer of the user's own")
    farewell.leave(str(tmp_path / "log"), "word")
    assert (tmp_path / "log").read_text() == "word"


@pytest.mark.slow
def test_agents_on_a_cluster_leave_their_word_and_local_ones_do_not(tmp_path: Path) -> None:
    logs = {slot: tmp_path / f"log-{slot}" for slot in (0, 1)}
    for log in logs.values():
        log.touch()
    with Rig(tmp_path, script="import trainjob\ntrainjob.barrier()\n", entry=[*QUICK, "600"], agents=0) as rig:
        rig.count = 2
        rig.start(0, {TERMINATION_LOG: str(logs[0]), contract.ENV_PARENT_FD: ""})
        rig.start(1, {TERMINATION_LOG: str(logs[1])})
        rig.run(1)
        rig.wait(
            lambda: all(r["completed"] for r in rig.coordinator.reports.values()), "both know that the run is complete"
        )
        rig.exit(0)
        assert (rig.exit_code(0), rig.exit_code(1)) == (0, 0)
    assert (logs[0].read_text(), logs[1].read_text()) == ("trainjob: completed run=1 attempt=1", "")


@pytest.mark.slow
def test_an_agent_that_nobody_hears_leaves_the_first_cause(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    script = (
        "import pathlib, time\nwhile not pathlib.Path('go').exists():\n    time.sleep(0.02)\nraise "
        "ValueError('bad shape')\n"
    )
    with Rig(
        tmp_path,
        script=script,
        # Half a second alone without a rank is its end, once there is nobody to be heard: not before, while it starts.
        entry=[*QUICK, f"0.5@{tmp_path / 'job' / 'go'}"],
        agents=1,
        env={TERMINATION_LOG: str(log), contract.ENV_PARENT_FD: ""},
        spec={"prefork": contract.PREFORK_NEVER},
    ) as rig:
        rig.run(1)
        rig.wait(lambda: rig.running(0))
        rig.coordinator.stop()
        (rig.work / "go").touch()
        assert rig.exit_code(0) == contract.EXIT_NO_COORDINATOR
    word = last_word.from_text(log.read_text())
    assert word is not None and (word.run, word.attempt, word.code, word.rank, word.kind) == (
        1,
        1,
        81,
        0,
        contract.END_EXCEPTION,
    )
    assert (word.exit_code, word.error, word.text) == (1, "ValueError", "bad shape")
