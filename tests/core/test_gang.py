"""A start that gets a part of its workers gives them back, says so, and tries again."""

from __future__ import annotations

import pytest

from support.core import World, is_steady, seconds
from trainjob_api import contract
from trainjob_operator.core.model import CreatePod, DeletePod
from trainjob_operator.core.size.gang import GANG_WAIT_S, RETRY_S, pause_s

PLAIN = {"runtime": {"agent": "Disabled"}}


def partial(workers: int = 3, placed: int = 2, **fields: object) -> World:
    world = World.of(workers=workers, **fields)
    world.turn()
    world.tick(1).schedule(*range(placed))
    world.turn()
    return world


def gang(world: World) -> tuple[str, str]:
    condition = world.status.condition("PodsScheduled")
    assert condition is not None
    return condition.reason, condition.message


@pytest.mark.parametrize("fields", [{}, PLAIN], ids=["agents", "plain"])
def test_all_pods_are_given_back_after_a_minute(fields: dict[str, object]) -> None:
    world = partial(**fields)
    assert gang(world)[0] == contract.REASON_UNSCHEDULABLE
    assert is_steady(world.tick(GANG_WAIT_S - 1))
    decision = world.tick(1).turn()
    assert {action.name for action in decision.actions if isinstance(action, DeletePod)} == {
        "digits-0",
        "digits-1",
        "digits-2",
    }
    reason, message = gang(world)
    assert reason == contract.REASON_GANG == world.status.reason
    assert (
        "2 of 3 workers" in message
        and "digits-2: Unschedulable: 0/3 nodes are available: 3 Insufficient cpu." in message
    )
    assert (world.status.slots, world.status.phase in ("Pending", "Restarting"), world.status.failures.counted) == (
        "",
        True,
        0,
    )
    assert [event.reason for event in decision.events if event.type == "Warning"] == [contract.REASON_GANG]
    retry_at = world.status.timing.gang_retry_at
    assert retry_at == world.now + seconds(pause_s("job-uid", 1)) and decision.requeue_after == retry_at - world.now


@pytest.mark.parametrize("fields", [{}, PLAIN], ids=["agents", "plain"])
def test_the_next_try_comes_with_new_pods_and_its_words_stay_until_then(fields: dict[str, object]) -> None:
    world = partial(**fields)
    world.tick(GANG_WAIT_S).turn()
    said = gang(world)
    world.finish_deletions()
    assert is_steady(world.tick(5)) and gang(world) == said
    world.tick(60)
    decision = world.turn()
    assert [action.slot for action in decision.actions if isinstance(action, CreatePod)] == [3, 4, 5]
    assert (world.status.timing.gang_retry_at, world.status.timing.gang_tries) == (None, 1)
    assert gang(world)[0] == contract.REASON_UNSCHEDULED
    world.run()
    assert world.status.phase == "Running"


def test_tries_in_a_row_wait_longer_and_an_attempt_forgives_them() -> None:
    world = partial()
    waits = []
    for _ in range(3):
        world.tick(GANG_WAIT_S).turn()
        retry_at = world.status.timing.gang_retry_at
        assert retry_at is not None
        waits.append((retry_at - world.now).total_seconds())
        world.finish_deletions()
        world.now = retry_at
        world.turn()
        world.schedule(min(pod.slot for pod in world.pods.values()))
        world.tick(1).turn()
    assert waits == pytest.approx([pause_s("job-uid", n) for n in (1, 2, 3)])
    world.run()
    assert world.status.timing.gang_tries == 0


def test_two_jobs_do_not_try_at_the_same_time() -> None:
    pauses = {pause_s(f"uid-{n}", 1) for n in range(100)}
    assert len(pauses) == 100 and RETRY_S[0] * 0.5 <= min(pauses) and max(pauses) <= RETRY_S[0] * 1.5
    assert max(pauses) - min(pauses) > RETRY_S[0] * 0.8


@pytest.mark.parametrize("placed", [0, 3])
def test_nothing_is_given_back_when_none_or_all_have_a_node(placed: int) -> None:
    world = partial(placed=placed)
    world.tick(3600).turn()
    assert (world.status.slots, world.status.timing.gang_retry_at) == ("0-2", None)


def test_a_pod_that_got_its_node_meanwhile_starts_the_minute_anew() -> None:
    world = partial(placed=1)
    world.tick(50).schedule(1)
    world.tick(30).turn()
    assert world.status.timing.gang_retry_at is None
    world.tick(30).turn()
    assert world.status.timing.gang_retry_at is not None


def test_a_queued_job_never_fails_by_its_startup_deadline() -> None:
    world = partial(startup_deadline_seconds=10)
    for _ in range(40):
        world.tick(30).turn()
        world.finish_deletions()
        slots = [pod.slot for pod in world.pods.values()]
        world.schedule(*slots[:1])
    assert not world.status.finished and world.status.timing.gang_tries > 2


def test_the_deadline_starts_over_when_a_pod_of_the_start_is_lost_to_a_queue() -> None:
    world = World.of(workers=2, startup_deadline_seconds=100)
    world.turn()
    world.tick(1).schedule(0, 1)
    world.turn()
    assert world.status.timing.scheduled_at == world.now
    world.tick(50).lose_pod(1)
    world.turn()
    assert world.status.timing.scheduled_at is None
    world.tick(100).turn()
    assert not world.status.finished


def test_workers_that_a_running_attempt_cannot_grow_by_are_given_back_alone() -> None:
    world = World.of(workers=2).run().tick(60)
    world.change_spec(workers=4)
    world.turn()
    world.tick(1).schedule(2)
    world.tick(GANG_WAIT_S)
    decision = world.turn()
    assert {action.name for action in decision.actions if isinstance(action, DeletePod)} == {"digits-2", "digits-3"}
    assert (world.status.slots, world.attempt.state, gang(world)[0]) == ("0-1", "Running", contract.REASON_GANG)


@pytest.mark.parametrize(("storage", "kept"), [(None, True), ("/checkpoints", False)])
def test_pods_that_hold_the_only_checkpoints_are_kept(storage: str | None, kept: bool) -> None:
    world = World.of(workers=2, checkpoint={"storage": storage}).run().tick(60)
    world.report(5)
    world.turn()
    world.lose_pod(1)
    world.turn()
    world.schedule()
    world.tick(GANG_WAIT_S).turn()
    assert ("digits-0" in [pod.name for pod in world.pods.values() if not pod.deleting]) == kept


def test_suspension_ends_the_waiting() -> None:
    world = partial()
    world.tick(GANG_WAIT_S).turn()
    world.change_spec(suspend=True)
    world.turn()
    assert (world.status.timing.gang_retry_at, world.status.timing.gang_tries) == (None, 0)
