"""From which nodes new pods keep away: what counts, of how many jobs, for how long."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from trainjob_api import contract
from trainjob_api.bad_nodes import FOR, NODES_LIMIT, Mark, bad_nodes, marks, with_suspects
from trainjob_api.v1alpha1 import (
    Condition,
    Failure,
    Metadata,
    StragglersView,
    StragglerView,
    SuspectNode,
    TrainJob,
    TrainJobSpec,
    TrainJobStatus,
)

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
NEVER: list[str] = []


def job(name: str = "digits", **status: Any) -> TrainJob:
    template = {"spec": {"containers": [{"name": "trainer", "image": "i", "command": ["python", "t.py"]}]}}
    return TrainJob(
        metadata=Metadata(name=name, namespace="team"),
        spec=TrainJobSpec(workers=1, template=template),
        status=TrainJobStatus(**status),
    )


def broke(reason: str, node: str | None = "b", **more: Any) -> TrainJob:
    return job(last_failure=Failure(attempt=1, time=NOW, reason=reason, node=node, **more))


@pytest.mark.parametrize(
    ("found", "nodes"),
    [
        (broke(contract.REASON_POD_LOST), ["b"]),
        (broke(contract.REASON_WORKER_UNREACHABLE), ["b"]),
        (broke(contract.REASON_PEERS_UNREACHABLE), ["b"]),
        (broke(contract.REASON_CONTAINER_RESTARTED), ["b"]),
        (broke(contract.REASON_HANG), ["b"]),
        (broke(contract.REASON_SIGNAL, signal=7), ["b"]),
        (broke(contract.REASON_SIGNAL, signal=9), NEVER),
        (broke(contract.REASON_SIGNAL, signal=11), NEVER),
        (broke(contract.REASON_USER_ERROR), NEVER),
        (broke(contract.REASON_EXIT, exit_code=7), NEVER),
        (broke(contract.REASON_OOM), NEVER),
        (broke(contract.REASON_PREEMPTED), NEVER),
        (broke(contract.REASON_COMMUNICATION), NEVER),
        (broke(contract.REASON_HANG, node=None), NEVER),
        (job(), NEVER),
    ],
)
def test_what_says_something_of_a_node(found: TrainJob, nodes: list[str]) -> None:
    assert [mark.node for mark in marks(found, NOW)] == nodes


def test_slow_ranks_say_it_of_each_of_their_nodes_once() -> None:
    shares = {"behind": 0.5, "data": 0.0, "compute": 1.0, "held": 0.0, "wait": 0.0}
    ranks = [StragglerView(rank=rank, node=node, **shares) for rank, node in ((1, "b"), (2, "b"), (3, "a"), (4, None))]
    said = marks(job(stragglers=StragglersView(attempt=1, since=NOW, ranks=ranks)), NOW)
    assert [(mark.node, mark.why) for mark in said] == [
        ("a", contract.REASON_STRAGGLER),
        ("b", contract.REASON_STRAGGLER),
    ]


@pytest.mark.parametrize(("lasts", "minutes_ago"), [("True", 0.0), ("False", 90.0)])
def test_a_rank_that_is_still_slow_says_it_of_its_node_now(lasts: str, minutes_ago: float) -> None:
    shares = {"behind": 0.5, "data": 0.0, "compute": 1.0, "held": 0.0, "wait": 0.0}
    found = NOW - timedelta(minutes=90)
    view = StragglersView(attempt=1, since=found, ranks=[StragglerView(rank=1, node="b", **shares)])
    degraded = Condition(
        type="Degraded", status=lasts, reason=contract.REASON_STRAGGLER, message="", last_transition_time=found
    )
    (said,) = marks(job(stragglers=view, conditions=[degraded]), NOW)
    assert said.at == NOW - timedelta(minutes=minutes_ago)


def suspect(node: str, minutes_ago: float = 0.0) -> SuspectNode:
    return SuspectNode(node=node, time=NOW - timedelta(minutes=minutes_ago), reason="Hang")


def test_what_a_job_remembers_outlives_its_last_failure() -> None:
    found = broke(contract.REASON_USER_ERROR)
    found = found.model_copy(update={"status": found.status.model_copy(update={"suspects": [suspect("b", 5)]})})
    assert [(mark.node, mark.at) for mark in marks(found, NOW)] == [("b", NOW - timedelta(minutes=5))]


def test_a_job_remembers_the_newest_word_of_each_node_and_few_of_them() -> None:
    known = [suspect("old", 61), suspect("a", 50), suspect("b", 40)]
    assert with_suspects(known, ["b", "b", "c"], NOW, "Hang") == [suspect("a", 50), suspect("b"), suspect("c")]
    many = with_suspects(known, [f"n{number}" for number in range(9)], NOW, "Hang")
    assert [each.node for each in many] == [f"n{number}" for number in range(1, 9)]


def mark(job: str, minutes_ago: float, node: str = "b") -> Mark:
    return Mark(node, NOW - timedelta(minutes=minutes_ago), job, "Hang")


@pytest.mark.parametrize(
    ("told", "names"),
    [
        ([mark("one", 5), mark("two", 5)], ["b"]),
        ([mark("one", 5), mark("one", 6)], NEVER),
        ([mark("one", 5), mark("two", 5, "c")], NEVER),
        ([mark("one", 5), mark("two", 61)], NEVER),
        ([mark("one", 5), mark("two", 60)], NEVER),
        ([mark("one", 59), mark("two", 58)], ["b"]),
        ([mark("one", 5), mark("two", 5), mark("one", 50, "c"), mark("three", 40, "c")], ["b", "c"]),
        ([], NEVER),
    ],
)
def test_two_jobs_within_an_hour_make_it_bad(told: list[Mark], names: list[str]) -> None:
    assert [node.name for node in bad_nodes(told, NOW)] == names


def test_it_is_bad_for_an_hour_after_the_last_word_of_it() -> None:
    (node,) = bad_nodes([mark("one", 40), mark("two", 10), mark("one", 20)], NOW)
    assert node.until == NOW - timedelta(minutes=10) + FOR
    assert node.why == "one (Hang), two (Hang)"


def test_a_clock_ahead_of_ours_makes_it_bad_for_no_longer() -> None:
    (node,) = bad_nodes([mark("one", -600), mark("two", 1)], NOW)
    assert node.until == NOW + FOR


def test_of_many_the_latest_count() -> None:
    told = [mark(job, minute, f"n{minute}") for minute in range(20) for job in ("one", "two")]
    assert [node.name for node in bad_nodes(told, NOW)] == [f"n{minute}" for minute in range(NODES_LIMIT)]
