"""How much of its time a job trains while a rank is killed again and again.

    PYTHONPATH=tests python -m benchmarks.goodput [--minutes M] [--every S] [--rounds N]

The same loop (`workloads/saved_steps.py`: a step takes 20 ms, each 50th is saved) in turn under TrainJob, whose ranks
are forks of a warm parent, and under torchrun, each for `--minutes`; every `--every` seconds one rank of the two gets
SIGKILL. The figure is the share of wall time, from the first step to the last, that the steps kept would have taken
undisturbed: the last step's number times the mean time of a step of the same loop under torchrun, saving nothing and
killed by nobody, which has a turn of its own (a tenth as long) before and after each of the others. What was done
again, and what stood still, is not in it. The first start is not in it either.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from statistics import mean

from benchmarks import jobs
from benchmarks.figures import Figure
from benchmarks.jobs import Job, Launcher, Step

WORKLOAD = "saved_steps.py"
WAYS: tuple[tuple[str, Launcher], ...] = (("trainjob", jobs.trainjob_forked), ("torchrun", jobs.torchrun))
RESTARTS = 1_000_000
"""More than there are kills."""
NEVER = "never"
"""Given to the loop: it saves nothing."""
WARMED_UP = 50
"""Steps that a reference leaves out."""


def pace(steps: Sequence[Step], leave_out: int = 0) -> float:
    """Seconds of wall time for each step that rank 0 kept. Raises ValueError when there are too few."""
    mine = [step for step in steps if step.rank == 0][leave_out:]
    if len(mine) < 3:
        raise ValueError(f"{len(mine)} steps say nothing")
    first, last = mine[0], mine[-1]
    return (last.time - first.time) / (last.step - first.step)


def strike(job: Job, rank: int) -> None:
    """Its newest process gets SIGKILL; one that ended by itself a moment ago was struck by another kill."""
    of_rank = [step for step in job.steps() if step.rank == rank]
    try:
        os.kill(of_rank[-1].pid, signal.SIGKILL)
    except ProcessLookupError:
        print(f"  rank {rank} was not there to be killed", file=sys.stderr)


def undisturbed(seconds: float) -> float:
    """The pace of the loop alone."""
    with jobs.running(jobs.torchrun, NEVER, workload=WORKLOAD) as job:
        job.wait_for("a step", lambda steps: steps[-1] if len(steps) > 2 * WARMED_UP else None)
        time.sleep(seconds)
        return pace(job.steps(), WARMED_UP)


def measure(launcher: Launcher, seconds: float, every_s: float) -> tuple[float, int]:
    """The pace of one job, and the kills that it had."""
    with jobs.running(launcher, workload=WORKLOAD) as job:
        job.wait_for("a step", lambda steps: steps[-1] if steps else None)
        begun, kills = time.monotonic(), 0
        while time.monotonic() + every_s < begun + seconds:
            time.sleep(every_s)
            kills += 1
            strike(job, kills % jobs.RANKS)
        time.sleep(max(0.0, begun + seconds - time.monotonic()))
        if job.process.poll() is not None:
            raise RuntimeError(f"the job ended with {job.process.returncode}:\n{job.log.read_text()[-3000:]}")
        return pace(job.steps()), kills


def main() -> int:
    """One line a way and round, then the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.goodput", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="length of each run (default: 10)")
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two kills (default: 30)")
    parser.add_argument("--rounds", type=int, default=1, help="how often each way has its turn (default: 1)")
    args = parser.parse_args()
    jobs.RESTARTS = RESTARTS
    found: dict[str, list[float]] = {way: [] for way, _ in WAYS}
    before = undisturbed(6.0 * args.minutes)
    for _ in range(args.rounds):
        for way, launcher in WAYS:
            took, kills = measure(launcher, 60.0 * args.minutes, args.every)
            after = undisturbed(6.0 * args.minutes)
            alone, before = mean((before, after)), after
            found[way].append(alone / took)
            told = f"{alone / took:.4f} with {kills} kills, a step alone {alone * 1000:.2f} ms"
            print(f"  {way}: {told}", file=sys.stderr, flush=True)
    print(Figure("goodput", "of the time", found["trainjob"], found["torchrun"], "torchrun with saved files").line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
