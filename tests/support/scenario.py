"""Runs a script as a local TrainJob and keeps what was seen of it: the stage of the scenario tests.

Real agents and ranks; everything that a job could leave behind is looked for after each run.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from support.edited import Edited
from support.faults import Fault, Faults, What, points
from support.faults.hand import Hand, Reach
from support.patience import HANG_S
from trainjob.launch import job as jobs
from trainjob.launch.local import drive, lock
from trainjob.launch.local.backend import LocalEvent, LocalOptions, LocalOutcome, run_job
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob, TrainJobStatus

LOOPS = Path(__file__).parents[1] / "scenarios" / "loops"
COUNT = LOOPS / "count.py"
ROOTS = (Path(__file__).parents[1],)
AT_START = Path(__file__).with_name("at_start")


class Note(NamedTuple):
    """A line that count.py left."""

    rank: int
    attempt: int
    what: str
    """start | saved"""
    step: int
    time: float
    pod: str
    """UID of its pod."""


@dataclass
class Told:
    """A finished run."""

    outcome: LocalOutcome
    events: list[LocalEvent]
    notes: list[Note]
    struck: list[int]
    """Numbers of the planned faults that have struck."""

    @property
    def status(self) -> TrainJobStatus:
        return self.outcome.job.status

    @property
    def attempts(self) -> int:
        return self.status.attempt.number if self.status.attempt else 0

    @property
    def lines(self) -> list[str]:
        return [event.text for event in self.events if event.kind == "line"]

    def text(self) -> str:
        """Everything that was shown, for a failing test's message."""
        said = [f"{event.kind}: {event.text}" for event in self.events if event.kind not in ("status", "look")]
        return "\n".join([*said, self.status.model_dump_json(exclude_none=True, indent=1)])

    def pods(self, attempt: int) -> list[str]:
        """UIDs of the pods of an attempt's ranks, by rank."""
        return [note.pod for note in sorted(self.notes) if note.attempt == attempt and note.what == "start"]

    def starts(self, rank: int = 0) -> list[tuple[int, int]]:
        """(attempt, step at which it resumed)."""
        return [(note.attempt, note.step) for note in self.notes if note.rank == rank and note.what == "start"]


@dataclass
class Stage:
    """Where a test's jobs run: folders of its own, and the faults planned for the next run."""

    root: Path
    planned: Faults = field(default_factory=Faults)
    before: Callable[[Fault], None] = lambda _: None
    """Called right before each blow."""

    @property
    def storage(self) -> Path:
        return self.root / "storage"

    @property
    def notes(self) -> Path:
        path = self.root / "notes"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def go(self) -> None:
        """Ranks that are held (`--hold`) go on, now and in later attempts."""
        (self.notes / "go").touch()

    def plan(self, planned: Faults) -> None:
        """These faults, from now on."""
        self.planned = planned

    def environment(self) -> dict[str, str]:
        """For all processes of its jobs."""
        return {"PYTHONPATH": os.pathsep.join(map(str, [*ROOTS, *([AT_START] if self.planned.planned else [])]))}

    def hand(self, job: TrainJob, **more: Callable[[], None]) -> Hand:
        """That carries out what is planned, in that job."""
        reach = Reach(
            mark=tempfile.gettempdir(),
            job=job.metadata.name,
            delete_pod=lambda pod: Edited.newest.delete(pod),
            before=self.before,
            **more,
        )
        return Hand(self.planned, reach)

    def job(self, *arguments: str, script: Path = COUNT, **changes: object) -> TrainJob:
        """A TrainJob of that script with its notes folder as first argument."""
        given = {"workers": 2, "name": "job", "storage": str(self.storage), **changes}
        command = (sys.executable, str(script), str(self.notes), *arguments)
        return jobs.from_script(jobs.ScriptJob(command=command, **given))  # type: ignore[arg-type]

    def run(self, job: TrainJob, listener: Callable[[LocalEvent], None] | None = None) -> Told:
        """Run it to its end."""
        events: list[LocalEvent] = []
        stops = threading.Event()

        def listen(event: LocalEvent) -> None:
            events.append(event)
            if event.job is not None and event.job.status.holds("Suspended"):
                stops.set()
            if listener is not None:
                listener(event)

        def stop() -> None:
            """Returns once the agents are told of it: a job of a few quick steps would be over by then."""
            os.kill(os.getpid(), signal.SIGTERM)
            stops.wait(HANG_S)

        before = len(self.read_notes())
        with self.hand(job, stop_job=stop) as hand, self._cluster():
            options = LocalOptions(environment={**self.environment(), **hand.environment()}, working_dir=str(self.root))
            outcome = run_job(job, options=options, listener=listen)
        return Told(outcome, events, self.read_notes()[before:], hand.struck)

    def _cluster(self) -> AbstractContextManager[object]:
        """One whose pods can be deleted, where that is planned."""
        if any(fault.what is What.DELETE_POD for fault in self.planned.planned):
            return mock.patch.object(drive, "MemoryCluster", Edited)
        return nullcontext()

    def read_notes(self) -> list[Note]:
        """All notes of all runs, in the order of time."""
        found = []
        for path in self.notes.glob("rank-*"):
            for line in path.read_text().splitlines():
                attempt, what, step, moment, pod = line.split()
                found.append(
                    Note(int(path.name.removeprefix("rank-")), int(attempt), what, int(step), float(moment), pod)
                )
        return sorted(found, key=lambda note: note.time)

    def committed(self, name: str = "job") -> list[str]:
        """Identities of the checkpoints whose manifest is there."""
        folder = self.storage / "default" / name / "checkpoints"
        return sorted(
            (path.parents[1].name for path in folder.glob("*/.trainjob/manifest.json")),
            key=lambda name: [int(part) for part in name.split("-")],
        )


def processes_of(root: Path) -> list[str]:
    """Command lines of living workers whose job stores or works below `root`."""
    found = []
    mark = str(root).encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        ours = any(
            entry.startswith((contract.ENV_WORK_DIR.encode() + b"=", b"TMPDIR=", points.PLAN.encode() + b"="))
            and mark in entry
            for entry in variables
        )
        if ours and command:
            found.append(f"{folder.name} {command}")
    return found


def left_behind(root: Path) -> list[str]:
    """Whatever a job that ended should have taken away: processes, private folders, locks."""
    temporary = Path(tempfile.gettempdir())
    files = [str(path) for pattern in ("trainjob-*", "tj-*") for path in temporary.glob(pattern)]
    locks = [lock.lock_path(str(folder)) for folder in root.glob("*/default/*")]
    return [*processes_of(root), *files, *filter(os.path.exists, locks)]


def wait_until(condition: Callable[[], object], timeout_s: float = HANG_S) -> None:
    """Wait for the outside world, with a deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{condition} did not come true within {timeout_s} s")
        time.sleep(0.02)


def acknowledged(notes: Sequence[Note]) -> dict[int, int]:
    """The newest acknowledged step of each rank."""
    newest: dict[int, int] = {}
    for note in notes:
        if note.what == "saved":
            newest[note.rank] = max(note.step, newest.get(note.rank, -1))
    return newest
