"""Lightning and Hugging Face's Trainer as jobs: how long a killed rank costs, beside a bare loop; what a step costs,
beside the framework alone.

    PYTHONPATH=tests python -m benchmarks.frameworks --libraries FOLDER [--rounds N] [--only recovery step]

FOLDER: what `tests/frameworks/environment.py requirements.txt` prints. All ways take turns in each round, so that all
see the same machine.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure
from benchmarks.jobs import LEARNING_S, Job, Launcher, Step, running, torchrun, trainjob, trainjob_forked
from benchmarks.measuring import arguments, measure
from benchmarks.restart import down_times

RANKS = 2
KILLS = 4
STEPS, WARM_UP = 400, 100
"""Of a job whose steps are timed; those that are not counted."""
WORKLOADS = {"lightning": ("lightning_steps.py", "512"), "transformers": ("transformers_steps.py", "64")}
"""The script, and the width of its model where steps are timed: some 10 to 30 ms a step."""
BARE = "bare"


def recovery(rounds: int) -> list[Figure]:
    """KILLS kills a round of each way, once the parent of forks has learned what the script imports."""
    scripts = {BARE: "steps.py", **{name: script for name, (script, _) in WORKLOADS.items()}}
    samples: dict[str, list[float]] = {way: [] for way in scripts}
    for _ in range(rounds):
        for way, script in scripts.items():
            times = down_times(trainjob_forked, RANKS, workload=script, learns=way != BARE, kills=KILLS)
            samples[way] += times
            print(f"  {way}: {' '.join(f'{each:.3f}' for each in times)} s", file=sys.stderr, flush=True)
    bare = samples.pop(BARE)
    return [Figure(f"recovery_{way}", "s", each, bare, "a bare loop") for way, each in samples.items()]


def step(rounds: int) -> list[Figure]:
    """One job of each way a round. A sample is the median of its steps' processor time on rank 0; the few that save
    lie above it.
    """
    ways: dict[str, Launcher] = {"ours": trainjob, "alone": torchrun}
    samples: dict[tuple[str, str], list[float]] = {(name, way): [] for name in WORKLOADS for way in ways}
    for number in range(rounds):
        for name, (script, width) in WORKLOADS.items():
            # Whoever is first in a round is second in the next.
            for way in sorted(ways, reverse=bool(number % 2)):
                with running(ways[way], way, str(STEPS), width, workload=script) as job:
                    took = _median_step_ms(job)
                samples[name, way].append(took)
                print(f"  {name} {way}: {took:.3f} ms", file=sys.stderr, flush=True)
    return [
        Figure(f"step_cpu_{name}", "ms", samples[name, "ours"], samples[name, "alone"], f"{name} alone")
        for name in WORKLOADS
    ]


def _median_step_ms(job: Job) -> float:
    def last(steps: list[Step]) -> Step | None:
        return next((one for one in steps if one.rank == 0 and one.step >= STEPS - 1), None)

    job.wait_for(f"step {STEPS - 1}", last, LEARNING_S)
    times = [one.time for one in job.steps() if one.rank == 0 and one.step > WARM_UP]
    return 1000 * median(after - before for before, after in itertools.pairwise(times))


MEASUREMENTS: dict[str, Callable[[int], list[Figure]]] = {"recovery": recovery, "step": step}


def main() -> int:
    """Measure what was asked for."""
    parser = arguments("python -m benchmarks.frameworks", __doc__, MEASUREMENTS)
    parser.add_argument("--libraries", type=Path, required=True, metavar="FOLDER", help="where the frameworks are")
    args = parser.parse_args()
    # As an image has them: of what lies elsewhere the ranks' parent learns nothing, as it may be the user's.
    os.environ["PYTHONPATH"] = str(args.libraries / "site-packages")
    return measure(args, lambda name: MEASUREMENTS[name](args.rounds))


if __name__ == "__main__":
    sys.exit(main())
