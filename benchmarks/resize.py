"""How long training stands still when its size changes, and which steps that costs: 2 ranks, 4, and 2 again.

The same loop (`workloads/saved_steps.py`: 20 ms a step, each 50th is saved) in turn on TrainJob's local backend, whose
number of workers is edited, and under torchrun with `--nnodes 1:2`, where a second node of two ranks joins and is asked
to leave. From the last step of the old size, on any rank, to the first that all ranks of the new size have made.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from benchmarks import jobs
from benchmarks.figures import Figure
from benchmarks.jobs import WORKLOADS, Job, Step

SMALL, LARGE = 2, 4
STEPS_BEFORE = 60
"""Made by a size before it changes: one of them was saved."""
SCRIPT = WORKLOADS / "saved_steps.py"
Resize = Callable[[int], None]


def measure(rounds: int) -> list[Figure]:
    """One walk of each way a round."""
    stalls: dict[tuple[str, int], list[float]] = {(way, new): [] for way in WAYS for new in (SMALL, LARGE)}
    again: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, start in WAYS.items():
            with start() as (job, resize):
                for new in (LARGE, SMALL):
                    stall, twice = _resized(job, resize, new)
                    stalls[way, new].append(stall)
                    again[way].append(twice)
                    print(f"  resize to {new} {way}: {stall:.3f} s, {twice} steps again", file=sys.stderr, flush=True)
    figures = [
        Figure(f"resize_to_{new}", "s", stalls["trainjob", new], stalls["torchrun", new], "torchrun --nnodes 1:2")
        for new in (LARGE, SMALL)
    ]
    return figures + [Figure(f"resize_steps_again_{way}", "steps", found) for way, found in again.items()]


def _resized(job: Job, resize: Resize, new: int) -> tuple[float, int]:
    def far(steps: list[Step]) -> Step | None:
        mine = [step for step in steps if step.rank == 0]
        return mine[-1] if len([step for step in mine if step.pid == mine[-1].pid]) >= STEPS_BEFORE else None

    job.wait_for(f"step {STEPS_BEFORE} before there are {new} ranks", far)
    before = {step.pid for step in job.steps()}
    resize(new)
    job.wait_for(f"a step of {new} ranks", lambda steps: first_of(steps, before, new))
    return cost(job.steps(), before, new)


def first_of(steps: Sequence[Step], before: set[int], ranks: int) -> Step | None:
    """The step with which so many ranks, none of these processes, have made one; None: not all have."""
    first: dict[int, Step] = {}
    for step in steps:
        if step.pid not in before:
            first.setdefault(step.rank, step)
    return max(first.values(), key=lambda step: step.time) if set(first) >= set(range(ranks)) else None


def cost(steps: Sequence[Step], before: set[int], ranks: int) -> tuple[float, int]:
    """Seconds without a step, and how many steps of rank 0 were made again."""
    first = first_of(steps, before, ranks)
    assert first is not None
    last = max(step.time for step in steps if step.pid in before)
    old = max(step.step for step in steps if step.rank == 0 and step.pid in before)
    new = min(step.step for step in steps if step.rank == 0 and step.pid not in before)
    return first.time - last, max(0, old - new + 1)


@contextmanager
def _trainjob() -> Iterator[tuple[Job, Resize]]:
    with tempfile.TemporaryDirectory(prefix="tj-bench-") as folder:
        wish = Path(folder, "workers")
        wish.write_text(str(SMALL))

        def launcher(script: Path, notes: str, folder: Path, **_: object) -> list[str]:
            return [
                sys.executable,
                str(WORKLOADS / "scaled.py"),
                str(wish),
                str(folder / "storage"),
                str(script),
                notes,
            ]

        with jobs.running(launcher, workload=SCRIPT.name) as job:
            yield job, lambda size: _write(wish, size)


def _write(wish: Path, size: int) -> None:
    wish.write_text(str(size))


@contextmanager
def _torchrun() -> Iterator[tuple[Job, Resize]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"127.0.0.1:{server.getsockname()[1]}"

    def launcher(script: Path, notes: str, **_: object) -> list[str]:
        size = ["--nnodes", "1:2", "--nproc-per-node", str(SMALL), "--max-restarts", str(jobs.RESTARTS)]
        meets = ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "bench"]
        return [sys.executable, "-m", "torch.distributed.run", *size, *meets, str(script), notes]

    others: list[subprocess.Popen[bytes]] = []
    with jobs.running(launcher, workload=SCRIPT.name) as job:

        def resize(size: int) -> None:
            if size == SMALL:
                jobs.stop(others.pop())
                return
            with job.log.with_name("second").open("wb") as output:
                environ = {**os.environ, **jobs.ENVIRONMENT}
                words = launcher(SCRIPT, str(job.notes))
                others.append(subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, env=environ))

        try:
            yield job, resize
        finally:
            for other in others:
                jobs.stop(other)


WAYS: dict[str, Callable[[], AbstractContextManager[tuple[Job, Resize]]]] = {
    "trainjob": _trainjob,
    "torchrun": _torchrun,
}
