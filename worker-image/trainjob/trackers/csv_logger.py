"""Reports as a table in a file."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

from trainjob.launch.handover.callbacks import Report, RunContext
from trainjob.trackers import tracker

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
        rows = [self._row(report) for report in reports]
        names = dict.fromkeys(name for row in rows for name in row)
        if new := [name for name in names if name not in self._columns]:
            self._rewrite(self._lines()[0], [*self._columns, *new])
        with open(self._path, "a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns).writerows(rows)

    def _row(self, report: Report) -> dict[str, Any]:
        told = (report.position, tracker.step_of(report), report.epoch, report.time, report.attempt)
        mine = dict(zip(_FIRST, told, strict=True))
        return {**mine, **{name: value for name, value in tracker.values(report).items() if name not in mine}}

    def _lines(self) -> tuple[list[dict[str, Any]], list[str]]:
        try:
            with open(self._path, newline="", encoding="utf-8") as file:
                text = file.read()
        except FileNotFoundError:
            return [], []
        whole, end, _ = text.rpartition("\n")  # behind it is what a kill in the middle of a write has left
        reader = csv.DictReader(io.StringIO(whole + end, newline=""))
        return list(reader), list(reader.fieldnames or ())

    def _rewrite(self, rows: Sequence[Mapping[str, Any]], columns: list[str]) -> None:
        part = f"{self._path}.part"
        with open(part, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        os.replace(part, self._path)
        self._columns = columns
