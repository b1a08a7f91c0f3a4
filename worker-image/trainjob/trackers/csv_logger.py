"""Reports as a table in a file."""

from __future__ import annotations

import csv
import io
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from trainjob.launch.handover.callbacks import Report, RunContext
from trainjob.trackers import tracker
from trainjob.trackers.whole import Whole

_READING = threading.Lock()
_FIRST = ("report", "step", "epoch", "time", "attempt")


class CSVLogger(tracker.Tracker):
    """Writes each report as a line of `metrics.csv`.

    Its columns are `report` (its number in the training), `step`, `epoch`, `time` (seconds since the epoch), `attempt`
    and the metrics. What is done again after a failure takes the place of the lines that were there.

    - `folder`: where the file is; None: in the job's folder, or, where that is not on this machine, in ./<name>.
    - `patience_s`: for how long the end of `fit()` waits for it.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, patience_s: float = 30.0) -> None:
        super().__init__(patience_s=patience_s)
        self._folder = folder
        self._path = ""
        self._columns: list[str] = []
        self._whole = Whole()

    def place(self, run_context: RunContext) -> str:
        """The file."""
        return os.path.join(tracker.folder_of(self._folder, run_context, ""), "metrics.csv")

    def open(self, run_context: RunContext, first: Report) -> None:
        """Goes on with the file of an earlier run of this training."""
        self._path = self.place(run_context)
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        self.restart(first)

    def restart(self, first: Report) -> None:
        """Takes the lines away that are superseded."""
        rows, columns = self._lines()
        # One that is not a line of ours is nobody's either.
        kept = [row for row in rows if (row.get("report") or "").isdecimal() and int(row["report"]) < first.position]
        self._rewrite(kept, [*_FIRST, *(name for name in columns if name not in _FIRST)])

    def write(self, reports: Sequence[Report]) -> None:
        """Appends them; metrics that are new are further columns."""
        self._mend()
        rows = [self._row(report) for report in reports]
        names = dict.fromkeys(name for row in rows for name in row)
        if new := [name for name in names if name not in self._columns]:
            self._rewrite(self._lines()[0], [*self._columns, *new])
        text = io.StringIO(newline="")
        csv.DictWriter(text, self._columns).writerows(rows)
        with open(self._path, "ab", buffering=0) as file:
            self._whole.append(file, text.getvalue().encode())

    def _mend(self) -> None:
        try:
            with open(self._path, "rb+", buffering=0) as file:
                self._whole.mend(file)
        except FileNotFoundError:  # somebody has taken it away: the next one has a head again
            self._columns = []

    def _row(self, report: Report) -> dict[str, Any]:
        told = (report.position, tracker.step_of(report), report.epoch, report.time, report.attempt)
        mine = dict(zip(_FIRST, told, strict=True))
        return {**mine, **{name: value for name, value in tracker.values(report).items() if name not in mine}}

    def _lines(self) -> tuple[list[dict[str, Any]], list[str]]:
        try:
            with open(self._path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return [], []
        whole, end, _ = data.rpartition(b"\n")  # behind it is what a kill in the middle of a write has left
        with _any_length():
            reader = csv.DictReader(io.StringIO((whole + end).decode("utf-8", "replace"), newline=""))
            return list(reader), list(reader.fieldnames or ())

    def _rewrite(self, rows: Sequence[Mapping[str, Any]], columns: list[str]) -> None:
        part = f"{self._path}.part"
        with open(part, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        os.replace(part, self._path)
        self._columns, self._whole = columns, Whole()


@contextmanager
def _any_length() -> Iterator[None]:
    """Python's reader refuses a text of more than 128 KB; the limit is one for all of the program."""
    with _READING:
        before = csv.field_size_limit(sys.maxsize)
        try:
            yield
        finally:
            csv.field_size_limit(before)
