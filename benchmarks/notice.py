"""What a spot notice of 30 s costs a job with 2 GiB of state on S3.

    PYTHONPATH=tests python -m benchmarks.notice [--mib M] [--grace S] [--rounds N]

2 ranks on the local backend, with real agents and an S3 server (versitygw) on this machine. In the middle of what lies
between two checkpoints the worker of rank 1 is evicted as a node that is taken away does it: the condition
DisruptionTarget, and its deletion with the grace period, after which everything of it gets SIGKILL. Whoever saves by
itself alone loses the steps since its last checkpoint: they are counted beside.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from benchmarks import s3_transfer
from benchmarks.figures import Figure
from benchmarks.jobs import WORKLOADS, Job, Step
from support.edited import Edited
from trainjob.launch import job as jobs
from trainjob.launch.local import drive
from trainjob.launch.local.backend import LocalEvent, LocalOptions, run_job

NAME, VICTIM = "noticed", 1
STEPS_BEFORE = 50
"""Made since the job began, which nothing has saved."""
STEPS_BEHIND = 5


class Run:
    """One job, which is noticed once and stops itself."""

    def __init__(self, notes: Path, grace_s: int) -> None:
        self._notes, self._grace_s = notes, grace_s
        self.noticed_at = self.gone_at = 0.0

    def steps(self) -> list[Step]:
        """Of rank 0."""
        return [step for step in Job(None, self._notes, self._notes).steps() if step.rank == 0]  # type: ignore[arg-type]

    def look(self, event: LocalEvent) -> None:
        """Whenever the job has something to tell."""
        if self.noticed_at and not self.gone_at and Edited.newest.exit_codes:
            self.gone_at = time.time()
        steps = self.steps()
        if not self.noticed_at and len(steps) >= STEPS_BEFORE:
            self.noticed_at = time.time()
            Edited.newest.evict(VICTIM, grace_s=self._grace_s, name=NAME)
        if steps and sum(step.attempt == 2 for step in steps) >= STEPS_BEHIND:
            Path(f"{self._notes}.enough").touch()

    def cost(self) -> tuple[int, float, float]:
        """Steps that were made again, and seconds from the notice until the worker had gone, and until the next
        attempt's first step. Raises RuntimeError where there was no second attempt.
        """
        before = [step for step in self.steps() if step.attempt == 1]
        after = [step for step in self.steps() if step.attempt == 2]
        if not before or not after:
            raise RuntimeError(f"no second attempt: {len(before)} steps and {len(after)}")
        again = before[-1].step + 1 - after[0].step
        return again, self.gone_at - self.noticed_at, after[0].time - self.noticed_at


def once(mib: int, grace_s: int) -> tuple[int, float, float]:
    """One job; `Run.cost` of it."""
    with tempfile.TemporaryDirectory(prefix="tj-bench-", dir=s3_transfer.roomy()) as name:
        notes = Path(name) / "notes"
        run = Run(notes, grace_s)
        command = (sys.executable, str(WORKLOADS / "noticed_steps.py"), str(notes), str(mib // 2))
        job = jobs.from_script(
            jobs.ScriptJob(command=command, name=NAME, workers=2, storage=f"s3://{s3_transfer.BUCKET}/jobs")
        )
        lines: list[str] = []

        def listen(event: LocalEvent) -> None:
            if event.kind != "status":
                lines.append(event.text)
            run.look(event)

        with (
            s3_transfer.reached(Path(name) / "server", None) as environment,
            mock.patch.dict(os.environ, environment),
            mock.patch.object(drive, "MemoryCluster", Edited),
        ):
            outcome = run_job(job, options=LocalOptions(working_dir=name), listener=listen)
        if not outcome.job.status.holds("Complete"):
            raise RuntimeError("the job did not complete:\n" + "\n".join(lines[-40:]))
        return run.cost()


def measure(rounds: int, mib: int, grace_s: int) -> list[Figure]:
    """One job a round."""
    again, gone, back = [], [], []
    for _ in range(rounds):
        steps, left_s, back_s = once(mib, grace_s)
        again.append(float(steps))
        gone.append(left_s)
        back.append(back_s)
        print(f"  made again: {steps}, gone: {left_s:.1f} s, next step: {back_s:.1f} s", file=sys.stderr, flush=True)
    return [
        Figure("notice_steps_again", "steps", again),
        Figure("notice_steps_since_checkpoint", "steps", [float(STEPS_BEFORE)]),
        Figure("notice_to_worker_gone", "s", gone),
        Figure("notice_to_next_step", "s", back),
    ]


def main() -> int:
    """One line a round, then the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.notice", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--mib", type=int, default=2048, help="state of both ranks together (default: 2048)")
    parser.add_argument("--grace", type=int, default=30, help="seconds until SIGKILL (default: 30)")
    parser.add_argument("--rounds", type=int, default=3, help="jobs (default: 3)")
    args = parser.parse_args()
    for figure in measure(args.rounds, args.mib, args.grace):
        print(figure.line())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
