"""How often one pod may ask, and that it is nobody else's trouble."""

from __future__ import annotations

import pytest

from trainjob_operator.agents.rate_limit import BURST_PER_POD, KEPT, RATE_PER_POD, RateLimit


def passed(limit: RateLimit[str], pod: str, at: float, most: int = 100_000) -> int:
    """How many requests get through at one moment."""
    count = 0
    while count < most and limit.admit(pod, at) == 0.0:
        count += 1
    return count


def test_a_burst_passes_then_the_rate() -> None:
    limit = RateLimit[str]()
    assert passed(limit, "p", 0.0) == BURST_PER_POD
    wait_s = limit.admit("p", 0.0)
    assert wait_s == pytest.approx(1.0 / RATE_PER_POD)
    assert limit.admit("p", wait_s) == 0.0
    assert passed(limit, "p", wait_s + 2.0) == 2 * RATE_PER_POD


def test_a_pod_neither_pays_for_another_nor_uses_its_share() -> None:
    limit = RateLimit[str]()
    for n in range(200):
        assert limit.admit(f"p{n}", 0.0) == 0.0
    assert passed(limit, "p0", 0.0) == BURST_PER_POD - 1
    assert limit.admit("p1", 0.0) == 0.0


def test_silence_earns_a_full_burst_and_no_more() -> None:
    limit = RateLimit[str]()
    passed(limit, "p", 0.0)
    assert passed(limit, "p", 3600.0) == BURST_PER_POD


def test_it_remembers_a_bounded_number_of_pods() -> None:
    limit = RateLimit[int]()
    for key in range(KEPT + 10):
        limit.admit(key, 0.0)
    assert len(limit._buckets) == KEPT
