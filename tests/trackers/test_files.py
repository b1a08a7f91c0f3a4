"""CSV and TensorBoard files: what lies there after attempts that do steps again, and after another start of the job."""

from __future__ import annotations

import csv
import os
import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trackers.test_feed import CONTEXT, reported
from trainjob.session.errors import TrainJobError
from trainjob.trackers import CSVLogger, MLflowLogger, TensorBoardLogger, Tracker, event_file, tracker


def record(one: Tracker, *reports: tuple[int, int], **metrics: float) -> None:
    for position, attempt in reports:
        one.on_report(CONTEXT, reported(position, attempt, **(metrics or {"loss": float(10 * attempt + position)})))
    one.after_run(CONTEXT, None)


def table(folder: Path) -> list[dict[str, str]]:
    with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_lines_of_steps_done_again_are_replaced(tmp_path: Path) -> None:
    record(CSVLogger(tmp_path), (1, 1), (2, 1), (3, 1), (2, 2), (3, 2))
    assert [(row["report"], row["step"], row["attempt"], row["loss"]) for row in table(tmp_path)] == [
        ("1", "10", "1", "11.0"), ("2", "20", "2", "22.0"), ("3", "30", "2", "23.0")
    ]  # fmt: skip


def test_another_start_goes_on_with_the_file_and_a_new_metric_is_a_new_column(tmp_path: Path) -> None:
    record(CSVLogger(tmp_path), (1, 1), (2, 1))
    record(CSVLogger(tmp_path), (2, 1), (3, 1), accuracy=0.5)
    rows = table(tmp_path)
    assert [(row["report"], row["loss"], row["accuracy"]) for row in rows] == [
        ("1", "11.0", ""), ("2", "", "0.5"), ("3", "", "0.5")
    ]  # fmt: skip


def test_a_training_that_begins_anew_takes_the_file(tmp_path: Path) -> None:
    record(CSVLogger(tmp_path), (1, 1), (2, 1))
    record(CSVLogger(tmp_path), (1, 1))
    assert [row["report"] for row in table(tmp_path)] == ["1"]


@pytest.mark.parametrize("torn", ["3,30,,1003.0,1,13.0", "2,20", "1", "x"])
def test_a_line_that_a_kill_has_torn_is_no_report(tmp_path: Path, torn: str) -> None:
    record(CSVLogger(tmp_path), (1, 1), (2, 1))
    with open(tmp_path / "metrics.csv", "a", encoding="utf-8") as file:
        file.write(torn)
    record(CSVLogger(tmp_path), (4, 1))
    assert [row["report"] for row in table(tmp_path)] == ["1", "2", "4"]


def test_a_line_that_is_torn_within_a_character_is_no_report(tmp_path: Path) -> None:
    record(CSVLogger(tmp_path), (1, 1))
    with open(tmp_path / "metrics.csv", "ab") as file:
        file.write("2,ü".encode()[:-1])
    record(CSVLogger(tmp_path), (2, 1))
    assert [row["report"] for row in table(tmp_path)] == ["1", "2"]


@contextmanager
def room(path: Path, size: int) -> Iterator[None]:
    """No file takes more bytes than this one has, and `size` more: then writing fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(path) + size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("more", [{}, {"loss": 1.0, "other": 1.0}], ids=["", "another column"])
@pytest.mark.parametrize("size", [1, 45, 70])
def test_what_a_full_disk_took_of_a_write_is_not_there_twice(tmp_path: Path, size: int, more: dict[str, float]) -> None:
    """45 bytes are more than a line."""
    one = CSVLogger(tmp_path)
    one.open(CONTEXT, reported(1))
    one.write([reported(1)])
    with room(tmp_path / "metrics.csv", size), pytest.raises(OSError):
        one.write([reported(2), reported(3), reported(4)])
    one.write([reported(2), reported(3, **more), reported(4)])
    assert [row["report"] for row in table(tmp_path)] == ["1", "2", "3", "4"]


def test_a_table_that_is_taken_away_begins_again_with_its_head(tmp_path: Path) -> None:
    one = CSVLogger(tmp_path)
    one.open(CONTEXT, reported(1))
    one.write([reported(1)])
    (tmp_path / "metrics.csv").unlink()
    one.write([reported(2)])
    assert [(row["report"], row["loss"]) for row in table(tmp_path)] == [("2", "0.5")]


STRANGE = [{"n": 10**400}, {"n": -(10**400)}, {"\ud800": 1.0}, {"file": "a\udcff"}, {"text": "x" * 200_000}]
"""Metrics that report() takes."""


@pytest.mark.parametrize("metrics", STRANGE, ids=["large", "small", "name", "text", "long"])
@pytest.mark.parametrize("kind", [CSVLogger, TensorBoardLogger])
def test_strange_metrics_hold_up_no_tracker(
    tmp_path: Path, kind: type[Tracker], metrics: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    one = kind(tmp_path)  # type: ignore[call-arg]
    for report in (reported(1), reported(2, **metrics), reported(3, other=1.0), reported(4, 2, **metrics)):
        one.on_report(CONTEXT, report)
    one.after_run(CONTEXT, None)
    assert capsys.readouterr().err == ""


def test_a_step_that_no_tracker_counts_to_is_the_reports_number() -> None:
    assert [tracker.step_of(replace(reported(7), step=step)) for step in (2**63, -(2**63), 2**63 - 1, None)] == [
        7, 7, 2**63 - 1, 7
    ]  # fmt: skip


def test_event_records_are_framed_with_the_checksum_that_readers_compute() -> None:
    # RFC 3720, B.4: CRC-32C of 32 zero bytes, and of 123456789 (the polynomial's check value).
    assert event_file.crc32c(bytes(32)) == 0x8A9136AA
    assert event_file.crc32c(b"123456789") == 0xE3069283
    framed = event_file.record(b"abc")
    assert (struct.unpack("<Q", framed[:8])[0], framed[12:15], len(framed)) == (3, b"abc", 19)


def records(data: bytes) -> Iterator[bytes]:
    """As a reader has them: one whose checksum is wrong is the last."""
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        inside = data[12 : 12 + length]
        assert data[: 16 + length] == event_file.record(inside)
        yield inside
        data = data[16 + length :]


@pytest.mark.parametrize("size", [0, 1, 60])
def test_what_a_full_disk_took_of_events_hides_none_of_those_that_follow(tmp_path: Path, size: int) -> None:
    one = TensorBoardLogger(tmp_path)
    one.open(CONTEXT, reported(1))
    (path,) = tmp_path.iterdir()
    with room(path, size), pytest.raises(OSError):
        one.write([reported(1), reported(2)])
    one.write([reported(1), reported(2)])
    one.close(None)
    assert len(list(records(path.read_bytes()))) == 4  # the version, the start, and two reports


def test_each_start_has_an_event_file_of_its_own(tmp_path: Path) -> None:
    record(TensorBoardLogger(tmp_path), (1, 1))
    record(TensorBoardLogger(tmp_path), (2, 1), loss=1e300)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2 and all("tfevents" in file.name for file in files)


def test_a_library_that_is_missing_is_one_sentence_where_the_logger_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TrainJobError, match=r"^mlflow is not installed here: pip install 'mlflow-skinny'$"):
        MLflowLogger()


def test_files_are_beside_the_checkpoints_or_below_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tracker.folder_of(None, CONTEXT, "tensorboard") == "/nowhere/default/job/tensorboard"
    for elsewhere in ("team/job", "s3://bucket/default/job"):
        assert tracker.folder_of(None, replace(CONTEXT, path=elsewhere), "mlruns") == str(tmp_path / "job" / "mlruns")
    assert tracker.folder_of("here", CONTEXT, "x") == str(tmp_path / "here")


def test_a_password_in_a_servers_uri_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker.importlib.util, "find_spec", lambda name: object())
    assert MLflowLogger("https://me:secret@host:5000/a").place(CONTEXT) == "https://host:5000/a"
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert MLflowLogger().place(CONTEXT) == tracker.folder_of(None, CONTEXT, "mlruns")
