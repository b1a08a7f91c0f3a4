"""How long training stands still when a rank is killed: SIGKILL of one rank to the end of the first new step on all.

Ways in turn: TrainJob with ranks that are forks of a warm parent, with new interpreters, torchrun, and Ray Train and
DLRover where they are; with 2 and with 4 ranks, and with a script that imports transformers and pandas where these are
installed. The same of a rank that raises an exception, from where it raises.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
from collections.abc import Sequence

from benchmarks.figures import Figure
from benchmarks.jobs import (
    WORKERS,
    Job,
    Launcher,
    Step,
    peers,
    running,
    torchrun,
    trainjob,
    trainjob_forked,
)

KILLS = 3
STEPS_BEFORE = 60
STEADY_S = 1.5
"""From a job's step to the kill: what a way makes ready beside the training is ready."""
LEARNED = "from the next start on these are imported ahead"
LIBRARIES = ("transformers", "pandas")
WAYS: tuple[tuple[str, Launcher], ...] = (("forked", trainjob_forked), ("plain", trainjob), ("torchrun", torchrun))


def measure(rounds: int) -> list[Figure]:
    """KILLS kills of each way a round, with 2 and with 4 ranks."""
    return [figure for ranks in (2, 4) for figure in _measured(f"restart_{ranks}", rounds, ranks)]


def measure_libraries(rounds: int) -> list[Figure]:
    """The same with 2 ranks that import more than torch. Forks have been told by then what such a script imports: it
    is learned beside the training, which takes its time; until then a start is like the plain one, but for torch.
    """
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: restart_libraries ({', '.join(missing)} not installed)", file=sys.stderr)
        return []
    return _measured("restart_libraries_2", rounds, 2, ["transformers:BertModel", "pandas"])


def measure_raised(rounds: int) -> list[Figure]:
    """With 2 ranks one of which raises, under TrainJob with forks and under torchrun."""
    samples: dict[str, list[float]] = {"forked": [], "torchrun": []}
    for _ in range(rounds):
        for way, launcher in WAYS:
            if way in samples:
                times = down_times(launcher, 2, strike=signal.SIGUSR2)
                samples[way] += times
                told = " ".join(f"{each:.3f}" for each in times)
                print(f"  restart_2_raised {way}: {told} s", file=sys.stderr, flush=True)
    return [Figure("restart_2_raised", "s", samples["forked"], samples["torchrun"], "torchrun --max-restarts")]


def _measured(name: str, rounds: int, ranks: int, imports: Sequence[str] = ()) -> list[Figure]:
    others = peers()
    ways = (*WAYS, *((peer.way, launcher) for peer, launcher in others))
    samples: dict[str, list[float]] = {way: [] for way, _ in ways}
    for _ in range(rounds):
        for way, launcher in ways:
            learns = bool(imports) and launcher is trainjob_forked
            times = down_times(launcher, ranks, imports, learns=learns)
            samples[way] += times
            print(f"  {name} {way}: {' '.join(f'{each:.3f}' for each in times)} s", file=sys.stderr, flush=True)
    forked, plain, theirs = (samples[way] for way, _ in WAYS)
    figures = [
        Figure(f"{name}_forked", "s", forked, theirs, "torchrun --max-restarts"),
        Figure(f"{name}_plain", "s", plain, theirs, "torchrun --max-restarts"),
    ]
    return figures + [
        Figure(f"{name}_forked_vs_{peer.way}", "s", forked, samples[peer.way], peer.name) for peer, _ in others
    ]


def down_times(
    launcher: Launcher,
    ranks: int,
    imports: Sequence[str] = (),
    *,
    workload: str = "steps.py",
    learns: bool = False,
    kills: int = KILLS,
    strike: signal.Signals = signal.SIGKILL,
) -> list[float]:
    """Of kills of one job in a row. `learns`: once the ranks' parent has learned what the script imports. `strike`:
    what a rank gets; at SIGUSR2 `steps.py` raises.
    """
    with running(launcher, *imports, ranks=ranks, workload=workload) as job:
        if learns:
            job.wait_for_word(LEARNED, WORKERS)  # each has a parent of its own
        return [_down_time(job, attempt, ranks, strike) for attempt in range(1, kills + 1)]


def _down_time(job: Job, attempt: int, ranks: int, strike: signal.Signals) -> float:
    # One after the other: a worker that breaks twice without progress is replaced, which is another figure.
    struck = attempt % ranks

    def victim(steps: list[Step]) -> Step | None:
        return next(
            (step for step in steps if step.attempt == attempt and step.rank == struck and step.step >= STEPS_BEFORE),
            None,
        )

    pid = job.wait_for(f"step {STEPS_BEFORE} of attempt {attempt}", victim).pid
    time.sleep(STEADY_S)
    killed_at = time.time()
    os.kill(pid, strike)

    def back(steps: list[Step]) -> Step | None:
        return last_first_step(steps, attempt, ranks)

    return job.wait_for(f"the first step on all ranks after kill {attempt}", back).time - killed_at


def last_first_step(steps: Sequence[Step], attempt: int, ranks: int) -> Step | None:
    """The one with which all ranks have made a step since that attempt; None: some have not."""
    first = {step.rank: step for step in reversed(steps) if step.attempt > attempt}
    return max(first.values(), key=lambda step: step.time) if len(first) == ranks else None
