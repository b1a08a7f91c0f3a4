"""How long a job hangs before it is told, with the ranks to look at: of a rank that is stopped, and of ranks that wait
for each other since one has skipped an all_reduce.

2 ranks, on TrainJob's local backend with its defaults. Others have only time-outs here, which need no measurement:
torch's 1,800 s (gloo) and 600 s (NCCL).
"""

from __future__ import annotations

import os
import signal
import sys
import time

from benchmarks import jobs
from benchmarks.figures import Figure
from benchmarks.jobs import Step
from benchmarks.workloads.stuck import STUCK_AT

STEPS_BEFORE = 30
STOPPED, STUCK = "is stopped", "ranks wait for each other"
"""What the job says of each."""


def measure(rounds: int) -> list[Figure]:
    """One job of each kind a round."""
    stopped, stuck = [], []
    for _ in range(rounds):
        stopped.append(_stopped())
        stuck.append(_stuck())
        print(
            f"  told of a stopped rank: {stopped[-1]:.2f} s, of a skipped all_reduce: {stuck[-1]:.2f} s",
            file=sys.stderr,
        )
    return [Figure("hang_stopped_rank", "s", stopped), Figure("hang_skipped_all_reduce", "s", stuck)]


def _stopped() -> float:
    with jobs.running(jobs.trainjob_forked, workload="stuck.py") as job:
        pid = job.wait_for(f"step {STEPS_BEFORE}", lambda steps: made(steps, 1, STEPS_BEFORE)).pid
        begun = time.time()
        os.kill(pid, signal.SIGSTOP)
        job.wait_for_word(STOPPED)
        return time.time() - begun


def _stuck() -> float:
    with jobs.running(jobs.trainjob_forked, workload="stuck.py") as job:
        begun = job.wait_for("the step without it", lambda steps: made(steps, 1, STUCK_AT)).time
        job.wait_for_word(STUCK)
        return time.time() - begun


def made(steps: list[Step], rank: int, number: int) -> Step | None:
    """That step of that rank, once it is made."""
    return next((step for step in steps if (step.rank, step.step) == (rank, number)), None)
