"""What this machine remembers of its jobs: records that may be damaged, output that is bounded and compressed."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from trainjob.checkpoint.reading.runs import claim, write_end
from trainjob.checkpoint.stores.opening import open_store
from trainjob.cli.local.follow import Tail
from trainjob.launch.local import lock
from trainjob.launch.local.lock import JobLock
from trainjob.launch.local.registry import output, records
from trainjob.launch.local.registry.output import Keeper
from trainjob.launch.local.registry.records import Record, Unreadable


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def record(tmp_path: Path, name: str = "digits", **given: object) -> Record:
    folder = tmp_path / "store" / "default" / name
    folder.mkdir(parents=True, exist_ok=True)
    fields = {"name": name, "namespace": "default", "folder": str(folder), "started": 5.0, **given}
    return Record(**fields)  # type: ignore[arg-type]


def test_a_record_comes_back_as_it_was_written(tmp_path: Path, state: Path) -> None:
    one = record(tmp_path, command=("tj", "run", "x.py"), pid=7, job={"metadata": {"name": "digits"}})
    records.write(one)
    assert records.find_all() == ([one], [])
    assert os.stat(state / "trainjob" / "jobs" / one.id).st_mode & 0o777 == 0o700
    records.forget(one)
    assert records.find_all() == ([], [])
    assert Path(str(one.folder)).is_dir(), "its data are not the record's"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"version": 99}',
        '{"version": 1, "name": 5}',
        '{"version": 1, "name": "x", "job": []}',
        '{"version": 1, "name": "x", "namespace": "default", "folder": null, "outcome": "Fine"}',
        "\xff\x00",
    ],
)
def test_a_damaged_record_is_told_and_takes_no_other_along(tmp_path: Path, text: str) -> None:
    records.write(record(tmp_path))
    hurt = record(tmp_path, "hurt")
    records.write(hurt)
    path = Path(records.folder_of(hurt.id)) / records.FILE
    path.write_bytes(text.encode("latin-1"))
    good, damaged = records.find_all()
    assert [each.name for each in good] == ["digits"] and [each.path for each in damaged] == [str(path)]
    assert isinstance(records.read(str(path)), Unreadable)
    records.write(hurt)  # as its next run does
    assert len(records.find_all()[0]) == 2


def test_a_job_without_storage_has_a_record_that_is_read() -> None:
    written = Record(name="x", namespace="default", folder=None, pid=7, started=1.0, outcome="Complete")
    records.write(written)
    assert records.find_all() == ([written], [])


def test_who_runs_is_told_by_the_lock_and_not_by_the_record(tmp_path: Path) -> None:
    me = {"pid": os.getpid(), "born": lock.started(os.getpid())}
    one = record(tmp_path, **me)
    assert one.state == records.KILLED, "nobody holds the name"
    with JobLock(str(one.folder)):
        assert one.state == records.RUNNING
        assert record(tmp_path, pid=os.getpid(), born="1").state == records.ENDING, "another process with that number"
        assert record(tmp_path, **me, outcome="Failed").state == "Failed"
    assert one.state == records.KILLED
    assert Record(name="x", namespace="default", folder=None, **me).state == records.RUNNING  # type: ignore[arg-type]


def test_a_launcher_that_ends_while_its_record_is_looked_at_was_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last words were written after the record was read, and before the lock is asked for."""
    read = record(tmp_path, pid=os.getpid(), born=lock.started(os.getpid()))
    held = lock.held

    def ended_meanwhile(folder: str) -> bool:
        records.write(replace(read, outcome=records.STOPPED))
        return held(folder)

    monkeypatch.setattr(lock, "held", ended_meanwhile)
    assert read.state == records.STOPPED
    another = replace(read, started=read.started - 1)
    assert another.state == records.KILLED, "what the newest start wrote is none of an earlier one's"


COMPLETE = {"type": "Complete", "status": "True"}
FAILED = {"type": "Failed", "status": "True"}


@pytest.mark.parametrize(
    ("conditions", "state"),
    [
        ([COMPLETE], "Complete"),
        ([{"type": "Complete", "status": "False"}, FAILED], "Failed"),
        ([{"type": "Failed", "status": "False"}], records.KILLED),
        (["damaged", {"status": "True"}], records.KILLED),
        ("damaged", records.KILLED),
    ],
)
def test_a_job_that_was_over_when_its_launcher_was_killed_is_what_its_status_says(
    tmp_path: Path, conditions: object, state: str
) -> None:
    one = record(tmp_path, job={"status": {"conditions": conditions}})
    assert one.state == state and records.as_it_ended(one).outcome == state


def test_a_run_that_its_workers_completed_is_complete_though_its_launcher_wrote_nothing_more(tmp_path: Path) -> None:
    """Killed as they wrote that, or its state folder was full."""
    one = record(tmp_path, run=2)
    assert one.state == records.KILLED
    write_end(open_store(str(one.folder)), 1, {})
    assert one.state == records.KILLED, "another run's"
    write_end(open_store(str(one.folder)), 2, {})
    assert one.state == "Complete" and records.as_it_ended(one).outcome == "Complete"
    assert record(tmp_path).state == records.KILLED, "nobody knows which run it was"
    assert replace(one, outcome=records.STOPPED).state == records.STOPPED
    with JobLock(str(one.folder)):
        assert one.state == records.ENDING, "they store something still"


def test_a_run_whose_number_came_after_its_launchers_last_word_is_the_one_that_its_job_claimed(tmp_path: Path) -> None:
    """A job that is done within a second of its start."""
    one = record(tmp_path, job={"metadata": {"uid": "uid-1"}})
    store = open_store(str(one.folder))
    assert (one.number, one.state) == (None, records.KILLED)
    write_end(store, claim(store, "uid-0", "auto", []).run, {})
    assert (one.number, one.state) == (None, records.KILLED), "another job's"
    claim(store, "uid-1", "auto", [])
    assert (one.number, one.state) == (2, records.KILLED)
    write_end(store, 2, {})
    assert one.state == "Complete"
    kept = records.as_it_ended(one)
    claim(store, "uid-2", "auto", [])
    assert (kept.number, kept.state) == (2, "Complete"), "also once another run is the newest"
    (tmp_path / "store/default/digits/runs/3.json").chmod(0o600)
    (tmp_path / "store/default/digits/runs/3.json").write_text("damaged")
    assert one.number is None


def test_what_a_launcher_wrote_of_its_job_as_its_record_was_looked_at_counts(tmp_path: Path) -> None:
    read = record(tmp_path)
    records.write(replace(read, job={"status": {"conditions": [COMPLETE]}}))
    assert read.state == "Complete"


def test_a_bucket_is_not_asked_how_a_job_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be slow, or away, and `tj list` asks for every job."""
    monkeypatch.chdir(tmp_path)
    folder = "s3://bucket/runs/default/digits"
    (tmp_path / folder / "runs").mkdir(parents=True)
    (tmp_path / folder / "runs" / "1.end.json").touch()  # never taken for a path either
    assert record(tmp_path, folder=folder, run=1).state == records.KILLED
    assert record(tmp_path, folder=folder, run=1, job={"status": {"conditions": [FAILED]}}).state == "Failed"


def test_a_launcher_whose_lock_only_it_can_see_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service with a /tmp of its own. One that let go of it has ended its job, though it lives."""
    one = record(tmp_path, pid=os.getpid(), born=lock.started(os.getpid()))
    (tmp_path / "own").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(lock, "FOLDER", str(tmp_path / "own"))
        held = JobLock(str(one.folder))
    assert not lock.held(str(one.folder)) and one.state == records.RUNNING
    held.release()
    assert one.state == records.KILLED


def test_a_relative_state_home_does_not_count() -> None:
    assert records.state_folder({"XDG_STATE_HOME": "here"}) == os.path.expanduser("~/.local/state/trainjob")


def test_output_is_kept_by_attempt_and_compressed_once_that_is_over(tmp_path: Path) -> None:
    folder = tmp_path / "output"
    keeper = Keeper(str(folder), 0.0)
    keeper.line("r00 | one", 1)
    keeper.line("r00 | two", 2)
    first, second = output.pieces(str(folder))
    assert first.path.endswith("-1.log.gz") and second.path.endswith("-2.log")
    keeper.line("r00 | \udce4", 2)
    keeper.close()
    assert [list(output.lines(piece)) for piece in output.pieces(str(folder))] == [
        ["r00 | one"],
        ["r00 | two", "r00 | ?"],
    ]
    assert keeper.trouble is None and all(path.name.endswith(".gz") for path in folder.iterdir())


def test_of_much_output_the_end_is_kept(tmp_path: Path) -> None:
    keeper = Keeper(str(tmp_path), 0.0, limit=100)
    for number in range(100):
        keeper.line(f"{number:09d}", 1)
    keeper.close()
    kept = [line for piece in output.pieces(str(tmp_path)) for line in output.lines(piece)]
    assert kept == [f"{number:09d}" for number in range(88, 100)]


def test_of_many_attempts_the_newest_stay_and_a_killed_launchers_is_compressed(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"20260102-00000{number}.000-1.log").write_text(f"{number}\n")
    (tmp_path / "20260102-000004.000-1.log.gz.77.part").write_text("cut off")
    output.prune(str(tmp_path), 2)
    assert [piece.path[-6:] for piece in output.pieces(str(tmp_path))] == ["log.gz", "log.gz"]
    assert [list(output.lines(piece)) for piece in output.pieces(str(tmp_path))] == [["3"], ["4"]]


def test_a_compression_that_was_cut_off_shows_each_line_once(tmp_path: Path) -> None:
    (tmp_path / "20260102-000000.000-1.log").write_text("one\ntwo\n")
    with gzip.open(tmp_path / "20260102-000000.000-1.log.gz", "wb") as file:
        file.write(b"one\ntwo\n")
    (only,) = output.pieces(str(tmp_path))
    assert list(output.lines(only)) == ["one", "two"]


def test_runs_that_begin_in_one_second_have_output_of_their_own(tmp_path: Path) -> None:
    for started in (1000.25, 1000.75, 1001.0):
        keeper = Keeper(str(tmp_path), started)
        keeper.line(f"of {started}", 1)
        keeper.close()
    of_each = [output.of_run(str(tmp_path), started) for started in (1000.25, 1000.75, 1001.0)]
    assert [[*output.lines(piece)] for (piece,) in of_each] == [["of 1000.25"], ["of 1000.75"], ["of 1001.0"]]
    assert [piece for (piece,) in of_each] == output.pieces(str(tmp_path)), "in the order in which they began"


def test_output_goes_on_where_it_was_once_its_volume_is_there_again(tmp_path: Path) -> None:
    for line in ("before", "after", "after it went once more"):
        keeper = Keeper(str(tmp_path), 1000.0)
        keeper.line(line, 1)
    keeper.close()
    (piece,) = output.pieces(str(tmp_path))
    assert list(output.lines(piece)) == ["before", "after", "after it went once more"]


def test_a_full_disk_ends_the_keeping_and_not_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = Keeper(str(tmp_path), 0.0)
    keeper.line("one", 1)
    full = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    monkeypatch.setattr(keeper, "_file", full)
    keeper.line("two", 1)
    assert keeper.trouble is not None and "No space left" in keeper.trouble
    keeper.line("three", 2)
    keeper.close()


def test_following_sees_each_line_once_through_rotation_compression_and_attempts(tmp_path: Path) -> None:
    keeper, tail = Keeper(str(tmp_path), 0.0, limit=40), Tail(str(tmp_path), output.stamp(0.0))
    seen: list[tuple[int, str]] = []
    for number in range(20):
        attempt = 1 + number // 9
        keeper.line(f"line {number:04d}", attempt)
        if number % 2:
            seen += tail.poll()
    keeper.close()
    seen += tail.poll()
    assert seen == [(1 + number // 9, f"line {number:04d}") for number in range(20)]


def test_what_is_written_is_json_that_others_can_read(tmp_path: Path) -> None:
    one = record(tmp_path)
    records.write(one)
    found = json.loads((Path(records.folder_of(one.id)) / records.FILE).read_text())
    assert found["version"] == 1 and found["name"] == "digits"
