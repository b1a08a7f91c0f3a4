"""Nodes on which the ranks of different jobs broke or were slow: new pods of the namespace keep away from them. Pure.

Asked by the operator (`loop/suspects.py`) and by `tj doctor`, of what stands in the jobs' statuses: it is written with
the failure itself (`with_suspects`), so a new leader knows of a job as much as the one before. One job alone proves
nothing of a node: its own rule (`failures.avoidNodes`) sees to that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from trainjob_api import contract
from trainjob_api.v1alpha1 import Failure, SuspectNode, TrainJob

FOR = timedelta(hours=1)
"""A node is kept away from for so long after the last that is known of it,"""
JOBS = 2
"""if so many jobs of the namespace suffered there within that time."""
NODES_LIMIT = 8
"""Nodes that are kept away from: who has more bad ones has another problem, and pods still need a place."""
SUSPECT = frozenset(
    (
        contract.REASON_POD_LOST,
        contract.REASON_WORKER_UNREACHABLE,
        contract.REASON_PEERS_UNREACHABLE,
        contract.REASON_CONTAINER_RESTARTED,
        contract.REASON_HANG,
    )
)
"""Causes that look like a machine's. What a script raises, exits with, or uses of memory is its own, and who is
preempted was on a good node.
"""
SIGBUS = 7
"""The kernel could not read what was mapped: a disk, a network file system, memory that is broken."""


class Mark(NamedTuple):
    """What one job says of a node."""

    node: str
    at: datetime
    job: str
    why: str


class BadNode(NamedTuple):
    """Pods keep away from it."""

    name: str
    until: datetime
    why: str
    """For people: which jobs suffered what there."""


def marks(job: TrainJob, now: datetime) -> list[Mark]:
    """What its status says of nodes, the newest word of each."""
    name, status = job.metadata.name, job.status
    found = [Mark(suspect.node, _aware(suspect.time), name, suspect.reason) for suspect in status.suspects]
    failure = status.last_failure
    if failure is not None and failure.node and looks_like_a_machine(failure):
        found.append(Mark(failure.node, _aware(failure.time), name, failure.reason))
    slow = status.stragglers
    if slow is not None:
        says = status.condition("Degraded")
        lasts = says is not None and (says.status, says.reason) == ("True", contract.REASON_STRAGGLER)
        nodes = {rank.node for rank in slow.ranks if rank.node}
        at = now if lasts else _aware(slow.since)
        found += [Mark(node, at, name, contract.REASON_STRAGGLER) for node in sorted(nodes)]
    return list({mark.node: mark for mark in sorted(found, key=lambda mark: mark.at)}.values())


def looks_like_a_machine(failure: Failure) -> bool:
    """Whether what broke may be the fault of what it ran on."""
    return failure.reason in SUSPECT or (failure.reason == contract.REASON_SIGNAL and failure.signal == SIGBUS)


def with_suspects(known: Sequence[SuspectNode], nodes: Iterable[str], time: datetime, reason: str) -> list[SuspectNode]:
    """What a job remembers of nodes, once it broke or was slow on these: the newest last. What has no effect any more
    goes, and the oldest where there are too many.
    """
    new = [SuspectNode(node=node, time=time, reason=reason) for node in sorted(set(nodes))]
    named = {suspect.node for suspect in new}
    kept = [each for each in known if each.node not in named and _aware(each.time) > _aware(time) - FOR]
    return [*kept, *new][-contract.SUSPECTS_LIMIT :]


def bad_nodes(told: Iterable[Mark], now: datetime) -> tuple[BadNode, ...]:
    """Of the marks of one namespace's jobs; the latest first, and no more than NODES_LIMIT."""
    by_node: defaultdict[str, dict[str, Mark]] = defaultdict(dict)
    for mark in sorted(told, key=lambda mark: mark.at):
        if now - FOR < mark.at:
            by_node[mark.node][mark.job] = mark  # the newest of each job
    bad = [
        BadNode(
            node,
            min(now, max(mark.at for mark in of_jobs.values())) + FOR,
            ", ".join(f"{mark.job} ({mark.why})" for _, mark in sorted(of_jobs.items())[:4]),
        )
        for node, of_jobs in by_node.items()
        if len(of_jobs) >= JOBS
    ]
    return tuple(sorted(bad, key=lambda node: (-node.until.timestamp(), node.name))[:NODES_LIMIT])


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
