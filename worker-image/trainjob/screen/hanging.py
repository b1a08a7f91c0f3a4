"""Ranks that hang, or keep the others waiting, or did: as `tj hang` shows them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trainjob.screen import pace
from trainjob_api import contract
from trainjob_api.v1alpha1 import StragglerView, TrainJobStatus


def hangs_now(status: TrainJobStatus) -> bool:
    """Whether the newest verdict still stands."""
    degraded = status.condition("Degraded")
    return degraded is not None and degraded.status == "True" and degraded.reason == contract.REASON_HANG


def straggles_now(status: TrainJobStatus) -> bool:
    """Whether some ranks are slow, so far as nothing worse is."""
    degraded = status.condition("Degraded")
    return degraded is not None and degraded.status == "True" and degraded.reason == contract.REASON_STRAGGLER


def lines(name: str, status: TrainJobStatus, now: float, place: str = "") -> list[str]:
    """For people. `now`: seconds since 1970; `place`: the options behind a name in a command, for a cluster's job."""
    return [*_of_hang(name, status, now, place), *_of_stragglers(status)]


def _of_stragglers(status: TrainJobStatus) -> list[str]:
    slow = status.stragglers
    if slow is None:
        return []
    when = f"{slow.since:%Y-%m-%d %H:%M:%S} UTC"
    now = straggles_now(status)
    head = f"Some ranks keep the others waiting, found {when}:" if now else f"Ranks were slow (found {when}):"
    return ["", head, f"  {slow.message}", *(_row(each) for each in slow.ranks)]


def _row(rank: StragglerView) -> str:
    parts = f"data {rank.data:.0%}, compute {rank.compute:.0%}, held up {rank.held:.0%}, waiting {rank.wait:.0%}"
    place = f" on {rank.node or rank.pod}" if rank.node or rank.pod else ""
    return f"  rank {rank.rank}{place}: behind {rank.behind:.0%} of each step; {parts}"


def _of_hang(name: str, status: TrainJobStatus, now: float, place: str) -> list[str]:
    hang = status.hang
    if hang is None:
        return [f"no rank of {name} was seen to hang", *_not_seen_yet(f"{name}{place}", status)]
    hangs = hangs_now(status)
    when = f"{hang.since:%Y-%m-%d %H:%M:%S} UTC"
    of = "" if hangs else f" (attempt {hang.attempt}, since {when})"
    stacks = ["", *(hang.stacks or "").splitlines()] if hang.stacks else []
    last = [f"  {hang.message}{of}", *(f"  {line}".rstrip() for line in stacks)]
    if hangs:
        return [f"{name} hangs since {when}, in attempt {hang.attempt}:", *last]
    if status.attempt is None or not pace.stands_still(status, now):
        return [f"{name} does not hang. The last time:", *last]
    again = "again" if hang.attempt == status.attempt.number else f"in attempt {status.attempt.number}"
    head = f"{name} was not seen to hang {again} yet, and takes no step."
    return [head, *_not_seen_yet(f"{name}{place}", status), "The last time:", *last]


def processes(pids: Mapping[int, int]) -> list[str]:
    """Of a job that runs here: by which process a debugger or profiler finds each rank."""
    if not pids:
        return []
    named = ", ".join(f"rank {rank} is {pid}" for rank, pid in sorted(pids.items()))
    first = min(pids.values()) if 0 not in pids else pids[0]
    return ["", f"pids: {named} (`py-spy dump --pid {first}`, `gdb -p {first}`)"]


def _not_seen_yet(typed: str, status: TrainJobStatus) -> list[str]:
    """Of a job that runs: it may stand still all the same."""
    if status.attempt is None or status.attempt.state != "Running":
        return []
    return [
        "  It takes minutes to tell a hang from a long step, most in an attempt's first six steps (docs/hangs.md).",
        f"  `tj stack {typed}` shows where its ranks are now.",
    ]


def shown(name: str, status: TrainJobStatus, output: str | None, now: float, place: str = "") -> str:
    """What `tj hang` prints. `output`: json, or None for people; `place` as for `lines`."""
    return json.dumps(as_json(status)) if output == "json" else "\n".join(lines(name, status, now, place))


def as_json(status: TrainJobStatus) -> dict[str, Any]:
    """For programs: `hangs`, and the newest verdict; the same of ranks that are slow."""
    return {
        "hangs": hangs_now(status),
        "last": None if status.hang is None else status.hang.to_json(),
        "straggles": straggles_now(status),
        "stragglers": None if status.stragglers is None else status.stragglers.to_json(),
    }
