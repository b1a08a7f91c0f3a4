"""Showing a running job: the face that `run` speaks to, its plain form, and which form a terminal gets.

Called from the launcher's event loop, so nothing here may wait for anything but the terminal. `changes.py` says what is
new and `panel.py` how it looks; here are only the rationing of lines and the writing.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TextIO

from trainjob.cli.changes import Change, Kind, changes, freshest
from trainjob.cli.pace import Pace

if TYPE_CHECKING:
    from trainjob_api.v1alpha1 import TrainJob

RATION_S = 2.0
"""Plain output shows progress and checkpoints at most this often; other lines are never held back."""

Clock = Callable[[], float]
"""Seconds since the epoch, as the times in a status are."""


class Display(Protocol):
    """What `run` tells."""

    def status(self, job: TrainJob) -> None:
        """The job changed."""
        ...

    def line(self, text: str) -> None:
        """A worker wrote a line, which carries its rank's prefix."""
        ...

    def note(self, text: str) -> None:
        """Something to say beside the job's own state."""
        ...

    def close(self) -> None:
        """The job is over; leave the terminal as it was."""
        ...


class Story:
    """The state that every display keeps: the last job seen, its pace, and what was said last of the rationed kinds."""

    def __init__(self, clock: Clock) -> None:
        self.job: TrainJob | None = None
        self.pace = Pace()
        self._clock = clock
        self._said: dict[Kind, float] = {}

    def goes_on(self, job: TrainJob) -> list[Change]:
        """Take in a status; what is new in it."""
        job = freshest(self.job, job)
        now, progress, attempt = self._clock(), job.status.progress, job.status.attempt
        reported = progress.last_report_time
        if attempt is not None:
            self.pace = self.pace.seen(attempt.number, reported.timestamp() if reported else now, progress.step)
        found = changes(self.job, job, self.pace, now)
        self.job = job
        return found

    def due(self, kind: Kind) -> bool:
        """Whether a line of a rationed kind may be shown now; counts it as shown."""
        if kind not in (Kind.PROGRESS, Kind.CHECKPOINT):
            return True
        now = self._clock()
        if now - self._said.get(kind, float("-inf")) < RATION_S:
            return False
        self._said[kind] = now
        return True


class PlainDisplay:
    """One line per change: the job's on standard error, the workers' on standard output."""

    def __init__(self, out: TextIO, err: TextIO, clock: Clock = time.time) -> None:
        self._out, self._err, self._clock = out, err, clock
        self._started = clock()
        self._story = Story(clock)

    def status(self, job: TrainJob) -> None:
        """Print what is new."""
        for change in self._story.goes_on(job):
            if self._story.due(change.kind):
                self.note(change.text)

    def line(self, text: str) -> None:
        """Pass it on."""
        _write(self._out, text)

    def note(self, text: str) -> None:
        """`tj  | +3.2s text`, as wide as a rank's prefix."""
        _write(self._err, f"tj  | +{self._clock() - self._started:.1f}s {text}")

    def close(self) -> None:
        """Nothing to restore."""


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text + "\n")
        stream.flush()
    except BrokenPipeError:
        # The reader went away (`| head`). The job is worth more than the lines: it goes on, unseen.
        from trainjob.cli.main import silence

        silence(stream.fileno())


def choose(*, plain: bool, environment: Mapping[str, str] | None = None) -> Display:
    """The live panel on a terminal, plain lines otherwise."""
    environment = os.environ if environment is None else environment
    if wants_panel(plain=plain, terminal=sys.stdout.isatty() and sys.stderr.isatty(), environment=environment):
        from trainjob.cli.live import LiveDisplay

        return LiveDisplay()
    return PlainDisplay(sys.stdout, sys.stderr)


def wants_panel(*, plain: bool, terminal: bool, environment: Mapping[str, str]) -> bool:
    """A terminal that can move its cursor, and nobody who asked for plain lines."""
    return terminal and not plain and not environment.get("CI") and environment.get("TERM", "") not in ("", "dumb")
