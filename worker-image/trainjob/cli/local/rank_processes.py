"""The ranks of a running job of this machine, for `tj status`: which process each one is, in which worker."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainjob.launch.local import ranks
from trainjob.screen import wording

if TYPE_CHECKING:
    from trainjob.launch.local.registry.records import Record
    from trainjob_api.v1alpha1 import TrainJob

HEADER = ("RANK", "PID", "WORKER", "MEMORY")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One rank; one that has no process yet, or has just lost it, has no pid."""

    attempt: int
    rank: int
    pid: int | None
    worker: str
    memory: int | None
    """Bytes of its process alone, as `ps` has them (RSS)."""

    @property
    def row(self) -> list[str]:
        """Its cells."""
        pid = "(starting)" if self.pid is None else str(self.pid)
        return [str(self.rank), pid, self.worker, "" if self.memory is None else wording.size(self.memory)]

    @property
    def as_json(self) -> dict[str, Any]:
        """The same for programs."""
        own = {"rank": self.rank, "pid": self.pid, "worker": self.worker, "memoryBytes": self.memory}
        return {**own, "attempt": self.attempt}


def of(record: Record, job: TrainJob) -> list[Shown]:
    """Those of the running attempt, in their order; the kernel says which process is which."""
    attempt = job.status.attempt
    if attempt is None or attempt.state != "Running":
        return []
    there = {each.rank: each.pid for each in ranks.below(record.pid)}
    return [
        Shown(
            rank=rank,
            pid=(pid := there.get(rank)),
            attempt=attempt.number,
            worker=ranks.worker(job, rank),
            memory=None if pid is None else _resident(pid),
        )
        for rank in range(attempt.world_size)
    ]


def _resident(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):  # it has just ended
        return None
