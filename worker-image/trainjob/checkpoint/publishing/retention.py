"""Which checkpoints are kept. Pure: `retire.py` removes the others.

Kept are the last K, or the K best by a reported score; always the latest; never removed are protected ones (the one a
start has just chosen, the ones whose upload is under way).
"""

from __future__ import annotations

import math
from typing import Any, Container, Mapping, NamedTuple, Optional, Sequence, Tuple

from trainjob.checkpoint.records.identity import CheckpointId


class Policy(NamedTuple):
    """`checkpoint.keep`, `scoreAttribute`, `scoreOrder` of the spec."""

    keep: Optional[int] = None
    score_attribute: Optional[str] = None
    score_order: str = "max"


class Scored(NamedTuple):
    """A committed checkpoint and what was reported with it."""

    id: CheckpointId
    metrics: Mapping[str, Any]


class Plan(NamedTuple):
    """`remove`: oldest first. `best`: by the score; None without one."""

    remove: Tuple[CheckpointId, ...]
    best: Optional[CheckpointId]
    latest: Optional[CheckpointId]
    warnings: Tuple[str, ...]


def plan(committed: Sequence[Scored], policy: Policy, protect: Container[CheckpointId] = ()) -> Plan:
    """What to remove of a run's committed checkpoints."""
    ordered = sorted(committed, key=lambda c: c.id)
    if not ordered:
        return Plan((), None, None, ())
    latest, best = ordered[-1].id, None
    ranked, warnings = ordered[::-1], _missing(ordered, policy)
    if policy.score_attribute:
        ranked = sorted(ranked, key=lambda c: (_score(c.metrics, policy), c.id), reverse=True)
        if _score(ranked[0].metrics, policy)[0] == _NUMBER:
            best = ranked[0].id
    kept = {c.id for c in (ranked if policy.keep is None else ranked[: policy.keep])} | {latest}
    return Plan(tuple(c.id for c in ordered if c.id not in kept and c.id not in protect), best, latest, warnings)


def best(committed: Sequence[Scored], policy: Policy) -> Tuple[CheckpointId, ...]:
    """The `keep` best, the best one last; by the score where there is one, else by age. The latest is not among them
    only because it is the latest.
    """
    ranked = sorted(committed, key=lambda c: (_score(c.metrics, policy) if policy.score_attribute else (0, 0.0), c.id))
    return tuple(c.id for c in (ranked if policy.keep is None else ranked[-policy.keep :]))


_MISSING, _NAN, _NUMBER = 0, 1, 2


def find(metrics: Mapping[str, Any], name: str) -> Optional[float]:
    """A metric by its own name or by a dotted path into nested ones; None when it is missing or no number."""
    value: Any = metrics.get(name)
    if value is None:
        value = metrics
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return None


def _score(metrics: Mapping[str, Any], policy: Policy) -> Tuple[int, float]:
    value = find(metrics, policy.score_attribute or "")
    if value is None:
        return _MISSING, 0.0
    if math.isnan(value):
        return _NAN, 0.0
    return _NUMBER, value if policy.score_order == "max" else -value


def _missing(ordered: Sequence[Scored], policy: Policy) -> Tuple[str, ...]:
    without = [c for c in ordered if policy.score_attribute and find(c.metrics, policy.score_attribute) is None]
    if not without:
        return ()
    names = ", ".join(sorted(map(str, without[-1].metrics))[:10]) or "nothing"
    return (
        f"checkpoint.scoreAttribute {policy.score_attribute!r}: {len(without)} of {len(ordered)} checkpoints have no "
        f"such number, the newest being {without[-1].id} "
        f"(it reported {names}); they rank lowest. Report that metric with every checkpoint.",
    )
