"""A start that gets a part of its workers gives them back, says so, and tries again."""

from __future__ import annotations

import pytest

from support.core import World, is_steady, raised, seconds
from trainjob_api import contract
from trainjob_operator.core.model import CreatePod, DeletePod, PodPhase
from trainjob_operator.core.size.gang import GANG_WAIT_S, RESTART_WAIT_S, RETRY_S, pause_s

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
    world.tick(RESTART_WAIT_S).turn()
    assert ("digits-0" in [pod.name for pod in world.pods.values() if not pod.deleting]) == kept


def test_suspension_ends_the_waiting() -> None:
    world = partial()
    world.tick(GANG_WAIT_S).turn()
    world.change_spec(suspend=True)
    world.turn()
    assert (world.status.timing.gang_retry_at, world.status.timing.gang_tries) == (None, 0)


# --- A job that has run goes on at the size that it ran at -------------------------------------------------------------


def grown_in_vain(**fields: object) -> World:
    """Runs with two workers, is to have four, and there is no room: the other two were given back."""
    world = World.of(workers=2, checkpoint={"storage": "/checkpoints"}, **fields).run().tick(60)
    world.change_spec(workers=4)
    world.turn()
    world.tick(1).schedule()
    world.turn()
    return world


def test_a_rank_that_fails_while_there_is_no_room_to_grow_restarts_in_place() -> None:
    world = grown_in_vain()
    world.tick(3600).sync_all()
    world.break_rank(1, raised(1, "ValueError"))
    decision = world.turn()
    assert not [action for action in decision.actions if isinstance(action, DeletePod) and action.name < "digits-2"]
    world.sync_all()
    world.turn()
    assert (world.attempt.number, world.attempt.state, world.attempt.members) == (2, "Running", "0-1")
    world.tick(3600).turn()
    assert {"digits-0", "digits-1"} <= {pod.name for pod in world.pods.values() if not pod.deleting}


def test_a_member_that_is_lost_while_there_is_no_room_to_grow_is_replaced_at_once() -> None:
    world = grown_in_vain()
    world.schedule(2)
    world.tick(GANG_WAIT_S).turn()
    assert world.status.slots == "0-1" and world.status.timing.gang_retry_at is not None
    world.finish_deletions()
    world.lose_pod(1)
    decision = world.turn()
    assert [action.slot for action in decision.actions if isinstance(action, CreatePod)] == [4]
    world.start_pods()
    world.sync_all()
    world.turn()
    assert (world.attempt.number, world.attempt.state, world.attempt.members) == (2, "Running", "0,4")


def test_a_worker_that_was_to_join_takes_the_place_of_a_lost_member() -> None:
    world = grown_in_vain()
    world.schedule(2)
    world.set_pod(2, phase=PodPhase.RUNNING, ready=True)
    world.sync_all()
    world.lose_pod(0)
    world.turn()
    world.sync_all()
    world.turn()
    assert (world.attempt.number, world.attempt.state, world.attempt.members) == (2, "Running", "1-2")
    world.tick(GANG_WAIT_S).turn()
    assert {"digits-1", "digits-2"} <= {pod.name for pod in world.pods.values() if not pod.deleting}
    world.tick(600)
    world.turn()
    for _ in range(3):
        world.start_pods()
        world.sync_all()
        world.turn()
    assert world.attempt.workers == 4, "it grows as soon as there is room"


def test_survivors_wait_longer_for_the_node_of_a_lost_worker_than_a_first_start_does() -> None:
    world = World.of(workers=3, checkpoint={"storage": "/checkpoints"}).run().tick(60)
    world.lose_pod(2)
    world.turn()
    world.tick(1).schedule()
    world.tick(RESTART_WAIT_S - 2).turn()
    assert {"digits-0", "digits-1"} <= {pod.name for pod in world.pods.values() if not pod.deleting}
    world.tick(1).turn()
    assert gang(world)[0] == contract.REASON_GANG and world.status.slots == ""


def test_pods_that_a_gate_holds_back_do_not_keep_half_a_start_for_ever() -> None:
    world = partial()
    world.set_pod(2, reason="SchedulingGated", message="")
    world.tick(GANG_WAIT_S).turn()
    assert gang(world)[0] == contract.REASON_GANG and world.status.slots == ""


def test_a_quota_that_lets_half_a_start_be_does_not_hold_its_nodes_for_ever() -> None:
    world = partial(placed=3)
    world.lose_pod(2)
    world.refusals = ("pods is forbidden: exceeded quota: pods, requested: pods=1, used: pods=2, limited: pods=2",)
    world.tick(GANG_WAIT_S).turn()
    reason, message = gang(world)
    assert reason == contract.REASON_GANG and "exceeded quota" in message and world.status.slots == ""
