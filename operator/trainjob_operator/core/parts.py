"""The clock on a recovery: how long each part of an attempt's beginning took, in milliseconds. Called by `lifecycle.py`
when attempts begin and end, and by `status.py` when something is written anyway.

What an agent tells is durations by its own clock since the moment at which it heard `run`; that moment is brought to
the operator's clock as ends of ranks are, by what the agent's clock said in the same report. So clocks of two machines
are never compared: what is not seen is the way of one message. docs/recovery.md tells users the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from trainjob_api.v1alpha1 import Attempt, Failure, PartsMs
from trainjob_operator.core.model import AgentView
from trainjob_operator.core.moments import aware, by_agent_clock, elapsed

AGENTS_PARTS = ("stopped", "joined", "forked", "group", "restored")
"""Over when the last member says so; the first step is made when one does, since no rank can step alone."""
LONGEST_MS = 10**12
"""Longer parts are cut to this: thirty years."""


def milliseconds(now: datetime, since: datetime) -> int:
    """From `since` to `now`; never negative."""
    return min(LONGEST_MS, round(elapsed(now, since) * 1000))


def bounded_ms(value: object) -> int:
    """A length that an agent tells; 0: it tells none."""
    return min(max(0, value), LONGEST_MS) if isinstance(value, int) else 0


def heard_run(view: AgentView) -> datetime | None:
    """When the agent heard `run`, by the operator's clock; None: it has not told."""
    return None if view.begin is None else by_agent_clock(view.begin.get("told"), view.clock_offset)


def of_begin(last: Attempt, failure: Failure | None, now: datetime) -> PartsMs:
    """What is known in the write that begins an attempt: how long it took to hear of the break, and to have what the
    next start needs (pods, the end of a back-off). `last`: the attempt before; `failure`: the last one."""
    if last.ended_at is None:
        return PartsMs()
    broke = failure.time if failure is not None and failure.attempt == last.number else None
    return PartsMs(
        detected=None if broke is None else milliseconds(last.ended_at, max(aware(broke), aware(last.started_at))),
        waited=milliseconds(now, last.ended_at),
    )


def merged(attempt: Attempt, views: Iterable[AgentView], members: int) -> PartsMs:
    """The attempt's parts with what its members' agents tell; what was written before stays where they tell less."""
    before = attempt.parts_ms or PartsMs()
    told = [
        (milliseconds(heard, attempt.started_at), view.begin)
        for view in views
        if view.begin is not None and (heard := heard_run(view)) is not None
    ]
    if not told or (len(told) < members and before.decided is not None):
        return before
    ends = {"decided": max(heard for heard, _ in told)}
    for part in AGENTS_PARTS:
        said = [heard + bounded_ms(begin.get(part)) for heard, begin in told if part in begin]
        if len(said) == len(told):
            ends[part] = max(said)
    steps = [heard + bounded_ms(begin["first_step"]) for heard, begin in told if "first_step" in begin]
    if steps:
        ends["first_step"] = min(steps)
    fresh = before.model_copy(update=_lengths(ends))
    return fresh if _known(fresh) >= _known(before) else before


def _known(parts: PartsMs) -> int:
    return sum(value is not None for value in parts.model_dump().values())


def first_step_ms(parts: PartsMs | None) -> int | None:
    """From the write that began the attempt to its first step; None: none is known."""
    if parts is None or parts.first_step is None:
        return None
    return sum(getattr(parts, name) or 0 for name in ("decided", *AGENTS_PARTS, "first_step"))


def ready_ms(parts: PartsMs | None) -> int | None:
    """From the write that began the attempt until its ranks could step: they had their group and their checkpoint. Of a
    script that asks for neither, its first step; None: nobody told.
    """
    if parts is None or (parts.group is None and parts.restored is None):
        return first_step_ms(parts)
    return sum(getattr(parts, name) or 0 for name in ("decided", *AGENTS_PARTS))


def total_ms(parts: PartsMs) -> int:
    """All that is known."""
    return sum(value for value in parts.model_dump().values() if value is not None)


def _lengths(ends: dict[str, int]) -> dict[str, int]:
    """From the ends of parts to their lengths: none ends before the one before it, none after the first step."""
    last = ends.get("first_step", max(ends.values()))
    lengths, at = {}, 0
    for part, end in ends.items():
        now = max(at, min(end, last))
        lengths[part], at = now - at, now
    return lengths
