"""The rank processes of a running job of this machine: which process is which rank, and where its stacks go.

Told by /proc: who holds the file open into which a rank's stacks are written, below the launcher or, where a process
between the two was killed (the one that all workers are forks of), in the job's own folder; where the loop runs in a
process that was there before (`tj run --in-process`), that one. Linux.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from trainjob.agent.processes.stacks import files_of
from trainjob.launch.local import scratch
from trainjob.launch.outcome import log_choice
from trainjob_api import contract, defaults
from trainjob_operator.core.pods.naming import pod_name

if TYPE_CHECKING:
    from trainjob_api.v1alpha1 import TrainJob

_STACK_FILE = re.compile(re.escape(contract.STACK_FILE).replace(r"\{rank\}", r"(?P<rank>\d+)"))


class RankProcess(NamedTuple):
    """One rank that has reached the training library."""

    rank: int
    pid: int
    folder: str
    """Where its stack file is."""


def worker(job: TrainJob, rank: int) -> str:
    """The name of the worker that this rank of the newest attempt runs in; empty: the job has no such rank."""
    members, place = log_choice.workers(job), rank // defaults.processes_per_worker(job.spec)
    return pod_name(job.metadata.name, members[place]) if place < len(members) else ""


def below(launcher: int) -> list[RankProcess]:
    """By rank. Empty: none has come that far."""
    parents = _parents()
    places = scratch.places(files_of(launcher) or ())
    found: dict[int, tuple[int, str]] = {}
    for pid in parents:
        held = _held(pid)
        if held is not None and (_descends(pid, launcher, parents) or held[1].startswith(places)):
            found[pid] = held
    lent = {place for pid, place in found.items() if _is_stand_in(pid)}
    if lent:  # the process that trains in a stand-in's place holds its file too, and is not below the launcher
        found = {pid: place for pid, place in found.items() if place not in lent}
        elsewhere = ((pid, _held(pid)) for pid in parents if not _descends(pid, launcher, parents))
        found |= {pid: place for pid, place in elsewhere if place in lent}
    return sorted(
        RankProcess(rank, pid, os.path.dirname(path))
        for pid, (rank, path) in found.items()
        # What a rank forked (a data loader's workers) holds the file too.
        if found.get(parents[pid]) != (rank, path)
    )


def _parents() -> dict[int, int]:
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):  # it has just ended
                continue
    return parents


def _descends(pid: int, launcher: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != launcher:
        pid = parents[pid]
    return pid == launcher


def _is_stand_in(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return contract.STAND_IN_MODULE.encode() in file.read()
    except OSError:  # it has just ended
        return False


def _held(pid: int) -> tuple[int, str] | None:
    for path in files_of(pid) or ():
        match = _STACK_FILE.fullmatch(os.path.basename(path))
        if match is not None:
            return int(match["rank"]), path
    return None
