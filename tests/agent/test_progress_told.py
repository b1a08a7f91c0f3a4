"""When rank 0's agent tells the coordinator of a report: at its pace, or at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainjob.agent.barriers.progress import Progress
from trainjob.agent.barriers.reports import Facts, Reports


def told(reached: int | None, base: int, reports: int) -> list[str]:
    """How each report is told, of an attempt that resumed from position `base`."""
    said: list[str] = []
    site = SimpleNamespace(
        changed=lambda urgent: said.append("at once" if urgent else "soon"),
        progressed=lambda: said.append("at its pace"),
    )
    history, facts = SimpleNamespace(report=lambda row: None), Facts(4, 1, 1, 1, True, base, None, reached)
    made = Reports(cast(Any, site), lambda indices, word: None, facts, cast(Any, None), cast(Any, history))
    for _ in range(reports):
        made.released()
    return said


@pytest.mark.parametrize(
    ("reached", "expected"),
    [
        (20, ["at once", "at its pace", "at its pace", "at its pace"]),
        (22, ["soon", "at its pace", "at once", "at its pace"]),
        (19, ["at once", "at its pace", "at its pace", "at its pace"]),
        (None, ["soon", "at its pace", "at its pace", "at its pace"]),
    ],
)
def test_the_first_report_beyond_all_before_is_told_at_once(reached: int | None, expected: list[str]) -> None:
    """By it the operator knows that a failure comes after progress."""
    assert told(reached, 20, 4) == expected


def test_of_the_first_nan_the_reports_before_it_are_told() -> None:
    """Of a row of log() too, which has no position of its own."""
    progress = Progress(4)
    progress.reported(1, {"metrics": {"loss": 0.5}}, 0.0)
    progress.reported(2, {"metrics": {"loss": float("nan")}, "step": 7}, 0.0)
    seen = progress.report["non_finite"]
    assert seen is not None and (seen["position"], seen["step"], progress.position) == (5, 7, 6)
    logged = Progress(4)
    logged.seen({"loss": float("inf")}, {"step": 3}, 0.0)
    seen = logged.report["non_finite"]
    assert seen is not None and seen["position"] == 4
