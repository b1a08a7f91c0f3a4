"""How often one job may ask, and that it is nobody else's trouble."""

from __future__ import annotations

import pytest

from trainjob_operator.agents.rate_limit import BURST_PER_POD, KEPT, RATE_PER_POD, SEEN_S, RateLimit


def passed(limit: RateLimit[str], key: str, pods: list[str], at: float, most: int = 100_000) -> int:
    """How many requests get through at one moment, the pods taking turns."""
    count = 0
    while count < most and limit.admit(key, pods[count % len(pods)], at) == 0.0:
        count += 1
    return count


def test_a_burst_passes_then_the_rate() -> None:
    limit = RateLimit[str]()
    assert passed(limit, "a", ["p"], 0.0) == BURST_PER_POD
    wait_s = limit.admit("a", "p", 0.0)
    assert wait_s == pytest.approx(1.0 / RATE_PER_POD)
    assert limit.admit("a", "p", wait_s) == 0.0
    assert passed(limit, "a", ["p"], wait_s + 2.0) == 2 * RATE_PER_POD


def test_a_job_does_not_pay_for_another() -> None:
    limit = RateLimit[str]()
    passed(limit, "a", ["p"], 0.0)
    assert limit.admit("b", "q", 0.0) == 0.0


def test_a_large_job_has_a_large_share_from_its_first_request_on() -> None:
    limit = RateLimit[str]()
    pods = [f"p{n}" for n in range(200)]
    assert passed(limit, "a", pods, 0.0) == 200 * BURST_PER_POD
    assert passed(limit, "a", pods, 1.0) == 200 * RATE_PER_POD


def test_pods_that_are_gone_do_not_count_for_ever() -> None:
    limit = RateLimit[str]()
    for n in range(100):
        limit.admit("a", f"old{n}", 0.0)
    passed(limit, "a", ["new"], SEEN_S + 1.0)
    assert limit.admit("a", "new", SEEN_S + 1.0) == pytest.approx(1.0 / RATE_PER_POD)


def test_it_remembers_a_bounded_number_of_jobs() -> None:
    limit = RateLimit[int]()
    for key in range(KEPT + 10):
        limit.admit(key, "p", 0.0)
    assert len(limit._buckets) == KEPT
