"""`make demo`: trains digits on two local workers, kills one worker's process on the way, and measures what that cost.

What runs is `tj run examples/digits/train.py --workers 2`, as anyone would type it. The rank's pid comes from the line
that it prints, the kill is SIGKILL, and every figure of the last line is read from the job's own history on storage:

    demo: accuracy=<test accuracy> attempts=<n> lost_steps=<n> recovery_s=<kill to next step> total_s=<n>

Ends with 1 if the accuracy is below 0.95, if a step is lost that had been reported, or if there were not two attempts.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TRAIN = Path(__file__).with_name("train.py")
Row = dict[str, Any]

KILL_AFTER_EPOCH = 4
VICTIM = 1
LEAST_ACCURACY = 0.95
SILENT_S = 300.0
"""A job that says nothing for so long hangs. A busy machine takes minutes to import torch, and that is no failure."""

PID = re.compile(r"rank (?P<rank>\d+) of \d+ pid (?P<pid>\d+) attempt 1\b")
EPOCH = re.compile(r"epoch (?P<epoch>\d+) attempt 1 step (?P<step>\d+)\b")


@dataclass
class Watch:
    """What the workers' lines said, and the kill."""

    pid: int | None = None
    printed: set[int] = field(default_factory=set)
    """Steps at which report() had returned before the kill, as rank 0 printed them."""
    killed_at: float | None = None

    def read(self, line: str) -> None:
        """Take in one line; kill the victim once the epoch is over and the next one is under way."""
        if self.killed_at is not None:
            return
        started, epoch = PID.search(line), EPOCH.search(line)
        if started and int(started["rank"]) == VICTIM:
            self.pid = int(started["pid"])
        if epoch:
            self.printed.add(int(epoch["step"]))
            if int(epoch["epoch"]) == KILL_AFTER_EPOCH and self.pid is not None:
                say(f"kill -9 {self.pid}: rank {VICTIM}, in the middle of epoch {KILL_AFTER_EPOCH + 1}")
                self.killed_at = time.time()
                os.kill(self.pid, signal.SIGKILL)


@dataclass
class Outcome:
    """The figures, all from the rows that the job left on storage."""

    accuracy: float
    attempts: int
    lost_steps: int
    recovery_s: float


def main() -> int:
    """Run, kill, measure."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="trainjob-demo-") as storage:
        command = [
            sys.executable,
            "-m",
            "trainjob.cli",
            "run",
            str(TRAIN),
            "--workers",
            "2",
            "--name",
            "digits",
            "--storage",
            storage,
            "--plain",
        ]
        say(f"tj {' '.join(command[3:])}")
        watch = Watch()
        # Its folder goes, so `tj list` of this machine is not to remember the job.
        code = run(command, watch, environ={"XDG_STATE_HOME": os.path.join(storage, "state")})
        total_s = time.monotonic() - begun
        if code != 0 or watch.killed_at is None:
            say(
                f"failed: the job ended with exit code {code}"
                + ("" if watch.killed_at else f", and rank {VICTIM} was never killed")
            )
            return 1
        outcome = measure(rows(Path(storage)), watch)
    problems = judge(outcome)
    for problem in problems:
        say(f"failed: {problem}")
    print(
        f"demo: accuracy={outcome.accuracy:.4f} attempts={outcome.attempts} lost_steps={outcome.lost_steps} "
        f"recovery_s={outcome.recovery_s:.2f} total_s={total_s:.1f}"
    )
    return 1 if problems else 0


def run(command: list[str], watch: Watch, silent_s: float = SILENT_S, environ: dict[str, str] | None = None) -> int:
    """Run the command with its output passed on line by line; its exit code. Ends a command that says nothing for so
    long.
    """
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        bufsize=1,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environ or {})},
    ) as process:

        def give_up() -> None:
            say(f"nothing was said for {silent_s:g} s: the job is ended")
            process.kill()

        alarm = threading.Timer(silent_s, give_up)
        alarm.start()
        try:
            for line in process.stdout or ():
                alarm.cancel()
                alarm = threading.Timer(silent_s, give_up)
                alarm.start()
                print(line, end="", flush=True)
                watch.read(line)
            return process.wait()
        finally:
            alarm.cancel()
            process.kill()


def rows(storage: Path) -> list[Row]:
    """The report and log rows of all attempts, in the order in which they were made."""
    found: list[Row] = []
    for file in sorted(storage.glob("*/digits/history/*.jsonl")):
        found += [json.loads(line) for line in file.read_text().splitlines()]
    return sorted((row for row in found if row["kind"] in ("report", "log")), key=lambda row: row["time"])


def measure(history: list[Row], watch: Watch) -> Outcome:
    """Figures from the rows.

    Lost are the steps that had been reported before the kill (the history's word and what rank 0 had printed) and that
    the next attempt had to do again, and those whose report is missing from what remains.
    """
    reports = [row for row in history if row["kind"] == "report"]
    before = {row["step"] for row in reports if row["attempt"] == 1} | watch.printed
    again = [row for row in history if row["attempt"] == 2 and row["step"] is not None]
    redone = {row["step"] for row in again if row["step"] <= max(before)}
    missing = before - {row["step"] for row in reports}
    return Outcome(
        accuracy=reports[-1]["metrics"]["accuracy"],
        attempts=max(row["attempt"] for row in history),
        lost_steps=len(redone | missing),
        recovery_s=min(row["time"] for row in again) - watch.killed_at,
    )


def judge(outcome: Outcome) -> list[str]:
    """What is not as it must be."""
    checks = [
        (outcome.accuracy >= LEAST_ACCURACY, f"accuracy {outcome.accuracy:.4f} is below {LEAST_ACCURACY}"),
        (outcome.attempts == 2, f"one kill should make two attempts, not {outcome.attempts}"),
        (outcome.lost_steps == 0, f"{outcome.lost_steps} steps were lost that had been reported"),
    ]
    return [text for good, text in checks if not good]


def say(text: str) -> None:
    """A line of the demo's own, in the width of a rank's prefix."""
    print(f"demo | {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
