"""Reports as TensorBoard's event files."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import BinaryIO

from trainjob.launch.handover.callbacks import Report, RunContext
from trainjob.trackers import event_file, tracker
from trainjob.trackers.whole import Whole


class TensorBoardLogger(tracker.Tracker):
    """Writes the numbers of each report for TensorBoard: `tensorboard --logdir <folder>`. Needs no library here.

    What is done again after a failure takes the place of what TensorBoard has shown of these steps.

    - `folder`: where the event files are; None: `tensorboard` in the job's folder, or, where that is not on this
      machine, in ./<name>.
    - `patience_s`: for how long the end of `fit()` waits for it.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, patience_s: float = 30.0) -> None:
        super().__init__(patience_s=patience_s)
        self._folder = folder
        self._file: BinaryIO | None = None
        self._whole = Whole()

    def place(self, run_context: RunContext) -> str:
        """The folder, for `tensorboard --logdir`."""
        return tracker.folder_of(self._folder, run_context, "tensorboard")

    def open(self, run_context: RunContext, first: Report) -> None:
        """A file of its own for each start of a job, as readers sort them by the time in their names."""
        folder = self.place(run_context)
        os.makedirs(folder, exist_ok=True)
        began = time.time()
        name = f"events.out.tfevents.{int(began):010d}.{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"
        self.leave()  # of an opening that failed
        self._file = open(os.path.join(folder, name), "xb", buffering=0)  # noqa: SIM115  # until close()
        self._whole = Whole()
        self._append([event_file.version(began), event_file.restart(began, tracker.step_of(first))])

    def restart(self, first: Report) -> None:
        """What is behind it is dropped by readers."""
        self._append([event_file.restart(first.time or time.time(), tracker.step_of(first))])

    def write(self, reports: Sequence[Report]) -> None:
        """One event each."""
        self._append(
            [
                event_file.scalars(report.time or time.time(), tracker.step_of(report), tracker.numbers(report))
                for report in reports
            ]
        )

    def _append(self, events: list[bytes]) -> None:
        assert self._file is not None
        self._whole.append(self._file, event_file.framed(events))

    def leave(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self, error: BaseException | None) -> None:
        """Closes the file."""
        self.leave()
