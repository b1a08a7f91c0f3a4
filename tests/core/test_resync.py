"""Whatever waits is looked at again, even if whoever should have called for it did not."""

from __future__ import annotations

import pytest

from support.core import T0, World, make_job, seconds
from trainjob_operator.core.resync import AT_EASE, RESYNC_S, resync_s
from trainjob_operator.core.turn import Turn

SHORT, LONG = RESYNC_S


def next_look_s(world: World) -> float | None:
    decision = world.settle()
    return decision.requeue_after.total_seconds() if decision.requeue_after is not None else None


def test_a_job_that_waits_for_its_workers() -> None:
    due = next_look_s(World.of(workers=2))
    assert due is not None and due <= LONG


def test_a_job_between_two_attempts() -> None:
    world = World.of(workers=2).run()
    world.lose_pod(1)
    due = next_look_s(world)
    assert due is not None and due <= LONG


def test_a_plain_job_that_runs_has_nobody_to_tell_of_its_pods() -> None:
    due = next_look_s(World.of(workers=2, runtime={"agent": "Disabled"}).run())
    assert due is not None and SHORT <= due <= LONG


def test_a_job_whose_agents_all_speak_is_looked_at_rarely() -> None:
    due = next_look_s(World.of(workers=2).run())
    assert due is not None and due >= SHORT * AT_EASE


def test_a_job_with_a_doubtful_worker_is_not_at_ease() -> None:
    world = World.of(workers=2).run()
    world.sync(0, lost_peers=(1,))
    due = next_look_s(world)
    assert due is not None and due <= LONG


def test_jobs_at_rest_are_left_alone() -> None:
    assert next_look_s(World.of(workers=2, suspend=True)) is None
    finished = World.of(workers=1).run()
    finished.sync(0, completed=True)
    finished.turn()
    finished.tick(60).fail_pod(0, 0)
    assert finished.status.finished and next_look_s(finished) is None


def test_looks_are_spread_and_always_the_same_for_a_job() -> None:
    moments = [resync_s(f"uid-{number}") for number in range(200)]
    assert all(SHORT <= s <= LONG for s in moments) and len(set(moments)) == 200
    assert moments == [resync_s(f"uid-{number}") for number in range(200)]


def test_who_waits_names_who_wakes_it() -> None:
    turn = Turn.of(World(make_job()).observe(), T0)
    with pytest.raises(ValueError, match="nobody wakes"):
        turn.wait("waiting for something")
    turn.wait("waiting for the moment", until=T0 + seconds(3))
    assert (turn.wakes, turn.sentences) == ([T0 + seconds(3)], ["waiting for the moment"])
