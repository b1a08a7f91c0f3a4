"""The rig of agents' tests itself: what it takes for an agent's word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.agent_rig import Coordinator


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    made = Coordinator()
    yield made
    made.close()


def report(address: str, seq: int) -> dict[str, Any]:
    return {"slot": 0, "boot": 1, "seq": seq, "address": address, "acknowledged": None}


def test_a_late_report_of_a_killed_agent_is_no_word_of_the_one_that_comes_after_it(coordinator: Coordinator) -> None:
    """Who tells the others where that one listens would send them to nobody."""
    coordinator.answer(report("127.0.0.1:1", seq=7))
    coordinator.forget(0)
    with pytest.raises(ConnectionAbortedError):
        coordinator.answer(report("127.0.0.1:1", seq=8))
    assert coordinator.reports == {}
    coordinator.answer(report("127.0.0.1:1", seq=1))
    assert coordinator.reports[0]["seq"] == 1, "its successor may have its port"
