"""A wrong clock of an earlier leader costs one pause, not as long as it was wrong."""

from __future__ import annotations

from datetime import timedelta

import pytest

from support.core import World, is_steady, raised, seconds
from trainjob_api.v1alpha1 import Boundary, Failure, GaveWay, StragglersView, SuspectNode
from trainjob_operator.core.clocks import LONGEST_GANG_S, LONGEST_RETRY_S, TOLERANCE_S, settled
from trainjob_operator.core.model import DeletePod

HOUR = timedelta(hours=1)


def test_a_pause_that_was_written_by_a_clock_an_hour_ahead() -> None:
    world = World.of(workers=1)
    timing = world.status.timing.model_copy(
        update={"retry_at": world.now + HOUR, "gang_retry_at": world.now + HOUR, "active_since": world.now + HOUR}
    )
    world.job = world.job.model_copy(update={"status": world.status.model_copy(update={"timing": timing})})
    world.turn()
    timing = world.status.timing
    assert timing.retry_at == world.now + seconds(LONGEST_RETRY_S), "written once, so that it does not move on"
    assert timing.gang_retry_at == world.now + seconds(LONGEST_GANG_S) and timing.active_since == world.now
    world.tick(LONGEST_GANG_S)
    assert world.run().attempt.number == 1


def test_an_attempt_that_ended_in_the_future() -> None:
    world = World.of(workers=2).run().tick(60)
    world.now += HOUR
    world.lose_pod(1)
    world.turn()
    world.now -= HOUR
    world.turn()
    assert world.attempt.ended_at == world.now == world.status.history[-1].ended_at


def test_a_look_that_was_called_for_in_the_future_keeps_no_job_for_longer() -> None:
    stored = {"checkpoint": {"storage": "/checkpoints"}, "failure_policy": {"maxFailures": 0}}
    world = World.of(workers=1, **stored).run().tick(60)
    world.now += HOUR
    world.lose_pod(0)
    world.turn()
    assert world.status.verdict is not None and world.status.verdict.since == world.now
    world.now -= HOUR
    world.turn()
    assert world.status.verdict is not None and world.status.verdict.since == world.now


def test_nodes_that_broke_in_the_future_broke_now() -> None:
    world = World.of(workers=2)
    later = world.now + HOUR
    moments = {
        "last_failure": Failure(attempt=1, time=later, reason="Hang", node="b"),
        "suspects": [SuspectNode(node="b", time=later, reason="Hang")],
        "stragglers": StragglersView(attempt=1, since=later),
    }
    status = settled(world.status.model_copy(update=moments), world.now)
    assert status.last_failure is not None and status.stragglers is not None
    assert {status.last_failure.time, status.stragglers.since, status.suspects[0].time} == {world.now}


def test_room_that_was_made_in_the_future_is_taken_back_in_its_time() -> None:
    world = World.of(workers=4)
    gave = GaveWay(to="other", uid="other", workers=2, since=world.now + HOUR)
    moments = {"gave_way": gave, "gave_way_in_vain": {"third": world.now + HOUR}}
    status = settled(world.status.model_copy(update=moments), world.now)
    assert status.gave_way is not None and status.gave_way.since == world.now
    assert status.gave_way_in_vain == {"third": world.now}


def test_who_was_to_go_an_hour_ahead_goes_within_its_grace_period() -> None:
    world = World.of(workers=1)
    boundary = Boundary(
        cause="Preempted", since=world.now + HOUR, gone_by=world.now + HOUR + seconds(30), grace_seconds=30
    )
    status = settled(world.status.model_copy(update={"boundary": boundary}), world.now)
    assert status.boundary is not None
    assert (status.boundary.since, status.boundary.gone_by) == (world.now, world.now + seconds(30))


def test_progress_that_was_written_in_the_future_does_not_hold_up_the_next() -> None:
    world = World.of(workers=1).run()
    world.now += HOUR
    world.report(3)
    world.turn()
    world.now -= HOUR
    world.tick(60).report(4)
    world.turn()
    assert world.tick(10).turn().status.progress.position == 4


@pytest.mark.parametrize("ahead_s", [0.0, TOLERANCE_S])
def test_clocks_that_differ_a_little_write_nothing(ahead_s: float) -> None:
    world = World.of(workers=1).run()
    world.settle()
    world.now -= seconds(ahead_s)
    assert settled(world.status, world.now) == world.status and is_steady(world)


def test_a_finished_job_keeps_its_moments() -> None:
    world = World.of(workers=1, failure_policy={"maxFailures": 0}).run().tick(60)
    world.break_rank(0, raised(0, "ValueError"))
    world.turn()
    assert world.status.finished and settled(world.status, world.now - HOUR) is world.status


def test_pods_of_a_job_that_finished_in_the_future_are_cleaned_up_now() -> None:
    world = World.of(workers=1, failure_policy={"maxFailures": 0}).run().tick(60)
    world.break_rank(0, raised(0, "ValueError"))
    world.turn()
    world.now -= HOUR
    assert world.status.finished and world.turn().actions == (DeletePod("digits-0", "uid-1"),)
