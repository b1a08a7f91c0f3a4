"""Who looks again when the standing of a job changes."""

from __future__ import annotations

from typing import Any

import pytest

from trainjob_operator.core.model import Standing
from trainjob_operator.loop.neighbourhood import Neighbourhood


def standing(name: str, **fields: Any) -> Standing:
    return Standing(name=name, uid=name, **fields)


@pytest.fixture
def jobs() -> Neighbourhood:
    """One that could do without two workers, one that could not, and one of another namespace."""
    found = Neighbourhood()
    for namespace, name, above in (("ml", "large", 2), ("ml", "small", 0), ("web", "far", 2)):
        assert found.note((namespace, name), standing(name, above=above)) == []
    return found


def test_who_lacks_workers_is_heard_by_those_who_could_do_without(jobs: Neighbourhood) -> None:
    assert jobs.note(("ml", "new"), standing("new", lacks=2, content=False)) == [("ml", "large")]
    assert jobs.note(("ml", "new"), standing("new", lacks=2, content=False)) == [], "no news"
    assert [job.name for job in jobs.of(("ml", "large"))] == ["small", "new"]
    assert jobs.of(("web", "far")) == ()


def test_who_was_given_room_and_who_gave_it_hear_of_each_other(jobs: Neighbourhood) -> None:
    jobs.note(("ml", "new"), standing("new", lacks=2, content=False))
    gave = standing("large", gave_to="new", gave=2)
    assert jobs.note(("ml", "large"), gave) == [("ml", "new")]
    assert jobs.note(("ml", "new"), standing("new")) == [("ml", "large")], "it trains"


def test_one_that_gave_its_pods_back_is_as_urgent_as_before(jobs: Neighbourhood) -> None:
    jobs.note(("ml", "new"), standing("new", lacks=2, content=False, priority=7))
    jobs.note(("ml", "new"), standing("new", lacks=2, content=False))
    assert jobs.of(("ml", "large"))[-1].priority == 7


def test_a_job_that_is_gone_counts_no_more(jobs: Neighbourhood) -> None:
    jobs.note(("ml", "new"), standing("new", lacks=2, content=False))
    jobs.forget(("ml", "new"))
    assert [job.name for job in jobs.of(("ml", "large"))] == ["small"]
