"""What all trackers have in common: a queue and a thread of their own, and how a report becomes names and numbers.

Users derive from `Tracker` for a tracker that is not here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from trainjob.checkpoint.choice import inventory
from trainjob.integrations.needed import MissingLibraryError
from trainjob.launch.handover.callbacks import Report, RunContext, UserCallback
from trainjob.trackers.feed import Feed

_NO_STEP = 2**63


class Tracker(UserCallback):
    """An experiment tracker as a callback of `RunConfig`; derive from it for one that is not here.

    Override `write`, and of the others what you need. All are called in one thread of this tracker, beside the
    training and beside `fit()`: one that is slow, hangs or raises touches no step. What raises is called again with
    the same reports, after a pause.

    - `patience_s`: for how long the end of `fit()` waits for the reports that are still on their way.
    """

    def __init__(self, *, patience_s: float = 30.0) -> None:
        self.patience_s = patience_s
        self._feed: Feed | None = None

    def place(self, run_context: RunContext) -> str:
        """Where it writes, as a person is told before the run. Opens nothing."""
        return type(self).__name__

    def open(self, run_context: RunContext, first: Report) -> None:
        """Before the first report. The training may have begun long ago: a run of the same training continues."""

    def restart(self, first: Report) -> None:
        """Another attempt begins: from this report's position on, all is done again."""

    def write(self, reports: Sequence[Report]) -> None:
        """Reports of one attempt, in their order."""
        raise NotImplementedError(f"{type(self).__name__}.write")

    def leave(self) -> None:
        """Another process feeds this training from now on, and says how it ends: let go of what is held here."""

    def settle(self, run_context: RunContext, last: Report, error: BaseException | None) -> None:
        """Instead of `open` and `close`, where another process has written all reports up to `last` and had not heard
        of the end: the run is over.
        """

    def close(self, error: BaseException | None) -> None:
        """The run is over; `error` is what `fit()` raises."""

    def on_report(self, run_context: RunContext, report: Report) -> None:
        """Puts it into the queue."""
        if self._feed is None:
            self._feed = Feed(self, run_context)
        self._feed.put(report)

    def after_run(self, run_context: RunContext, error: BaseException | None) -> None:
        """Waits for the queue, for `patience_s` at most."""
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.end(error, self.patience_s)


def need(module: str, package: str) -> None:
    """Raises MissingLibraryError for a library that is not installed. Imports nothing."""
    if importlib.util.find_spec(module) is None:
        raise MissingLibraryError(f"{module} is not installed here: pip install '{package}'")


def step_of(report: Report) -> int:
    """The step that was reported, else, or where that is one that no tracker counts to, the report's number."""
    return report.position if report.step is None or abs(report.step) >= _NO_STEP else report.step


def values(report: Report) -> dict[str, Any]:
    """Its metrics, nested ones with dotted names, in texts that every tracker's encoding has."""
    return {_text(name): _text(value) for name, value in inventory.flat(report.metrics).items()}


def numbers(report: Report) -> dict[str, float]:
    """Those that are numbers; whole ones that no float holds are infinite."""
    return {name: _float(value) for name, value in values(report).items() if isinstance(value, int | float)}


def _text(value: Any) -> Any:
    """Half a character, as names of files may have them, stands in no file and goes to no server."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def settings(run_context: RunContext) -> dict[str, Any]:
    """What was given to the training function."""
    given = run_context.train_loop_config
    return inventory.flat(given) if isinstance(given, Mapping) else {}


def training_of(run_context: RunContext, report: Report) -> str:
    """The same text for all runs and attempts of one training, another one for any other."""
    return hashlib.sha256(f"{run_context.path}#{report.first_run}".encode()).hexdigest()[:16]


def folder_of(given: str | os.PathLike[str] | None, run_context: RunContext, name: str) -> str:
    """`given`, else a folder of that name in the job's; where that is none of this machine, below the current one."""
    if given is not None:
        return os.path.abspath(given)
    within = run_context.path if os.path.isabs(run_context.path) else os.path.abspath(run_context.name)
    return os.path.join(within, name)
