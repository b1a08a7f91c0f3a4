"""Starts one training script under TrainJob or under torchrun, and reads the steps that its ranks note down.

Both sides run the same file (`workloads/steps.py`) with the same arguments; only the launcher differs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trainjob_api import contract

WORKLOADS = Path(__file__).parent / "workloads"
RANKS = 2
WORKERS = 2
RESTARTS = 10
PATIENCE_S = 90.0
LEARNING_S = 300.0
"""For imports that are made beside the training, at a quarter of a processor."""
_STOP_S = 20.0
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    # Else torchrun's restarted ranks find the gloo addresses of those that were killed in a store that outlives them,
    # and most restarts fail (seen with torch 2.13). TrainJob does not read it.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}


@dataclass(frozen=True)
class Step:
    """One line of the workload's notes: a step that a rank has finished."""

    rank: int
    pid: int
    attempt: int
    step: int
    time: float


@dataclass(frozen=True)
class Job:
    """A running job."""

    process: subprocess.Popen[bytes]
    notes: Path
    log: Path

    def steps(self) -> list[Step]:
        """What the ranks have noted so far; a line that is being written is left out."""
        text = self.notes.read_text() if self.notes.exists() else ""
        rows = (line.split() for line in text.splitlines()[: text.count("\n")])
        return [Step(int(rank), int(pid), int(attempt), int(step), float(at)) for rank, pid, attempt, step, at in rows]

    def wait_for_word(self, word: str, times: int = 1) -> None:
        """Until the job has printed it so often. Raises RuntimeError as `wait_for` does."""

        def printed(steps: list[Step]) -> Step | None:
            return steps[-1] if steps and self.log.read_text().count(word) >= times else None

        self.wait_for(repr(word), printed, LEARNING_S)

    def wait_for(
        self, what: str, condition: Callable[[list[Step]], Step | None], patience_s: float = PATIENCE_S
    ) -> Step:
        """The step that the condition picks, once there is one. Raises RuntimeError with the job's output when the
        job ends or takes too long.
        """
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            found = condition(self.steps())
            if found is not None:
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.002)
        raise RuntimeError(
            f"{what} did not come; the end of {' '.join(map(str, self.process.args))}:\n{self.log.read_text()[-30000:]}"
        )  # type: ignore[arg-type]


def trainjob(
    script: Path, *arguments: str, folder: Path, ranks: int = RANKS, prefork: str = contract.PREFORK_NEVER
) -> list[str]:
    """The command line that runs the script under TrainJob, on two workers."""
    size = ["--workers", str(WORKERS), "--processes-per-worker", str(ranks // WORKERS)]
    options = ["--max-failures", str(RESTARTS), "--storage", str(folder / "storage"), "--plain", "--prefork", prefork]
    return [sys.executable, "-m", "trainjob.cli", "run", str(script), *size, *options, "--", *arguments]


def trainjob_forked(script: Path, *arguments: str, folder: Path, ranks: int = RANKS) -> list[str]:
    """The same with ranks that are forks of a process that has imported torch."""
    return trainjob(script, *arguments, folder=folder, ranks=ranks, prefork=contract.PREFORK_AUTO)


def trainjob_kept(script: Path, *arguments: str, folder: Path, ranks: int = RANKS) -> list[str]:
    """The same, from a process that an earlier one has left, and leaving one."""
    words = trainjob_forked(script, *arguments, folder=folder, ranks=ranks)
    at = words.index("--")
    return [*words[:at], "--keep-warm", "10m", *words[at:]]


def torchrun(script: Path, *arguments: str, folder: Path, ranks: int = RANKS) -> list[str]:
    """The same under torchrun on one node."""
    size = ["--standalone", "--nproc-per-node", str(ranks), "--max-restarts", str(RESTARTS)]
    return [sys.executable, "-m", "torch.distributed.run", *size, str(script), *arguments]


def under_ray(python: str) -> Launcher:
    """The same loop under Ray Train, by that Python."""

    def launcher(script: Path, notes: str, *imports: str, folder: Path, ranks: int = RANKS) -> list[str]:
        return [python, str(WORKLOADS / "ray_steps.py"), notes, str(ranks), str(folder / "storage"), *imports]

    return launcher


def under_dlrover(python: str) -> Launcher:
    """The same loop under DLRover on one node, with a master of its own, by that Python."""

    def launcher(script: Path, notes: str, *imports: str, folder: Path, ranks: int = RANKS) -> list[str]:
        command = [str(WORKLOADS / "dlrover_steps.py"), notes, str(folder / "storage"), *imports]
        return [*dlrover_run(python, ranks), *command]

    return launcher


def dlrover_run(python: str, ranks: int) -> list[str]:
    """As `dlrover-run` does it; a script and its arguments follow."""
    size = ["--standalone", "--nnodes=1", f"--nproc_per_node={ranks}", f"--max_restarts={RESTARTS}"]
    return [python, "-m", "dlrover.trainer.torch.main", *size]


Launcher = Callable[..., list[str]]


@contextmanager
def running(launcher: Launcher, *imports: str, ranks: int = RANKS, workload: str = "steps.py") -> Iterator[Job]:
    """Start the workload, with what it imports beside torch; stop it and clean up at the end."""
    with tempfile.TemporaryDirectory(prefix="tj-bench-") as name:
        folder = Path(name)
        notes, log = folder / "notes", folder / "log"
        command = launcher(WORKLOADS / workload, str(notes), *imports, folder=folder, ranks=ranks)
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **ENVIRONMENT},
            )
        try:
            yield Job(process, notes, log)
        finally:
            stop(process)
            _end_ranks(Job(process, notes, log))


def _end_ranks(job: Job) -> None:
    """Those that are there although their launcher has gone: Lightning's do not end at torchrun's SIGTERM."""
    for pid in {step.pid for step in job.steps()}:
        with suppress(OSError):
            if str(job.notes).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask, then insist. By SIGTERM: a shell starts what is in the background with SIGINT ignored."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_STOP_S)


class Peer(NamedTuple):
    """Another launcher, which needs an environment of its own."""

    way: str
    """In names of figures."""
    name: str
    variable: str
    """Names its Python, which has torch too."""
    module: str
    """What that one must be able to import."""
    launcher: Callable[[str], Launcher]
    """By its Python."""

    def python(self) -> str | None:
        """Its Python, if it is there; else None, with the reason on standard error."""
        python = os.environ.get(self.variable)
        if not python:
            package = self.module.partition(".")[0]
            why = f"{self.variable} names no Python that has {package} and torch"
            print(f"skipped: {self.name} ({why})", file=sys.stderr)
            return None
        try:
            subprocess.run([python, "-c", f"import {self.module}"], check=True, capture_output=True, timeout=PATIENCE_S)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"skipped: {self.name} ({python} cannot import {self.module}: {error})", file=sys.stderr)
            return None
        return python


RAY = Peer("ray", "Ray Train", "TRAINJOB_BENCH_RAY_PYTHON", "ray.train.torch", under_ray)
DLROVER = Peer(
    "dlrover", "DLRover", "TRAINJOB_BENCH_DLROVER_PYTHON", "dlrover.trainer.torch.elastic_run", under_dlrover
)


def peers() -> list[tuple[Peer, Launcher]]:
    """Those that are there."""
    return [(peer, peer.launcher(python)) for peer in (RAY, DLROVER) if (python := peer.python()) is not None]
