"""What waits bars what must not be decided meanwhile, and names who wakes it."""

from __future__ import annotations

from dataclasses import replace

from support.core import World, raised, seconds
from trainjob_api import contract
from trainjob_operator.core.ends.failures import COMMUNICATION_WAIT_S
from trainjob_operator.core.size.presence import DOUBTED_LOOK_S
from trainjob_operator.core.size.start import EXIT_WAIT_S

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
    assert world.tick(1).turn().status.holds("Complete")


def test_while_the_members_are_not_heard_a_lost_ones_pod_is_not_made_again() -> None:
    world = World.of(workers=2, failure_policy={"maxFailures": 0}).run().tick(60)
    world.listening_since = world.now
    world.agents.clear()
    world.lose_pod(1)
    decision = world.turn()
    assert world.attempt.state == "Running" and decision.actions == ()


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
