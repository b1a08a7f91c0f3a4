"""Each fault at each moment, with real processes: the right cause is named, the right budget is used once, nothing is lost at
the level that was acknowledged, and training comes to the same numbers, bit for bit.

`make test` runs a part in which each fault and each moment comes several times; `make matrix` all of it.
"""

from __future__ import annotations

import os
import runpy
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from matrix.cells import MOMENTS, OPERATOR, OUT_OF_MEMORY, POD, RAISE, TEXT, VICTIM, WARM_PARENT, Cell, cells, some
from support.faults import END, Fault, targets
from support.launched import Launched
from support.losses import losses
from support.memory_group import memory_group
from support.scenario import Note, Stage, acknowledged, wait_until
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob, TrainJobStatus

pytestmark = pytest.mark.slow

LOOP = Path(__file__).with_name("loop.py")
TINY = runpy.run_path(str(Path(__file__).parents[1] / "zoo/loops/tiny.py"))
EVERYTHING = os.environ.get("MATRIX") == "all"
WORKERS = 2
ROOM = 1 << 29
"""Of the group in which ranks run out of memory."""


def job_of(stage: Stage, cell: Cell) -> TrainJob:
    made = stage.job(script=LOOP, workers=WORKERS)
    runtime = made.spec.runtime.model_copy(update={"prefork": cell.prefork, "preload": ["decimal"]})
    return made.model_copy(update={"spec": made.spec.model_copy(update={"runtime": runtime})})


@pytest.mark.parametrize("cell", list(cells()) if EVERYTHING else some(), ids=lambda cell: cell.name)
def test_a_fault_at_a_moment(stage: Stage, cell: Cell) -> None:
    stored: list[int] = []

    def before(fault: Fault) -> None:
        """What is on storage right before the blow."""
        stored.append(max((int(name.split("-")[2]) for name in stage.committed()), default=0))

    stage.before = before
    stage.plan(cell.plan)
    job = job_of(stage, cell)
    ways = {OPERATOR: while_the_operator_is_down, OUT_OF_MEMORY: with_little_memory}
    status, said = ways.get(cell.kind, run)(stage, job)
    assert status.holds("Complete"), said
    assert len(stored) == len(cell.plan.planned), "each fault has struck\n" + said
    check_books(status, cell, said)
    check_cause(status, cell, said)
    check_levels(stage.read_notes(), cell, stored[-1], said)
    for rank in range(WORKERS):
        assert losses(stage.notes, rank) == undisturbed(), said
        if not (cell.leaves_at_the_end and rank == VICTIM):
            assert (stage.notes / f"final-{rank}").read_text().splitlines()[-1] == FINAL, said


def check_books(status: TrainJobStatus, cell: Cell, said: str) -> None:
    attempt = status.attempt
    assert attempt is not None
    found = (attempt.number, status.failures.counted, status.failures.preemptions)
    if over_before_its_pod(cell, status):
        assert found in [(1, 0, 0), (1, 1, 0)], said
        return
    assert found == (cell.attempts, cell.failures, cell.preemptions), said
    assert attempt.members == ("0,2" if cell.breaks and cell.kind.pod_goes else "0-1"), said


def over_before_its_pod(cell: Cell, status: TrainJobStatus) -> bool:
    """A pod that is deleted has its grace period: ranks that have nothing left to do end in it with success."""
    return cell.kind is POD and cell.at == END and status.attempt is not None and status.attempt.number == 1


def check_cause(status: TrainJobStatus, cell: Cell, said: str) -> None:
    if over_before_its_pod(cell, status):
        return
    causes = [entry.end_cause for entry in status.history]
    wanted = [contract.REASON_SIGNAL] * (cell.attempts - 1 - cell.breaks)
    wanted += [str(cell.kind.reason)] * cell.breaks
    assert causes == [*wanted, contract.REASON_COMPLETED], said
    failure = status.last_failure
    if not cell.breaks:
        assert (failure is None) == (cell.failures == 0), said
        return
    assert failure is not None and failure.reason == cell.kind.reason, said
    if not cell.kind.pod_goes:
        assert failure.rank == VICTIM, said
    if cell.kind is RAISE:
        assert TEXT in failure.message and failure.traceback is not None and "loop.py" in failure.traceback, said


def check_levels(notes: list[Note], cell: Cell, stored: int, said: str) -> None:
    """Each attempt goes on behind whatever was acknowledged before it; where a pod went, behind what was stored."""
    starts = [note for note in notes if note.what == "start"]
    for start in starts:
        earlier = [note for note in notes if note.attempt < start.attempt]
        newest = max(acknowledged(earlier).values(), default=-1)
        lost_a_pod = cell.breaks and cell.kind.pod_goes and start.attempt == cell.attempts
        assert start.step >= (stored if lost_a_pod else newest + 1), said
    newest_attempt = max(start.attempt for start in starts)
    last = {(note.rank, note.step) for note in starts if note.attempt == newest_attempt}
    assert len({rank for rank, _ in last}) == WORKERS and len({step for _, step in last}) == 1, said


# --- Running it -------------------------------------------------------------------------------------------------------


def run(stage: Stage, job: TrainJob) -> tuple[TrainJobStatus, str]:
    told = stage.run(job)
    return told.status, told.text()


def with_little_memory(stage: Stage, job: TrainJob) -> tuple[TrainJobStatus, str]:
    with memory_group(ROOM) as group, launched(stage, job, group) as (launcher, log):
        ended = launcher.ended()
    return ended.status, log.read_text()


def while_the_operator_is_down(stage: Stage, job: TrainJob) -> tuple[TrainJobStatus, str]:
    """From the moment on until all ranks have ended by themselves: nobody of them needs it."""
    with launched(stage, job) as (launcher, log):
        wait_until(lambda: _is_frozen(launcher.process.pid) or launcher.process.poll() is not None)
        wait_until(lambda: not targets.ranks(str(stage.root / "tmp"), "job") or launcher.process.poll() is not None)
        launcher.process.send_signal(signal.SIGCONT)
        ended = launcher.ended()
    return ended.status, f"{log.read_text()}\n{ended.status.model_dump_json(exclude_none=True, indent=1)}"


@contextmanager
def launched(stage: Stage, job: TrainJob, group: Path | None = None) -> Iterator[tuple[Launched, Path]]:
    log, launchers = stage.root / "log", list[Launched]()

    def freeze() -> None:
        launchers[0].process.send_signal(signal.SIGSTOP)
        wait_until(lambda: _is_frozen(launchers[0].process.pid))

    with stage.hand(job, freeze_operator=freeze) as hand, log.open("wb") as output:
        environment = {**stage.environment(), **hand.environment()}
        launchers.append(Launched(job, environment, str(stage.root), output, group))
        try:
            yield launchers[0], log
        finally:
            launchers[0].process.kill()
            launchers[0].process.wait()


def _is_frozen(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


# --- What it should come to -------------------------------------------------------------------------------------------


def undisturbed() -> dict[int, str]:
    model = TINY["Model"]()
    return {step: model.sgd(step).hex() for step in range(TINY["STEPS"])}


def _final() -> str:
    model = TINY["Model"]()
    for step in range(TINY["STEPS"]):
        model.sgd(step)
    return f"{TINY['STEPS']} {model.weight.hex()}"


FINAL = _final()


def test_the_part_that_runs_each_time_has_each_fault_and_each_moment_both_ways() -> None:
    chosen = some()
    assert {(cell.kind.name, cell.prefork) for cell in chosen} == {(cell.kind.name, cell.prefork) for cell in cells()}
    assert {(cell.at, cell.prefork) for cell in chosen} == {(at, cell.prefork) for at in MOMENTS for cell in cells()}
    assert all(cell.prefork == contract.PREFORK_ALWAYS for cell in cells() if cell.kind is WARM_PARENT)
