"""Shows a job on a cluster until it ends, and says at the end how it went; for `submit --wait`, `attach`,
`logs -f` and `status --watch`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TextIO

from trainjob.cli.cluster import connect
from trainjob.cli.errors import CommandError
from trainjob.launch.cluster import follow
from trainjob.screen import changes, failure, streams
from trainjob.screen.changes import Kind
from trainjob.screen.display import Display
from trainjob.screen.story import Story
from trainjob_api import contract, defaults

if TYPE_CHECKING:
    from trainjob_api.v1alpha1 import TrainJob


UNSEEN_S = 5.0
"""After this long it is said that no operator has looked at a new job."""


@dataclass(frozen=True)
class Outcome:
    """How the watching ended."""

    how: Literal["finished", "cancelled", "gone", "interrupted"]
    job: TrainJob | None
    """As it was last."""


class LogDisplay:
    """For `logs -f`: lines on standard output; of the job only starts, ends and failures, on standard error."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out, self._err = out, err
        self._story = Story(time.time)

    def status(self, job: TrainJob) -> None:
        """Print what ranks' lines do not say."""
        for change in self._story.goes_on(job):
            if change.kind in (Kind.STATE, Kind.FAILURE):
                self.note(change.text)

    def line(self, text: str) -> None:
        """Pass it on; a reader that has gone ends the command."""
        print(text, file=self._out, flush=True)

    def note(self, text: str) -> None:
        """As wide as a rank's prefix."""
        print(f"tj  | {text}", file=self._err, flush=True)

    def close(self) -> None:
        """Nothing to restore."""


def watch(place: connect.Place, wanted: follow.Wanted, display: Display) -> Outcome:
    """Show updates until the job is over or Ctrl-C. Raises CommandError."""
    job, begun, warned = None, time.monotonic(), False
    try:
        with connect.refusals():
            for update in follow.follow(place.api, wanted):
                job = update.job or job
                if job is not None and job.status.phase is None and not warned and time.monotonic() - begun > UNSEEN_S:
                    display.note("no operator has looked at the job yet; `tj doctor` says whether one runs")
                    warned = True
                if update.kind == "line":
                    display.line(update.text)
                elif update.job is not None:
                    display.status(update.job)
                elif update.text:
                    display.note(update.text)
                if update.kind == "gone":
                    return Outcome("gone", job)
                if update.cancelled:
                    return Outcome("cancelled", job)
    except CommandError:
        if job is not None and not job.status.finished:
            display.note(f"{wanted.name} continues: `tj logs {wanted.name}{place.flags} -f` looks again")
        raise
    except KeyboardInterrupt:
        return Outcome("interrupted", job)
    finally:
        display.close()
    return Outcome("finished", job)


def conclude(place: connect.Place, name: str, outcome: Outcome, *, shown: int | None = None) -> int:
    """Say how it ended, on standard error, and return the exit code. `shown`: as for `explain`."""
    if outcome.how == "interrupted":
        lines = [
            f"{name} continues without being watched",
            f"next: `tj logs {name}{place.flags} -f` looks again, `tj cancel {name}{place.flags}` stops it",
        ]
        code = contract.CLI_INTERRUPTED
    elif outcome.how == "cancelled":
        lines, code = (
            [f"{name} was cancelled", f"next: `tj resume {name}{place.flags}` lets it continue"],
            contract.CLI_STOPPED,
        )
    elif outcome.how == "gone" or outcome.job is None:
        lines, code = [f"{name} was deleted; what it stored stays on its storage"], contract.CLI_STOPPED
    elif outcome.job.status.holds("Failed"):
        lines, code = explained(place, outcome.job, shown=shown), contract.CLI_JOB_FAILED
    else:
        lines, code = completed(outcome.job), contract.CLI_OK
    streams.say(*lines)
    return code


def explained(place: connect.Place, job: TrainJob, *, shown: int | None = None) -> list[str]:
    """The lines for a job that failed."""
    name = job.metadata.name
    again = failure.Retry(
        command=f"tj submit ... --name {name} --replace{place.flags}",
        script="the script",
        storage=defaults.job_storage(job) or "the storage path",
        job=f"{name}{place.flags}",
    )
    return failure.explain(job, again, shown=shown)


def completed(job: TrainJob) -> list[str]:
    """The lines for a job that completed."""
    begun, ended = job.metadata.creation_timestamp, job.status.timing.finished_at
    seconds = (ended - begun).total_seconds() if begun and ended else None
    return changes.completed(job, seconds, gone="gone with the pods; spec.checkpoint.storage keeps it")
