"""Showing a running job: the face that `run` speaks to, its plain form, and which form a terminal gets.

Called from the launcher's event loop, so nothing here may wait for anything but the terminal. `story.py` says what is
new and due, `live.py` and `notebook.py` are the other forms.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, TextIO

from trainjob.screen import notebook
from trainjob.screen.repeats import Repeats
from trainjob.screen.story import Clock, Story
from trainjob.screen.streams import is_terminal, write
from trainjob_api.contract import ENV_VERBOSE

if TYPE_CHECKING:
    from trainjob_api.v1alpha1 import Failure, TrainJob


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


class PlainDisplay:
    """One line per change: the job's on standard error, the workers' on standard output."""

    def __init__(self, out: TextIO, err: TextIO, clock: Clock = time.time) -> None:
        self._out, self._err, self._clock = out, err, clock
        self._started = clock()
        self._story = Story(clock)

    def status(self, job: TrainJob) -> None:
        """Print what is new."""
        for change in self._story.goes_on(job):
            line = self._story.line(change)
            if line is not None:
                self.note(line)

    def line(self, text: str) -> None:
        """Pass it on."""
        write(self._out, text)

    def note(self, text: str) -> None:
        """`tj  | +3.2s text`, as wide as a rank's prefix."""
        write(self._err, f"tj  | +{self._clock() - self._started:.1f}s {text}")

    def close(self) -> None:
        """Nothing to restore."""


class SilentDisplay:
    """The workers' own lines and nothing else."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def status(self, job: TrainJob) -> None:
        """Nothing is said of it."""

    def line(self, text: str) -> None:
        """Pass it on."""
        write(self._out, text)

    def note(self, text: str) -> None:
        """Nothing is said of it."""

    def close(self) -> None:
        """Nothing to restore."""


_IN_STATUS = re.compile(
    r"agent \| (?:Checkpoint \S+ cannot be (?:stored|committed): |the job's storage is tried again: )"
)
"""What an agent writes of trouble that the status tells too, as a warning: with since when, and on standard error."""


class Once:
    """Another display, which is shown each traceback once, and trouble of storage in the job's words alone."""

    def __init__(self, display: Display) -> None:
        self._display, self._repeats = display, Repeats()
        self._failure: Failure | None = None

    def status(self, job: TrainJob) -> None:
        """Pass it on; what ended an attempt after its ranks' tracebacks."""
        if job.status.last_failure != self._failure:
            self._failure = job.status.last_failure
            for line in self._repeats.settle():
                self._display.line(line)
        if job.status.attempt is not None:
            self._repeats.attempt = job.status.attempt.number
        self._display.status(job)

    def line(self, text: str) -> None:
        """Pass on what is to be shown now."""
        if _IN_STATUS.match(text) and not isinstance(self._display, SilentDisplay):
            return
        for line in self._repeats.take(text):
            self._display.line(line)

    def note(self, text: str) -> None:
        """Pass it on, after the tracebacks that it may be about."""
        for line in self._repeats.settle():
            self._display.line(line)
        self._display.note(text)

    def has_shown(self, traceback: str, rank: int | None = None) -> int | None:
        """In which attempt its lines passed here, of that rank; None: in none."""
        return self._repeats.has_shown(traceback, None if rank is None else f"r{rank:02d}")

    def close(self) -> None:
        """Nothing is kept back at the end."""
        for line in self._repeats.release():
            self._display.line(line)
        self._display.close()


def has_shown(display: Display, job: TrainJob) -> int | None:
    """In which attempt the traceback of what ended a job was among the lines that this display was given and looked at;
    None: in none.
    """
    failure = job.status.last_failure
    if failure is None or not failure.traceback or not isinstance(display, Once):
        return None
    return display.has_shown(failure.traceback, failure.rank)


def choose(
    *, plain: bool, silent: bool = False, verbose: bool = False, environment: Mapping[str, str] | None = None
) -> Display:
    """The live panel on a terminal, a view in a notebook, plain lines otherwise; `silent`: the workers' lines alone;
    `verbose`: also those that repeat what was shown.
    """
    environment = os.environ if environment is None else environment
    display = _display(plain, silent, environment)
    return display if verbose or environment.get(ENV_VERBOSE) == "1" else Once(display)


def _display(plain: bool, silent: bool, environment: Mapping[str, str]) -> Display:
    if silent:
        return SilentDisplay(sys.stdout)
    if not plain and notebook.in_kernel():
        return notebook.NotebookDisplay()
    if wants_panel(plain=plain, terminal=is_terminal(sys.stdout) and is_terminal(sys.stderr), environment=environment):
        from trainjob.screen.live import LiveDisplay  # here: plain lines do not pay for rich

        return LiveDisplay()
    return PlainDisplay(sys.stdout, sys.stderr)


def wants_panel(*, plain: bool, terminal: bool, environment: Mapping[str, str]) -> bool:
    """A terminal that can move its cursor, and nobody who asked for plain lines."""
    return terminal and not plain and not environment.get("CI") and environment.get("TERM", "") not in ("", "dumb")
