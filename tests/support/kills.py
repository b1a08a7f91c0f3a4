"""Kills random ranks of a running local job from outside, and keeps count. Seeded; used by the random-kill scenario."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from support.patience import HANG_S
from trainjob_api import contract


class RankProcess(NamedTuple):
    """A living rank."""

    pid: int
    rank: int
    attempt: int


@dataclass(frozen=True)
class Plan:
    """How to strike."""

    seed: int
    kills: int
    pause_s: float
    """The longest pause; the length is random."""
    anywhere: float
    """Share of blows that do not wait for the attempt's first report: at import, in the join, while restoring."""


def rank_processes(mark: str, job: str) -> list[RankProcess]:
    """The rank processes (not agents) of that job whose pod works below `mark`."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if b"trainjob.session.rank" not in Path(f"/proc/{name}/cmdline").read_bytes():
                continue
            pairs = (entry.partition(b"=") for entry in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"))
            variables = {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}
        except OSError:
            continue
        rank, attempt = variables.get(contract.ENV_RANK, ""), variables.get(contract.ENV_ATTEMPT, "")
        if not (rank.isdigit() and attempt.isdigit()):
            continue  # a fork that is still becoming a rank: it shows its arguments before its environment
        if variables.get(contract.ENV_JOB) == job and variables.get(contract.ENV_WORK_DIR, "").startswith(mark):
            found.append(RankProcess(int(name), int(rank), int(attempt)))
    return sorted(found)


class Killer(threading.Thread):
    """Ends a random rank at random moments, most of them after `reported(attempt)`, until it has done so `limit`
    times or is told to stop.
    """

    def __init__(self, mark: Path, job: str, reported: Callable[[], int], plan: Plan) -> None:
        """`reported` gives the newest attempt that has reported."""
        super().__init__(name="killer", daemon=True)
        self._mark, self._job = str(mark), job
        self._reported = reported
        self._plan = plan
        self._random = random.Random(plan.seed)
        self._stopped = threading.Event()
        self._mine: set[int] = set()
        self.kills: list[tuple[int, int, int]] = []
        """(attempt, rank, signal)"""

    def run(self) -> None:
        while len(self.kills) < self._plan.kills and not self._stopped.wait(
            self._random.uniform(0.0, self._plan.pause_s)
        ):
            anywhere = self._random.random() < self._plan.anywhere
            while not self._stopped.wait(0.01):
                victims = [rank for rank in rank_processes(self._mark, self._job) if rank.pid not in self._mine]
                if victims and (anywhere or self._reported() >= victims[0].attempt):
                    self._strike(self._random.choice(victims))
                    break

    def _strike(self, victim: RankProcess) -> None:
        """At a random moment of the next few milliseconds: polls alone would always strike at the same places."""
        self._stopped.wait(self._random.uniform(0.0, self._plan.pause_s))
        number = self._random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
        try:
            os.kill(victim.pid, number)
        except ProcessLookupError:
            return
        # All processes of a struck attempt go; the next blow is for the next one.
        self._mine |= {rank.pid for rank in rank_processes(self._mark, self._job) if rank.attempt == victim.attempt} | {
            victim.pid
        }
        self.kills.append((victim.attempt, victim.rank, int(number)))

    def stop(self) -> None:
        """No kill from now on."""
        self._stopped.set()
        self.join(HANG_S)
