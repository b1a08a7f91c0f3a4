"""How long training stands still when a rank is killed: SIGKILL of one rank to the next step of rank 0."""

from __future__ import annotations

import os
import signal
import time

from benchmarks.figures import Figure
from benchmarks.jobs import RANKS, Job, Launcher, Step, running, torchrun, trainjob, trainjob_forked

KILLS = 2
STEPS_BEFORE = 30


def measure(rounds: int) -> list[Figure]:
    """TrainJob, the same with forked ranks, and torchrun in turn, each with KILLS kills a round."""
    ours: list[float] = []
    forked: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        ours += _down_times(trainjob)
        forked += _down_times(trainjob_forked)
        theirs += _down_times(torchrun)
    return [
        Figure("restart", "s", ours, theirs, "torchrun --max-restarts"),
        Figure("restart_forked", "s", forked, ours, "tj run with new interpreters"),
    ]


def _down_times(launcher: Launcher) -> list[float]:
    with running(launcher) as job:
        return [_down_time(job, attempt) for attempt in range(1, KILLS + 1)]


def _down_time(job: Job, attempt: int) -> float:
    # One after the other: a worker that breaks twice without progress is replaced, which is another figure.
    struck = attempt % RANKS

    def victim(steps: list[Step]) -> Step | None:
        return next(
            (step for step in steps if step.attempt == attempt and step.rank == struck and step.step >= STEPS_BEFORE),
            None,
        )

    def next_step(steps: list[Step]) -> Step | None:
        return next((step for step in steps if step.attempt > attempt and step.rank == 0), None)

    pid = job.wait_for(f"step {STEPS_BEFORE} of attempt {attempt}", victim).pid
    killed_at = time.time()
    os.kill(pid, signal.SIGKILL)
    return job.wait_for(f"the first step after kill {attempt}", next_step).time - killed_at
