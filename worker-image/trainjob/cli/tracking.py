"""`tj run --track`: experiment trackers of a script's job, as `RunConfig(callbacks=...)` has them for a function's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trainjob.cli.errors import CommandError
from trainjob.launch.handover.callbacks import RunContext
from trainjob.launch.outcome.hearers import Hearers, Polled, place
from trainjob.session.errors import TrainJobError
from trainjob_api import defaults
from trainjob_api.contract import CLI_USAGE, TRACKERS

if TYPE_CHECKING:
    from trainjob.trackers import Tracker
    from trainjob_api.v1alpha1 import TrainJob


def trackers(words: Sequence[str]) -> list[Tracker]:
    """Of `KIND` and `KIND=WHERE`. Raises CommandError."""
    from trainjob.trackers import kinds

    found = []
    for word in words:
        try:
            found.append(kinds.made(word))
        except ValueError as error:
            raise CommandError(
                f"--track {word}: {error}",
                next_step=f"give {', '.join(TRACKERS)}, or {TRACKERS[1]}=FOLDER",
                code=CLI_USAGE,
            ) from None
        except TrainJobError as error:
            raise CommandError(f"--track {word}: {error}", next_step="install it, or leave --track out") from None
    return found


class Tracking:
    """The trackers of one job of this machine."""

    def __init__(self, words: Sequence[str], job: TrainJob) -> None:
        folder = defaults.job_storage(job)
        if words and folder is None:
            raise CommandError(
                "--track follows the reports on the job's storage, and it has none",
                next_step="give --storage a folder",
                code=CLI_USAGE,
            )
        self._polled = Polled(folder or "")
        context = RunContext(name=job.metadata.name, path=folder or "", run_config=None, scaling_config=None)
        made = trackers(words) if words else []
        kinds = [word.partition("=")[0] for word in words]
        self.places = "; ".join(f"{kind}: {one.place(context)}" for kind, one in zip(kinds, made, strict=True))
        """Where each tracker writes, for a person."""
        self._hearers = Hearers(made, context)

    def look(self, job: TrainJob) -> None:
        """At the job's reports, when it is time."""
        if self._hearers:
            self._hearers.reports(self._polled.new(*place(job)))

    @contextmanager
    def of_the_end(self) -> Iterator[None]:
        """Around the run."""
        with self._hearers.of_the_end():
            yield

    def last(self, job: TrainJob) -> None:
        """The job is over."""
        if self._hearers:
            self._hearers.reports(self._polled.last(*place(job)))
