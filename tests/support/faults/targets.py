"""The processes of a job on this machine, as anybody can see them in /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trainjob_api import contract

RANK, AGENT, WARM_PARENT, STORAGE_CHILD = "rank", "agent", "warm parent", "storage child"
_WORDS = (
    (WARM_PARENT, contract.WARM),
    (RANK, "trainjob.session.rank"),
    (AGENT, "trainjob.launch.local.pod"),
    (STORAGE_CHILD, "trainjob.checkpoint.storage_child.child"),
)
"""On the command line, the first that fits: a warm parent is a rank to be."""


class Process(NamedTuple):
    """One of a job's."""

    pid: int
    kind: str
    slot: int
    rank: int
    """-1: of none."""
    attempt: int
    born: int


def processes(mark: str, job: str) -> list[Process]:
    """Of the job of that name whose pods work below `mark`. A fork that is still becoming a rank is left out."""
    return sorted(
        found for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) for found in _seen(pid, mark, job)
    )


def ranks(mark: str, job: str) -> list[Process]:
    """Of these, the ranks."""
    return [each for each in processes(mark, job) if each.kind == RANK]


def of_rank(mark: str, job: str, kind: str, rank: int) -> Process:
    """The process of that kind that serves this rank, the oldest of several: a warm parent's forks look like it until they
    are ranks. One process a worker is assumed. Raises LookupError.
    """
    seen = processes(mark, job)
    slots = {each.slot for each in seen if each.kind == RANK and each.rank == rank} or {rank}
    found = [each for each in seen if each.kind == kind and each.slot in slots and each.rank in (rank, -1)]
    if not found:
        raise LookupError(f"rank {rank} of {job} has no {kind}: {seen}")
    return min(found, key=lambda each: each.born)


def gone(pid: int) -> bool:
    """Whether it has ended; what nobody has collected yet has."""
    try:
        return _stat(pid)[0] in (b"Z", b"X")
    except OSError:
        return True


def _seen(pid: int, mark: str, job: str) -> Iterator[Process]:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        kind = next((kind for kind, word in _WORDS if word.encode() in words), None)
        if kind is None:
            return
        pairs = (entry.partition(b"=") for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
        variables = {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}
        born = int(_stat(pid)[19])
    except OSError:
        return
    ours = variables.get(contract.ENV_WORK_DIR, "").startswith(mark) and variables.get(contract.ENV_JOB) == job
    rank, attempt = variables.get(contract.ENV_RANK, ""), variables.get(contract.ENV_ATTEMPT, "")
    if not ours or (kind == RANK and not (rank.isdigit() and attempt.isdigit())):
        return
    if kind != RANK:
        rank, attempt = "-1", "-1"
    yield Process(pid, kind, int(variables.get(contract.ENV_SLOT, "-1")), int(rank), int(attempt), born)


def _stat(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
