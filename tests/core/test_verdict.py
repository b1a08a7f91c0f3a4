"""Failed waits for a fresh worker's look at the end record when all workers vanished without a word."""

from __future__ import annotations

import pytest

from support.core import World, raised
from trainjob_api import contract

STORED = {"checkpoint": {"storage": "/checkpoints"}, "failure_policy": {"maxFailures": 0}}


def vanished(**fields: object) -> World:
    world = World.of(workers=2, **(STORED | fields)).run().tick(60)
    world.lose_pod(0)
    world.lose_pod(1)
    world.turn()
    return world


def test_the_job_does_not_fail_before_a_fresh_worker_has_looked() -> None:
    world = vanished()
    assert not world.status.finished and world.status.verdict is not None
    assert (world.status.verdict.reason, world.status.failures.counted) == (contract.REASON_LIMIT, 1)
    degraded = world.status.condition("Degraded")
    assert degraded is not None and (degraded.status, degraded.reason) == ("True", contract.REASON_CHECKING)
    assert not world.settle().status.finished


def test_it_had_completed() -> None:
    world = vanished()
    world.start_pods()
    world.sync_all()
    world.turn()
    assert world.attempt.number == 2
    world.sync(2, attempt=2, joined=True, completed=True, run=1)
    world.turn()
    assert world.status.holds("Complete") and world.status.verdict is None


def test_it_had_not() -> None:
    world = vanished()
    world.start_pods()
    world.sync_all()
    world.turn()
    world.sync_all()
    world.turn()
    failed, failure = world.status.condition("Failed"), world.status.last_failure
    assert failed is not None and (failed.status, failed.reason) == ("True", contract.REASON_LIMIT)
    assert failure is not None and (failure.reason, failure.attempt) == (contract.REASON_POD_LOST, 1), (
        "the first cause stays"
    )
    assert world.status.failures.counted == 1


def test_a_failure_on_the_way_is_the_end() -> None:
    world = vanished()
    world.start_pods()
    world.fail_pod(2, 1)
    world.turn()
    failure = world.status.last_failure
    assert world.status.holds("Failed") and failure is not None and failure.attempt == 1
    assert world.status.failures.counted == 1


@pytest.mark.parametrize(
    "fields",
    [{"checkpoint": {}}, {"runtime": {"agent": "Disabled"}}, {"failure_policy": {"maxFailures": 1}}],
    ids=["no storage", "plain", "within the budget"],
)
def test_where_nothing_is_to_be_found(fields: dict[str, object]) -> None:
    assert vanished(**fields).status.verdict is None


def test_one_worker_that_is_left_would_know() -> None:
    world = World.of(workers=2, **STORED).run().tick(60)
    world.lose_pod(0)
    world.turn()
    assert world.status.holds("Failed")


def test_a_ranks_own_end_is_a_word() -> None:
    world = World.of(workers=1, **STORED).run().tick(60)
    world.break_rank(0, raised(0, "ValueError"))
    world.fail_pod(0, 1)
    world.turn()
    assert world.status.holds("Failed")
