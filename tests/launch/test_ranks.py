"""Which ranks, which pods, which lines."""

from __future__ import annotations

from typing import Any

import pytest

from support.trainjobs import document
from trainjob.launch.cluster import jobs_api
from trainjob.launch.errors import ConfigError
from trainjob.launch.outcome import log_choice as ranks
from trainjob_api.v1alpha1 import TrainJob


def job(processes: int = 1, **status: Any) -> TrainJob:
    return jobs_api.read(document({"spec.processesPerWorker": processes, "status": status}))


def running(members: str, workers: int, world: int) -> dict[str, Any]:
    return {
        "number": 1,
        "state": "Running",
        "startedAt": "2026-01-01T00:00:00Z",
        "members": members,
        "workers": workers,
        "worldSize": world,
        "cause": "Started",
    }


@pytest.mark.parametrize(("text", "found"), [("0", {0}), ("0,3-5", {0, 3, 4, 5}), (" 7 , 7", {7}), ("all", None)])
def test_ranges(text: str, found: set[int] | None) -> None:
    assert ranks.parse(text).ranks == (None if found is None else frozenset(found))


@pytest.mark.parametrize("text", ["", "a", "5-3", "-1", "0,", "1-999999999", "²"])
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(ConfigError, match="0,3-5"):
        ranks.parse(text)


def test_a_pod_s_ranks_are_by_its_place_among_the_members() -> None:
    found = job(4, slots="0-9", attempt=running("2,5-6", 3, 12))
    assert ranks.workers(found) == [2, 5, 6]
    assert [ranks.first_rank(found, slot) for slot in (2, 5, 6, 0)] == [0, 4, 8, None]
    assert [slot for slot in range(10) if ranks.concerns(found, slot, ranks.parse("7-8"))] == [5, 6]
    assert all(ranks.concerns(found, slot, ranks.ALL) for slot in range(10))


def test_before_the_first_attempt_the_listed_pods_are_in_order() -> None:
    assert ranks.workers(job(slots="0-1,7")) == [0, 1, 7]
    assert ranks.workers(job(slots="bad,1-")) == []


@pytest.mark.parametrize(("world", "wanted"), [(8, None), (9, frozenset({0}))])
def test_small_jobs_show_all_ranks(world: int, wanted: frozenset[int] | None) -> None:
    assert ranks.usual(job(attempt=running("0", 1, world))).ranks == wanted


def test_lines() -> None:
    some = ranks.parse("1")
    assert ranks.shown("r01 | x", some, pod="a-0", index=None) == "r01 | x"
    assert ranks.shown("r00 | x", some, pod="a-0", index=None) is None
    assert ranks.shown("r0123 | x", ranks.ALL, pod="a-0", index=None) == "r0123 | x"
    assert ranks.shown("agent | joined", some, pod="a-0", index=None) == "a-0 | joined"
    assert ranks.shown("r00 | mine", some, pod="a-0", index=3) == "r03 | r00 | mine"
