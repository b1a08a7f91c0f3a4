"""The room that the jobs of a namespace share: who lacks workers without which it cannot start, and who makes room.

Called by `giving_way.py`, `gang.py` and `decide.py`. Every operator, and every job's turn, comes to the same answer
from the same standings: askers are served by priority, then age; who has more workers than its least size gives, the
lowest priority first, then the youngest. Nobody gives to a job of a lower priority than its own, nor workers that are
too small for the asker's, nor when all together would not suffice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from trainjob_api import defaults, quantity
from trainjob_api.v1alpha1 import TrainJobSpec
from trainjob_operator.core.model import Standing

Requests = tuple[tuple[str, Decimal], ...]


class Gift(NamedTuple):
    """What a job is to do for another."""

    to: Standing
    workers: int
    """So many that train; 0: further ones alone, which wait for room themselves."""


def gift_of(me: Standing, others: Iterable[Standing]) -> Gift | None:
    """What one job gives, given how all others stand; None: nothing."""
    jobs = {job.uid: job for job in (me, *others)}
    if me.gave_to is not None or not (me.above or me.wants):
        return None  # one asker after the other: whether it helped the first is still to be seen
    for asker in sorted((job for job in jobs.values() if job.lacks), key=_served):
        open_ = asker.lacks - _unused(asker, list(jobs.values()))
        givers = sorted((job for job in jobs.values() if _gives(job, asker)), key=_served, reverse=True)
        if open_ <= 0 or sum(job.above for job in givers) < open_:
            continue
        for giver in givers:
            share = min(open_, giver.above)
            if giver.uid == me.uid and (share or giver.wants):
                return Gift(asker, share)
            jobs[giver.uid] = replace(giver, above=giver.above - share)
            open_ -= share
    return None


def given_to(uid: str, jobs: Iterable[Standing]) -> int:
    """Workers that others have given up for it."""
    return sum(job.gave for job in jobs if job.gave_to == uid)


def _unused(asker: Standing, jobs: Sequence[Standing]) -> int:
    """Those of them whose room it has not taken so far."""
    before = min((job.gave_beside for job in jobs if job.gave_to == asker.uid), default=asker.has)
    return max(0, given_to(asker.uid, jobs) - max(0, asker.has - before))


def requests_of(spec: TrainJobSpec) -> Requests:
    """What one worker requests of each resource: the sum of its containers; a limit counts where there is no request,
    as the API server has it.
    """
    pod = spec.template.get("spec")
    containers = pod.get("containers") if isinstance(pod, Mapping) else None
    total: dict[str, Decimal] = {}
    for container in containers if isinstance(containers, list) else ():
        for name, amount in _requests(container).items():
            total[name] = total.get(name, Decimal(0)) + amount
    return tuple(sorted(total.items()))


def least_size(spec: TrainJobSpec) -> int:
    """The fewest workers with which the job trains."""
    return defaults.sizes(spec)[0]


def _requests(container: Any) -> dict[str, Decimal]:
    resources = container.get("resources") if isinstance(container, Mapping) else None
    found: dict[str, Decimal] = {}
    for part in ("limits", "requests"):
        listed = resources.get(part) if isinstance(resources, Mapping) else None
        for name, text in listed.items() if isinstance(listed, Mapping) else ():
            amount = quantity.value_of(str(text))
            if amount is not None:
                found[str(name)] = amount
    return found


def _served(job: Standing) -> tuple[int, datetime, str]:
    """The first of those who ask has the smallest, the first of those who give the largest."""
    return (-(job.priority or 0), job.created_at or datetime.max.replace(tzinfo=UTC), job.uid)


def _gives(job: Standing, asker: Standing) -> bool:
    return (
        job.uid != asker.uid
        and bool(job.above or job.wants)
        and job.gave_to is None
        and (job.priority or 0) <= (asker.priority or 0)
        and asker.uid not in job.in_vain
        and _covers(job.requests, asker.requests)
    )


def _covers(large: Requests, small: Sequence[tuple[str, Decimal]]) -> bool:
    have = dict(large)
    return all(have.get(name, Decimal(0)) >= amount for name, amount in small)
