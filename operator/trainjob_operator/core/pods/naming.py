"""Names, labels and slot ranges: the deterministic part of every child object.

Called by the rules, by `objects.py`, and by the shell and the CLI where they look for a job's children. Decides
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob, TrainJobStatus
from trainjob_operator.core import make

SLOTS_LIMIT = 20_000
"""Most slots that one text may name; what is beyond is not read, so that no text can use up the memory."""

_RANGE = re.compile(r"(\d{1,10})(?:-(\d{1,10}))?", re.ASCII)


def pod_name(job_name: str, slot: int) -> str:
    """Name, and host name, of a slot's pod."""
    return f"{job_name}-{slot}"


def service_name(job_name: str) -> str:
    """Name of the headless Service: the subdomain of the pods."""
    return job_name


def selector(job_name: str) -> str:
    """Label selector of all pods that carry the job's name."""
    return f"{contract.LABEL_JOB}={job_name}"


def pod_labels(job: TrainJob, slot: int) -> dict[str, str]:
    """Labels that the operator puts on a pod, beside the template's."""
    return {
        contract.LABEL_JOB: job.metadata.name,
        contract.LABEL_SLOT: str(slot),
        contract.LABEL_MAKE: make.of(job.spec),
        contract.LABEL_MANAGED_BY: contract.MANAGED_BY,
    }


def owner_reference(job: TrainJob) -> dict[str, str | bool]:
    """The controlling owner reference: children go when the job goes, without an operator."""
    return {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


class Slots(tuple[int, ...]):
    """Slots in ascending order, each once. Whether one is among them is asked for each worker: it costs no search."""

    _all: frozenset[int]

    def __new__(cls, slots: Iterable[int]) -> Slots:
        made = super().__new__(cls, slots)
        made._all = frozenset(made)
        return made

    def __contains__(self, slot: object) -> bool:
        return slot in self._all


@lru_cache(maxsize=256)
def parse_slots(text: str) -> Slots:
    """`0-2,7` -> (0, 1, 2, 7): ascending, each once. Parts that are no range are left out, so that no status stops a
    turn.
    """
    found: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            continue
        first, last = int(match[1]), int(match[2] or match[1])
        found.update(range(first, min(last + 1, first + SLOTS_LIMIT - len(found))))
        if len(found) >= SLOTS_LIMIT:
            break
    return Slots(sorted(found))


@lru_cache(maxsize=256)
def positions(text: str) -> Mapping[int, int]:
    """Each slot's position in the text, the lowest first: a member's index. For many single questions."""
    return {slot: index for index, slot in enumerate(parse_slots(text))}


def format_slots(slots: Iterable[int]) -> str:
    """(7, 0, 1, 2) -> `0-2,7`."""
    ranges: list[list[int]] = []
    for slot in sorted(set(slots)):
        if ranges and ranges[-1][1] == slot - 1:
            ranges[-1][1] = slot
        else:
            ranges.append([slot, slot])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def spare_slots(status: TrainJobStatus) -> Slots:
    """Those of its slots whose pods are spare workers; a member of the running attempt is none, whatever is marked."""
    marked, attempt = parse_slots(status.spares), status.attempt
    if not marked:
        return marked
    members = positions(attempt.members) if attempt is not None and attempt.state == "Running" else {}
    return Slots(slot for slot in parse_slots(status.slots) if slot in marked and slot not in members)


def worker_slots(status: TrainJobStatus) -> Slots:
    """Those of its slots whose pods are no spares: of members, and of workers that are to become members."""
    spares = spare_slots(status)
    listed = parse_slots(status.slots)
    return Slots(slot for slot in listed if slot not in spares) if spares else listed
