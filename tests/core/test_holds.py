"""What waits bars what must not be decided meanwhile, and names who wakes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from support.core import World, raised, seconds
from trainjob_api import contract
from trainjob_operator.core import boundaries
from trainjob_operator.core.ends.failures import COMMUNICATION_WAIT_S
from trainjob_operator.core.groups.agents import COMPLETE_WORD_S
from trainjob_operator.core.size.presence import DOUBTED_LOOK_S
from trainjob_operator.core.size.start import EXIT_WAIT_S
from trainjob_operator.core.turn import LISTEN_S

STORED = {"checkpoint": {"storage": "/checkpoints"}}


def test_no_deadline_fails_a_job_while_the_cause_of_a_broken_rank_is_waited_for() -> None:
    world = World.of(workers=2, active_deadline_seconds=100).run().tick(99)
    world.sync(1, ranks=(raised(1, "DistBackendError", communication=True, at=world.now),))
    world.sync(0)
    decision = world.tick(1.5).turn()
    assert not decision.status.finished and "waiting for that peer's own word" in decision.why
    assert world.tick(COMMUNICATION_WAIT_S).turn().status.holds("Failed")


def test_nothing_else_is_decided_while_completion_waits_for_rank_0s_last_word() -> None:
    world = World.of(workers=2, **STORED).run().tick(60)
    world.sync(1, completed=True, run=1, quiet=True)
    world.set_pod(1, deleting=True)
    decision = world.turn()
    assert "waiting for the last word" in decision.why
    assert (world.attempt.state, world.attempt.number, decision.actions) == ("Running", 1, ())
    assert world.tick(COMPLETE_WORD_S).turn().status.holds("Complete")


def test_while_the_members_are_not_heard_a_lost_ones_pod_is_not_made_again() -> None:
    world = World.of(workers=2, failure_policy={"maxFailures": 0}).run().tick(60)
    world.listening_since = world.now
    world.agents.clear()
    world.lose_pod(1)
    decision = world.turn()
    assert world.attempt.state == "Running" and decision.actions == ()


def _cancel(world: World) -> None:
    world.annotate({contract.ANNOTATION_CANCELLED: "now"})
    world.change_spec(suspend=True)


@pytest.mark.parametrize(
    ("wish", "wished_before_s"),
    [
        (_cancel, 0),
        (lambda world: world.change_spec(processes_per_worker=2), 0),
        (lambda world: world.change_spec(suspend=True), 5000),
        (lambda world: world.ask_restart("now"), 5000),
        (lambda world: world.change_spec(workers=2), 5000),
    ],
    ids=["cancelled", "edited", "suspended", "restarted", "scaled"],
)
def test_a_failure_that_waits_for_the_members_is_not_forgotten_for_what_somebody_wishes(
    wish: Callable[[World], None], wished_before_s: float
) -> None:
    """What waits for a checkpoint has waited for it in vain by then, and would end the attempt at once."""
    world = World.of(workers=3, failure_policy={"maxFailures": 0}).run().tick(60)
    world.report(5)
    world.turn()
    wish(world)
    if wished_before_s:
        world.turn()
        assert world.attempt.state == "Running" and world.status.boundary is not None
        world.tick(wished_before_s).sync_all()
    world.lose_pod(2)
    world.agents.clear()
    world.listening_since = world.now
    world.turn()
    assert (world.attempt.state, world.status.failures.counted) == ("Running", 0)
    world.tick(LISTEN_S).turn()
    assert world.status.holds("Failed") and world.status.failures.counted == 1


@pytest.mark.parametrize("suspended", [False, True])
def test_a_failed_start_that_waits_for_the_members_is_not_forgotten(suspended: bool) -> None:
    world = World.of(workers=3, failure_policy={"maxFailures": 1}).run().tick(60)
    world.report(5)
    world.turn()
    world.tick(30).sync_all()
    world.lose_pod(2)
    world.turn()
    world.sync_all()
    world.fail_pod(3, 1)
    world.agents.clear()
    world.listening_since = world.now
    if suspended:
        world.change_spec(suspend=True)
    decision = world.turn()
    assert (world.status.slots, decision.actions, world.status.failures.counted) == ("0-1,3", (), 1)
    world.tick(LISTEN_S).turn()
    assert world.status.holds("Failed") and world.status.failures.counted == 2


def test_a_wish_to_grow_keeps_no_job_from_failing() -> None:
    """Its ranks wait behind the checkpoint that was saved for the worker that is to go."""
    world = World.of(workers=2, failure_policy={"maxPreemptions": 0}, **STORED).run().tick(60)
    world.report(5)
    world.turn()
    for slot in (0, 1):
        world.sync(slot, ranks=({"rank": slot, "local_rank": 0, "pid": 1, "state": contract.RANK_RUNNING},))
    world.change_spec(workers=3)
    world.turn()
    world.schedule()
    world.set_pod(1, notice="node.kubernetes.io/out-of-service")
    world.turn()
    wish = world.status.boundary
    assert wish is not None and wish.cause == contract.REASON_PREEMPTED
    world.sync(0, boundary=boundaries.token(wish))
    world.turn()
    assert world.status.holds("Failed") and world.status.failures.preemptions == 1


def test_a_worker_that_was_told_to_leave_is_looked_at_when_its_time_is_over() -> None:
    world = World.of(workers=2).run().tick(60)
    world.change_spec(workers=1)
    world.turn()
    assert world.turn().requeue_after == seconds(EXIT_WAIT_S)


def test_the_word_of_a_worker_that_its_peers_lost_is_looked_for_soon() -> None:
    world = World.of(workers=2).run().tick(60)
    error = raised(0, "DistBackendError", communication=True, at=world.now)
    world.sync(0, lost_peers=(1,), quiet=True, ranks=(error,))
    world.agents[1] = replace(world.agents[1], heard_at=world.now - seconds(5))
    decision = world.tick(26).turn()
    assert world.attempt.state == "Ended", decision.why
    assert decision.requeue_after == seconds(DOUBTED_LOOK_S)
    assert world.attempt.end_cause == contract.REASON_COMMUNICATION
