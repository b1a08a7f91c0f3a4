"""How long a user waits: from the command, and from `fit()`, to the end of the first step of 2 ranks; torch's import
is in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.jobs import (
    DLROVER,
    PATIENCE_S,
    RAY,
    WORKLOADS,
    Launcher,
    Step,
    running,
    torchrun,
    trainjob,
    trainjob_kept,
)


def measure(rounds: int) -> list[Figure]:
    """The command beside torchrun, beside DLRover where it is, and beside itself where a process is kept warm; `fit()`
    beside Ray Train where that is; in turn.
    """
    ray, dlrover = RAY.python(), DLROVER.python()
    ours: list[float] = []
    theirs: list[float] = []
    by_dlrover: list[float] = []
    kept: list[float] = []
    fits: list[float] = []
    ray_fits: list[float] = []
    with _kept_warm():
        for _ in range(rounds):
            ours.append(_command_to_step(trainjob))
            theirs.append(_command_to_step(torchrun))
            if dlrover:
                by_dlrover.append(_command_to_step(DLROVER.launcher(dlrover)))
            kept.append(_command_to_step(trainjob_kept))
            fits.append(_fit_to_step(sys.executable, "trainjob"))
            if ray:
                ray_fits.append(_fit_to_step(ray, "ray"))
    figures = [Figure("fit_to_first_step", "s", fits), Figure("command_to_first_step", "s", ours, theirs, "torchrun")]
    figures += [Figure("command_to_first_step_kept_warm", "s", kept, ours, "TrainJob, first job")]
    if by_dlrover:
        figures.append(Figure("command_to_first_step_vs_dlrover", "s", ours, by_dlrover, DLROVER.name))
    if ray_fits:
        figures.append(Figure("fit_to_first_step_vs_ray", "s", fits, ray_fits, RAY.name))
    return figures


def _command_to_step(launcher: Launcher) -> float:
    def first(steps: list[Step]) -> Step | None:
        return next((step for step in steps if step.rank == 0), None)

    begun = time.time()
    with running(launcher) as job:
        return job.wait_for("the first step", first).time - begun


@contextmanager
def _kept_warm() -> Iterator[None]:
    """A job has left a process that has imported torch; in a state folder of its own."""
    before = os.environ.get("XDG_STATE_HOME")
    with tempfile.TemporaryDirectory(prefix="tj-bench-") as state:
        os.environ["XDG_STATE_HOME"] = state
        try:
            # The second has waited until all was imported.
            for _ in range(2):
                _command_to_step(trainjob_kept)
            yield
        finally:
            subprocess.run([sys.executable, "-m", "trainjob.cli", "stop", "--warm"], check=True, capture_output=True)
            del os.environ["XDG_STATE_HOME"]
            if before is not None:
                os.environ["XDG_STATE_HOME"] = before


def _fit_to_step(python: str, library: str) -> float:
    with tempfile.TemporaryDirectory(prefix="tj-bench-") as folder:
        out = Path(folder) / "times.json"
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [python, str(WORKLOADS / "fit.py"), library, str(out)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env=environment,
        )
        if done.returncode != 0:
            raise RuntimeError(f"fit.py {library} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        times = json.loads(out.read_text())
        return float(times["first_step"] - times["fit"])
