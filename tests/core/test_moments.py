"""Arithmetic with moments that cannot fail."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from support.core import T0, seconds
from trainjob_operator.core.moments import LONGEST_S, after, by_agent_clock, elapsed


def test_elapsed() -> None:
    assert elapsed(T0 + seconds(5), T0) == 5
    assert elapsed(T0, T0 + seconds(5)) == 0
    assert elapsed(T0 + seconds(5), T0.replace(tzinfo=None)) == 5


@pytest.mark.parametrize(
    ("s", "expected"),
    [(5, T0 + seconds(5)), (10**400, T0 + seconds(LONGEST_S)), (float("inf"), T0 + seconds(LONGEST_S))],
)
def test_after(s: float, expected: datetime) -> None:
    assert after(T0, s) == expected


def test_after_the_end_of_time() -> None:
    assert after(datetime.max, 5) == datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), 1e18, -1e18])
def test_no_moment(value: float | None) -> None:
    assert by_agent_clock(value, timedelta(0)) is None


def test_the_agents_clock_is_corrected() -> None:
    assert by_agent_clock(T0.timestamp(), seconds(-3)) == T0 - seconds(3)
    assert by_agent_clock(T0.timestamp(), timedelta.max) is None
