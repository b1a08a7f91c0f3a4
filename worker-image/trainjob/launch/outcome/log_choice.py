"""Which ranks are meant by `0,3-5`, in which pods they run, and which lines of a pod's log are theirs; pure.

Called by what follows the logs of a job. The agent puts `r03 | ` before each line of rank 3; where no agent runs, the
pod's place among the workers is its rank.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainjob.agent import rank_names
from trainjob.launch.errors import ConfigError
from trainjob_api import defaults, slots
from trainjob_api.v1alpha1 import TrainJob

SHOWN_RANKS = 8
"""With more ranks than this only rank 0 is shown, unless ranks are named."""

_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)
_PREFIX = re.compile(r"r(\d{2,6}) \| ", re.ASCII)
AGENT = "agent | "


@dataclass(frozen=True)
class Selection:
    """A set of ranks."""

    ranks: frozenset[int] | None = None
    """None: all."""

    def __contains__(self, rank: int) -> bool:
        return self.ranks is None or rank in self.ranks


ALL = Selection()


def parse(text: str) -> Selection:
    """`all`, `3`, `0,3-5`. Raises ConfigError."""
    if text == "all":
        return ALL
    try:
        return Selection(rank_names.parse(text))
    except ValueError as error:
        raise ConfigError("rank", text, f"{error}, or all") from None


def usual(job: TrainJob) -> Selection:
    """What is shown when nobody asks: all ranks of a small job, rank 0 of a large one."""
    return ALL if world_size(job) <= SHOWN_RANKS else Selection(frozenset({0}))


def world_size(job: TrainJob) -> int:
    """Of the newest attempt, else as the spec asks."""
    attempt = job.status.attempt
    return attempt.world_size if attempt else job.spec.workers * defaults.processes_per_worker(job.spec)


def largest_size(job: TrainJob) -> int:
    """How many ranks the job had at most, or may come to have."""
    began = [world_size(job), *(each.world_size for each in job.status.history)]
    return max(job.spec.workers * defaults.processes_per_worker(job.spec), *began)


def workers(job: TrainJob) -> list[int]:
    """Slots in the order of their ranks: the newest attempt's members, before that the pods there are to be."""
    attempt = job.status.attempt
    return slots.listed(attempt.members if attempt else job.status.slots)


def is_spare(job: TrainJob, slot: int) -> bool:
    """Whether that pod's worker is a spare, in no attempt."""
    return slot in slots.listed(job.status.spares) and slot not in workers(job)


def first_rank(job: TrainJob, slot: int) -> int | None:
    """The first rank of that pod; None where it is no member (yet)."""
    listed = workers(job)
    return listed.index(slot) * defaults.processes_per_worker(job.spec) if slot in listed else None


def concerns(job: TrainJob, slot: int, selection: Selection) -> bool:
    """Whether a pod runs one of the ranks, as far as is known now."""
    if selection.ranks is None:
        return True
    first = first_rank(job, slot)
    return first is not None and any(
        rank in selection for rank in range(first, first + defaults.processes_per_worker(job.spec))
    )


def rank_of(line: str) -> int | None:
    """Whose line it is, by its prefix; None: an agent's, or of what else a worker runs."""
    match = _PREFIX.match(line)
    return None if match is None else int(match[1])


def shown(line: str, selection: Selection, *, pod: str, index: int | None) -> str | None:
    """A line of a pod's log as it is shown; None when it is another rank's.

    `index`: of the worker, where no agent prefixes the lines (plain mode); else None.
    """
    if index is not None:
        return f"r{index:02d} | {line}"
    rank = rank_of(line)
    if rank is not None:
        return line if rank in selection else None
    return f"{pod} | {line.removeprefix(AGENT)}"
