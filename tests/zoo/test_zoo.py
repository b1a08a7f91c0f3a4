"""Training loops as people write them, undisturbed and with faults: what comes out is the same, the cause that is named
is the right one, and nothing stays behind.

`make test` strikes each animal once; `make zoo` (ZOO=all) with everything that it is meant for.
"""

from __future__ import annotations

import os
import runpy
import shutil
import struct
import sys
import tempfile
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from support.faults import Faults
from support.scenario import Stage, Told
from support.small_disk import fill, small_disk
from trainjob.launch import job as jobs
from trainjob.launch.local.backend import LocalEvent
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob
from zoo.animals import ANIMALS, Animal, Strike

LOOPS = Path(__file__).parent / "loops"
EVERYTHING = os.environ.get("ZOO") == "all"
pytestmark = pytest.mark.slow
NO_LUCK, NO_SPACE = "no luck today", "No space left on device"
STORAGE_MIB, WORK_MIB, FULL_FAILURES = 64, 64, 5


@dataclass
class Cage(Stage):
    """A folder with all loops, in which one animal trains."""

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "ZOO_NOTES": str(self.notes), "PYTHON": sys.executable}

    def job_of(self, animal: Animal, max_failures: int = 1) -> TrainJob:
        command = animal.command or (sys.executable, f"{animal.name}.py")
        return jobs.from_script(
            jobs.ScriptJob(command=command, workers=2, name="job", storage=str(self.storage), max_failures=max_failures)
        )


@dataclass(frozen=True)
class Outcome:
    """What training came to."""

    losses: dict[str, list[str]]
    """Of each rank, by step; a step that was done again counts once, and came out the same."""
    final: dict[str, str]
    checkpoint: dict[str, bytes]
    """The user's files of the newest one that is committed."""

    def check(self, wanted: Outcome, told: Told) -> None:
        """That it is what is wanted."""
        assert self.losses == wanted.losses, told.text()
        assert self.final == wanted.final, told.text()

    def check_checkpoint(self) -> None:
        """That the weight in the newest one is the last that training came to."""
        weight = float.fromhex(self.final["final-0"].split()[1])
        written = (repr(weight).encode(), struct.pack(">d", weight), struct.pack("<d", weight))  # JSON, pickle, torch
        assert any(form in data for data in self.checkpoint.values() for form in written), self.checkpoint


def cage(stage: Stage, name: str) -> Cage:
    made = Cage(stage.root / name)
    shutil.copytree(LOOPS, made.root, ignore=shutil.ignore_patterns("__pycache__"))
    return made


def outcome(cage: Cage) -> Outcome:
    losses: dict[str, list[str]] = {}
    for path in sorted(cage.notes.glob("losses-*")):
        found: dict[int, str] = {}
        for line in path.read_text().splitlines():
            step, value = line.split()
            assert found.setdefault(int(step), value) == value, f"{path.name}: step {step} came out differently"
        losses[path.name] = [f"{step} {found[step]}" for step in sorted(found)]
    final = {path.name: path.read_text().splitlines()[-1] for path in sorted(cage.notes.glob("final-*"))}
    folder = cage.storage / "default" / "job" / "checkpoints" / cage.committed()[-1]
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".trainjob" not in path.parts
    }
    return Outcome(losses, final, files)


def computed(animal: Animal) -> Outcome:
    """What it comes to if nobody interferes: all animals train the same two numbers."""
    model = runpy.run_path(str(LOOPS / "tiny.py"))["Model"]()
    losses = [f"{step} {model.sgd(step).hex()}" for step in range(animal.steps)]
    final = f"{animal.steps} {model.weight.hex()}"
    return Outcome({f"losses-{rank}": losses for rank in (0, 1)}, {f"final-{rank}": final for rank in (0, 1)}, {})


_undisturbed: dict[str, Outcome] = {}


def undisturbed(stage: Stage, animal: Animal) -> Outcome:
    """The same of one that trains a model of torch; run once."""
    if animal.name not in _undisturbed:
        quiet = cage(stage, "quiet")
        _undisturbed[animal.name] = undisturbed_run(quiet, animal)
    return _undisturbed[animal.name]


def undisturbed_run(quiet: Cage, animal: Animal) -> Outcome:
    told = quiet.run(quiet.job_of(animal))
    assert told.status.holds("Complete"), told.text()
    assert told.attempts == 1 and told.status.failures.counted == 0, told.text()
    assert told.status.last_failure is None, told.text()
    return outcome(quiet)


def cases() -> list[object]:
    found = []
    for animal in (animal for animal in ANIMALS if animal.refused is None):
        for strike in animal.strikes if EVERYTHING else (animal.first,):
            if animal.in_zoo_alone and not EVERYTHING:
                continue
            marks = [pytest.mark.xdist_group(f"zoo-{animal.name}")]
            found.append(pytest.param(animal, strike, marks=marks, id=f"{animal.name}-{strike.name.lower()}"))
    return found


@pytest.mark.parametrize(("animal", "strike"), cases())
def test_a_loop_comes_to_what_it_would_have_come_to(stage: Stage, animal: Animal, strike: Strike) -> None:
    wanted = undisturbed(stage, animal) if animal.of_torch else computed(animal)
    struck = cage(stage, "struck")
    with small_disk(struck.storage, STORAGE_MIB) if strike is Strike.FULL else nullcontext():
        match strike:
            case Strike.STOP:
                told = stopped_and_started_again(struck, animal)
            case Strike.AGAIN:
                told = run_twice(struck, animal)
            case Strike.FULL:
                told = full_for_a_while(struck, animal)
            case Strike.WORK_FULL:
                told = no_room_to_work(struck, animal)
            case _:
                told = broken_once(struck, animal, strike)
        found = outcome(struck)
    found.check(wanted, told)
    if not animal.of_torch:
        found.check_checkpoint()


def broken_once(struck: Cage, animal: Animal, strike: Strike) -> Told:
    """One rank or agent goes; the job comes back by itself, and says why."""
    rank = int(strike.name[-1])
    if strike.name.startswith("KILL"):
        struck.plan(Faults().kill(rank=rank, at_step=animal.step))
    elif strike.name.startswith("AGENT"):
        struck.plan(Faults().kill_agent(rank=rank, at_step=animal.step))
    else:
        struck.plan(Faults().raises(NO_LUCK, rank=rank, at_step=animal.step))
    told = struck.run(struck.job_of(animal))
    assert told.struck == [0], told.text()
    assert told.status.holds("Complete"), told.text()
    assert (told.attempts, told.status.failures.counted) == (2, 1), told.text()
    failure = told.status.last_failure
    assert failure is not None, told.text()
    usual = {"KILL": contract.REASON_SIGNAL, "RAIS": contract.REASON_USER_ERROR, "AGEN": contract.REASON_POD_FAILED}
    assert failure.reason == animal.causes.get(strike, usual[strike.name[:4]]), told.text()
    if strike.name.startswith("KILL"):
        assert failure.rank == rank, told.text()
        assert "SIGKILL" in failure.message or strike in animal.causes, told.text()
    if strike is Strike.RAISE_1:
        assert failure.rank == rank, told.text()
        assert NO_LUCK in failure.message or failure.reason == contract.REASON_EXIT, told.text()
        assert any(NO_LUCK in line for line in told.lines) or animal.name == "own_stdout", told.text()
    return told


def stopped_and_started_again(struck: Cage, animal: Animal) -> Told:
    struck.plan(Faults().stop_the_job(at_step=animal.step))
    told = struck.run(struck.job_of(animal))
    assert told.outcome.interrupted, told.text()
    assert not told.status.finished and told.status.failures.counted == 0, told.text()
    struck.plan(Faults())
    told = struck.run(struck.job_of(animal))
    assert told.status.holds("Complete"), told.text()
    assert (told.attempts, told.status.failures.counted) == (1, 0), told.text()
    return told


def run_twice(struck: Cage, animal: Animal) -> Told:
    first = undisturbed_run(struck, animal)
    starts = len(struck.read_notes())
    told = struck.run(struck.job_of(animal))
    assert told.status.holds("Complete"), told.text()
    assert len(told.notes) == starts, "it completed, so it starts over\n" + told.text()
    again = outcome(struck)
    assert (again.losses, again.final) == (first.losses, first.final), told.text()
    assert animal.of_torch or again.checkpoint == first.checkpoint, told.text()
    assert sum(1 for _ in struck.notes.glob("final-*")) == 2
    assert all(len(path.read_text().splitlines()) == 2 for path in struck.notes.glob("final-*")), told.text()
    return told


def full_for_a_while(struck: Cage, animal: Animal) -> Told:
    """Nothing can be stored until all ranks have ended; training knows nothing of it."""
    filler, hold, refused = struck.storage / "filler", struck.notes / "hold", list[str]()
    hold.touch()

    def listen(event: LocalEvent) -> None:
        if hold.exists() and "starts from the beginning" in event.text:
            fill(filler)
            hold.unlink()
        if event.kind == "line" and NO_SPACE in event.text:
            refused.append(event.text)
        if refused and "all ranks have ended" in event.text:  # which is said again and again
            filler.unlink(missing_ok=True)

    told = struck.run(struck.job_of(animal), listen)
    assert told.status.holds("Complete"), told.text()
    assert (told.attempts, told.status.failures.counted) == (1, 0), told.text()
    assert refused, told.text()
    return told


def no_room_to_work(struck: Cage, animal: Animal) -> Told:
    """The volume of TMPDIR and of what is staged fills at a step. What has no room fails and says so; the next attempt
    may begin before the failure is told here.
    """
    over, failed = threading.Event(), list[str]()
    folder = Path(tempfile.mkdtemp(dir=tempfile.gettempdir(), prefix="w"))
    folder.rmdir()
    with small_disk(folder, WORK_MIB), mock.patch.object(tempfile, "tempdir", str(folder)):
        filler = folder / "filler"

        def fill_at_the_step() -> None:
            steps = struck.notes / "losses-0"
            while not over.wait(0.002):
                if steps.exists() and len(steps.read_text().splitlines()) >= animal.step:
                    fill(filler)
                    return

        def listen(event: LocalEvent) -> None:
            if event.job is not None and event.job.status.failures.counted:
                failed.append("told")
            if failed or "all ranks have ended" in event.text:
                filler.unlink(missing_ok=True)

        filling = threading.Thread(target=fill_at_the_step)
        filling.start()
        try:
            told = struck.run(struck.job_of(animal, max_failures=FULL_FAILURES), listen)
        finally:
            over.set()
            filling.join()
        left = {path.name for path in folder.iterdir()} - {filler.name}
        assert not left, f"{left} is left\n{told.text()}"
    assert told.status.holds("Complete"), told.text()
    assert told.attempts == told.status.failures.counted + 1, told.text()
    failure = told.status.last_failure
    assert failure is None or failure.reason == contract.REASON_EXIT or NO_SPACE in failure.message, told.text()
    return told


@pytest.mark.parametrize("animal", [a for a in ANIMALS if a.refused is not None], ids=lambda animal: animal.name)
def test_a_loop_that_we_do_not_run_is_told_why(stage: Stage, animal: Animal) -> None:
    quiet = cage(stage, "quiet")
    told = quiet.run(quiet.job_of(animal))
    assert told.status.holds("Failed"), told.text()
    assert any(animal.refused in line for line in told.lines), told.text()


def test_every_loop_is_in_the_table() -> None:
    named = {word for animal in ANIMALS for word in " ".join(animal.command or (f"{animal.name}.py",)).split()}
    loops = {path.name for path in LOOPS.glob("*.py")} | {path.name for path in LOOPS.glob("*.sh")}
    assert loops - named - {"tiny.py"} == set()
