"""Elastic size: with how many workers an attempt begins, when it goes on with fewer, and when with more."""

from __future__ import annotations

from typing import Any

import pytest

from support.core import World, is_steady, raised, seconds
from trainjob_api import contract, defaults
from trainjob_api.v1alpha1 import Condition
from trainjob_operator.core.ends.budget import BACK_OFF_S
from trainjob_operator.core.model import PodPhase
from trainjob_operator.core.size.elastic import COMING_UP_S, PLACING_S, hold
from trainjob_operator.core.size.gang import GANG_WAIT_S
from trainjob_operator.core.turn import LISTEN_S, Turn

SHRINK_S, GROW_S = 30, 60


def elastic(workers: int = 4, **fields: Any) -> World:
    sizes = {"min_workers": 2, "max_workers": 8, "shrink_after_seconds": SHRINK_S, "grow_after_seconds": GROW_S}
    return World.of(workers=workers, elastic=sizes | fields)


def below(world: World) -> Condition:
    condition = world.status.condition("BelowTargetWorkers")
    assert condition is not None
    return condition


def trains(world: World) -> tuple[int, str]:
    """(workers, members) of the attempt that runs."""
    assert world.attempt.state == "Running", world.turn().why
    return world.attempt.workers, world.attempt.members


def come_up(world: World, *slots: int) -> None:
    """Only these get a node and run; the scheduler has none for the others."""
    world.schedule(*slots)
    for slot in slots:
        world.set_pod(slot, phase=PodPhase.RUNNING, ready=True)
    world.sync_all()


# --- Sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "allowed", "there", "size"),
    [(4, [], 4, 4), (4, [], 3, 3), (4, [], 1, None), (8, [2, 4, 8], 7, 4), (4, [8, 2, 4], 8, 4), (8, [4, 8], 3, None)],
)
def test_the_largest_allowed_size_counts(workers: int, allowed: list[int], there: int, size: int | None) -> None:
    assert defaults.largest_size(elastic(workers, allowed_sizes=allowed).job.spec, there) == size


def test_without_elastic_there_is_one_size() -> None:
    spec = World.of(workers=3).job.spec
    assert (defaults.largest_size(spec, 2), defaults.largest_size(spec, 3)) == (None, 3)


# --- Starts -----------------------------------------------------------------------------------------------------------


def test_a_start_with_all_begins_at_once() -> None:
    world = elastic().run()
    assert trains(world) == (4, "0-3") and below(world).status == "False"


def test_a_start_does_not_wait_for_those_that_find_no_node() -> None:
    world = elastic()
    world.turn()
    come_up(world, 0, 1, 2)
    world.turn()
    assert trains(world) == (3, "0-2")
    world.sync_all()
    world.turn()
    said = below(world)
    assert (said.status, said.reason) == ("True", contract.REASON_BELOW_TARGET) and world.status.reason == said.reason
    assert "3 of 4 workers" in said.message and "Insufficient cpu" in said.message and "at least 2" in said.message
    assert is_steady(world)


def test_a_start_waits_a_moment_for_those_that_are_visibly_coming_up() -> None:
    world = elastic()
    world.turn()
    world.start_pods()
    world.sync(0)
    world.sync(1)
    world.sync(2)
    decision = world.turn()
    assert world.status.attempt is None and "digits-3" in decision.why
    assert decision.requeue_after is not None and decision.requeue_after <= seconds(COMING_UP_S)
    world.tick(COMING_UP_S).turn()
    assert trains(world) == (3, "0-2")


def test_a_start_waits_a_moment_for_the_schedulers_word() -> None:
    world = elastic()
    world.turn()
    world.start_pods()
    world.set_pod(3, phase=PodPhase.PENDING, scheduled=False, scheduled_at=None, node=None)
    for slot in range(3):
        world.sync(slot)
    world.turn()
    assert world.status.attempt is None
    world.tick(PLACING_S).turn()
    assert trains(world) == (3, "0-2")


def test_fewer_than_the_minimum_wait() -> None:
    world = elastic()
    world.turn()
    come_up(world, 0)
    world.tick(GANG_WAIT_S - 1).turn()
    assert world.status.attempt is None and world.status.reason == contract.REASON_UNSCHEDULABLE


def test_only_allowed_sizes_train() -> None:
    world = elastic(allowed_sizes=[2, 4])
    world.turn()
    come_up(world, 0, 1, 2)
    world.turn()
    assert trains(world) == (2, "0-1")


def test_what_a_start_can_use_is_not_given_back() -> None:
    world = elastic()
    world.turn()
    world.schedule(0, 1, 2)
    world.tick(GANG_WAIT_S + 1).turn()
    assert world.status.slots == "0-3" and not any(pod.deleting for pod in world.pods.values())


def test_where_images_are_pulled_for_long_a_start_waits_a_moment_from_when_it_could_begin() -> None:
    world = elastic()
    world.turn()
    world.schedule(0, 1, 2, 3)
    world.tick(3 * COMING_UP_S)
    come_up(world, 0, 1)
    world.turn()
    assert world.status.attempt is None
    world.tick(COMING_UP_S - 1)
    assert is_steady(world)
    come_up(world, 2, 3)
    world.turn()
    assert trains(world) == (4, "0-3") and world.status.growth is None


def test_a_start_that_could_not_begin_any_more_waits_anew() -> None:
    world = elastic()
    world.turn()
    world.schedule(0, 1, 2, 3)
    world.tick(3 * COMING_UP_S)
    come_up(world, 0, 1)
    world.turn()
    world.tick(COMING_UP_S - 1)
    world.sync(1, draining=True)
    world.turn()
    world.tick(10).sync(1, draining=False)
    world.turn()
    assert world.status.attempt is None
    world.tick(COMING_UP_S).turn()
    assert trains(world) == (2, "0-1")


def new_leader(world: World) -> None:
    """The operator is another process, that nobody has spoken to yet."""
    world.listening_since = world.now
    world.agents.clear()


def test_a_new_leader_hears_those_that_are_up_before_a_first_start_is_smaller() -> None:
    world = elastic()
    world.turn()
    world.start_pods()
    world.tick(3 * COMING_UP_S)
    new_leader(world)
    world.sync(0)
    world.sync(1)
    decision = world.turn()
    assert world.status.attempt is None and decision.requeue_after == seconds(LISTEN_S)
    world.sync(2)
    world.sync(3)
    world.turn()
    assert trains(world) == (4, "0-3")


def test_a_new_leader_hears_the_survivors_before_training_goes_on_smaller() -> None:
    world = elastic(8).run().tick(100)
    lose(world, 1)
    world.schedule()
    world.tick(SHRINK_S + 10)
    new_leader(world)
    world.sync(3)
    world.sync(5)
    decision = world.turn()
    assert world.attempt.state == "Ended" and decision.requeue_after == seconds(LISTEN_S)
    for slot in (0, 2, 4, 6, 7):
        world.sync(slot)
    world.turn()
    assert trains(world) == (7, "0,2-7")


def test_who_says_nothing_to_a_new_leader_is_not_waited_for_longer() -> None:
    world = trained_and_lost(1)
    world.schedule()
    world.tick(SHRINK_S + 10)
    new_leader(world)
    world.sync(0)
    world.sync(2)
    world.tick(LISTEN_S).turn()
    assert trains(world) == (2, "0,2")


# --- Smaller ----------------------------------------------------------------------------------------------------------


def lose(world: World, *slots: int) -> None:
    for slot in slots:
        world.lose_pod(slot)
    world.turn()
    world.sync_all()


def trained_and_lost(*slots: int) -> World:
    """All four trained, and then these were gone."""
    world = elastic().run().tick(100)
    lose(world, *slots)
    return world


def test_a_lost_worker_has_time_to_be_replaced() -> None:
    world = trained_and_lost(1)
    assert world.attempt.state == "Ended" and world.status.slots == "0,2-4"
    world.start_pods()
    world.sync_all()
    world.tick(SHRINK_S - 1).turn()
    assert trains(world) == (4, "0,2-4") and world.status.failures.counted == 1


def test_training_goes_on_smaller_when_no_successor_comes_in_time() -> None:
    world = trained_and_lost(1)
    world.schedule()
    decision = world.turn()
    assert "shrinkAfterSeconds" in decision.why and decision.requeue_after == seconds(SHRINK_S)
    world.tick(SHRINK_S - 1).turn()
    assert world.attempt.state == "Ended"
    world.tick(1).turn()
    assert trains(world) == (3, "0,2-3"), "survivors keep their order"
    assert world.attempt.cause == contract.REASON_POD_LOST
    assert (world.status.failures.counted, world.status.failures.preemptions) == (1, 0), "the loss itself, once"
    assert world.status.slots == "0,2-4", "its successor is still asked for"


def test_a_preempted_workers_place_is_not_waited_for_where_there_is_no_room() -> None:
    world = elastic().run().tick(100)
    world.set_pod(1, deleting=True, disrupted=True, disruption="the node is drained")
    world.turn()
    assert world.attempt.state == "Ended" and world.status.failures.preemptions == 1
    world.sync_all()
    world.turn()
    assert world.attempt.state == "Ended", "its successor may find a node yet"
    world.schedule()
    world.turn()
    assert trains(world) == (3, "0,2-3")


def test_of_too_many_survivors_the_first_go_on() -> None:
    world = elastic(allowed_sizes=[2, 4]).run().tick(100)
    lose(world, 0)
    world.tick(SHRINK_S).turn()
    assert trains(world) == (2, "1-2")
    assert world.status.slots == "1-4", "the third waits beside them"


def test_below_the_minimum_it_waits_with_a_reason() -> None:
    world = trained_and_lost(0, 1, 2)
    world.schedule()
    world.tick(SHRINK_S + 1).turn()
    assert world.attempt.state == "Ended" and world.status.reason == contract.REASON_UNSCHEDULABLE


def test_who_has_shrunk_waits_for_no_wish_when_a_rank_breaks() -> None:
    world = trained_and_lost(1)
    world.schedule()
    world.tick(SHRINK_S).turn()
    world.sync_all()
    world.turn()
    world.tick(60).report(7)
    world.break_rank(2, raised(1, "ValueError"))
    world.turn()
    assert (world.attempt.number, *trains(world)) == (3, 3, "0,2-3")


def test_without_storage_survivors_that_hold_checkpoints_are_waited_for() -> None:
    world = elastic().run().tick(100)
    world.report(5)
    world.mute.add(3)
    lose(world, 1)
    world.sync(3, quiet=False)
    world.tick(SHRINK_S + 5).turn()
    assert world.attempt.state == "Ended" and "checkpoint.storage" in world.turn().why
    world.sync(3, quiet=True)
    world.turn()
    assert trains(world) == (3, "0,2-3")


def test_the_wait_for_a_successor_begins_when_the_back_off_is_over() -> None:
    world = elastic().run()
    books = world.status.failures.model_copy(update={"early_in_row": len(BACK_OFF_S)})
    world.job = world.job.model_copy(update={"status": world.status.model_copy(update={"failures": books})})
    lose(world, 1)
    until = world.status.timing.retry_at
    assert until is not None and until - world.now > seconds(SHRINK_S)
    world.now = until
    world.sync_all()
    decision = world.turn()
    assert world.attempt.state == "Ended" and "shrinkAfterSeconds" in decision.why
    world.start_pods()
    world.sync_all()
    world.turn()
    assert trains(world)[0] == 4


def test_a_successor_that_is_visibly_coming_up_is_waited_for() -> None:
    world = trained_and_lost(1)
    world.tick(SHRINK_S - 1)
    world.schedule(4)
    world.tick(1).turn()
    assert world.attempt.state == "Ended"
    world.tick(COMING_UP_S - 2)
    come_up(world, 0, 2, 3, 4)
    world.turn()
    assert trains(world) == (4, "0,2-4")


def test_one_that_does_not_come_up_is_waited_for_no_longer() -> None:
    world = trained_and_lost(1)
    world.tick(SHRINK_S - 1)
    world.schedule(4)
    world.tick(COMING_UP_S).turn()
    assert trains(world) == (3, "0,2-3")


def test_whoever_wants_no_wait_has_none() -> None:
    world = elastic(shrink_after_seconds=0).run().tick(100)
    lose(world, 1)
    world.turn()
    assert trains(world) == (3, "0,2-3")


def test_a_successor_that_failed_once_is_waited_for_no_longer() -> None:
    world = trained_and_lost(1)
    world.start_pods()
    world.tick(SHRINK_S)
    world.fail_pod(4)
    world.turn()
    retry_at = world.status.timing.retry_at
    world.now = max(world.now, retry_at or world.now)
    world.sync_all()
    world.turn()
    assert trains(world) == (3, "0,2-3") and "5" in world.status.slots


def test_workers_that_an_edit_replaces_all_are_waited_for_as_at_a_first_start() -> None:
    world = elastic().run().tick(100)
    world.change_spec(processes_per_worker=2)
    world.ask_restart("now")
    world.turn()
    world.finish_deletions()
    world.turn()
    assert world.attempt.state == "Ended" and world.status.slots == "4-7"
    world.schedule(4, 5, 6, 7)
    world.tick(2 * COMING_UP_S)
    come_up(world, 4, 5)
    world.turn()
    assert world.attempt.state == "Ended"
    come_up(world, 6, 7)
    world.turn()
    assert trains(world) == (4, "4-7")


def test_where_nobody_is_late_nobody_is_waited_for() -> None:
    world = trained_and_lost(1)
    turn = Turn.of(world.observe(), world.now)
    assert hold(turn, 3, [4]) is not None
    assert hold(turn, 3, []) is None


# --- Larger -----------------------------------------------------------------------------------------------------------


def shrunk(**fields: Any) -> World:
    world = elastic(**fields).run().tick(100)
    lose(world, 1, 2)
    world.schedule()
    world.tick(SHRINK_S).turn()
    world.sync_all()
    world.turn()
    assert trains(world) == (2, "0,3")
    return world


def test_workers_that_have_been_up_for_long_enough_join() -> None:
    world = shrunk()
    come_up(world, 0, 3, 4)
    decision = world.turn()
    assert decision.requeue_after is not None and decision.requeue_after <= seconds(GROW_S)
    assert world.status.growth is not None
    assert world.status.growth.workers == 3
    assert is_steady(world.tick(GROW_S - 1))
    world.tick(1).turn()
    assert trains(world) == (3, "0,3-4") and world.attempt.cause == contract.REASON_RESIZED
    assert world.status.failures.counted == 1 and world.status.growth is None
    assert world.status.history[-1].end_cause == contract.REASON_RESIZED


def test_spares_that_come_up_one_by_one_are_no_reason_to_write() -> None:
    world = shrunk(min_workers=2)
    come_up(world, 0, 3, 4)
    world.turn()
    since = world.status.growth
    come_up(world, 0, 3, 4, 5)
    world.turn()
    assert world.status.growth == since
    world.tick(GROW_S).turn()
    assert trains(world) == (4, "0,3-5"), "with all that are up by then"


def test_the_wait_begins_once_they_are_warm() -> None:
    world = shrunk()
    come_up(world, 0, 3, 4)
    world.sync(4, warming=True)
    world.turn()
    world.tick(GROW_S).turn()
    assert world.status.growth is None and trains(world) == (2, "0,3")
    world.sync(4, warming=False)
    world.turn()
    assert world.status.growth is not None
    world.tick(GROW_S).turn()
    assert trains(world) == (3, "0,3-4")


def test_who_went_again_in_the_meantime_starts_the_wait_anew() -> None:
    world = shrunk()
    come_up(world, 0, 3, 4)
    world.turn()
    world.tick(GROW_S - 1)
    world.lose_pod(4)
    world.turn()
    assert world.status.growth is None
    world.tick(1).turn()
    assert trains(world) == (2, "0,3")


def test_a_size_that_is_not_allowed_is_not_grown_to() -> None:
    world = shrunk(allowed_sizes=[2, 4])
    come_up(world, 0, 3, 4)
    world.turn()
    assert world.status.growth is None
    world.tick(GROW_S + GANG_WAIT_S).turn()
    assert trains(world) == (2, "0,3")
    assert world.status.slots == "0,3", "what it cannot use is given back"


def test_after_an_edit_the_workers_that_train_are_not_thrown_away_to_grow() -> None:
    world = shrunk()
    world.change_spec(processes_per_worker=2)
    world.turn()
    world.finish_deletions()
    world.turn()
    spares = sorted(pod.slot for pod in world.pods.values() if pod.slot not in (0, 3))
    assert spares == [6, 7], "made as the next start needs them"
    come_up(world, 0, 3, *spares)
    decision = world.turn()
    assert world.status.growth is None and "the spec was edited" in decision.why
    world.tick(GROW_S + GANG_WAIT_S)
    assert is_steady(world)
    assert trains(world) == (2, "0,3")
    world.ask_restart("now")
    world.turn()
    assert world.status.history[-1].end_cause == contract.REASON_RESTART_REQUESTED and world.status.slots == "6-9"


def test_a_wish_for_fewer_takes_effect_at_once() -> None:
    world = elastic().run().tick(100)
    world.change_spec(workers=2)
    world.turn()
    assert trains(world) == (2, "0-1") and world.attempt.cause == contract.REASON_SCALED
    assert below(world).status == "False"


def test_an_explicit_raise_waits_for_all_that_are_wished_and_no_longer() -> None:
    world = elastic().run().tick(100)
    world.change_spec(workers=6)
    world.turn()
    come_up(world, 0, 1, 2, 3, 4)
    world.turn()
    assert trains(world) == (4, "0-3") and world.status.growth is not None, "a part of them grows as spare room does"
    come_up(world, 0, 1, 2, 3, 4, 5)
    world.turn()
    assert trains(world) == (6, "0-5") and world.attempt.cause == contract.REASON_SCALED
    assert (world.attempt.wished, world.status.growth) == (6, None)


def test_a_part_of_an_explicit_raise_waits_as_spare_room_does() -> None:
    world = elastic().run().tick(100)
    world.change_spec(workers=6)
    world.turn()
    come_up(world, 0, 1, 2, 3, 4)
    world.turn()
    assert is_steady(world.tick(GROW_S - 1))
    world.tick(1).turn()
    assert trains(world) == (5, "0-4") and world.attempt.cause == contract.REASON_RESIZED


def test_an_explicit_raise_waits_for_the_boundary() -> None:
    world = elastic().run().tick(100)
    world.report(7)
    world.sync(int(world.attempt.members[0]), latest={"id": "7", "time": world.now.timestamp(), "bytes": 1})
    world.change_spec(workers=5)
    world.turn()
    world.start_pods()
    world.sync_all()
    world.turn()
    boundary = world.status.boundary
    assert boundary is not None and boundary.cause == contract.REASON_SCALED and world.status.growth is None
    assert trains(world) == (4, "0-3")


def test_spare_room_that_comes_after_a_raise_was_met_waits_again() -> None:
    world = shrunk()
    assert world.attempt.wished == 4
    come_up(world, 0, 3, 4, 5)
    world.turn()
    assert trains(world) == (2, "0,3") and world.status.growth is not None, "all are there, and nobody raised the wish"


def test_after_a_suspension_the_minimum_suffices() -> None:
    world = elastic().run().tick(100)
    world.change_spec(suspend=True)
    world.turn()
    world.finish_deletions()
    world.pods, world.agents = {}, {}
    world.turn()
    world.change_spec(suspend=False)
    world.turn()
    slots = sorted(pod.slot for pod in world.pods.values())
    come_up(world, *slots[:2])
    world.turn()
    assert trains(world)[0] == 2 and world.attempt.cause == contract.REASON_RESUMED


def test_an_attempt_of_a_size_that_an_edit_has_ruled_out_goes_on_until_the_next_start() -> None:
    world = shrunk()
    sizes = world.job.spec.elastic
    assert sizes is not None
    world.change_spec(elastic=sizes.model_copy(update={"min_workers": 3}))
    world.turn()
    said = below(world)
    assert said.status == "True" and "2 of 4 workers" in said.message and "at least 3" not in said.message
    assert "the sizes were edited since: that takes effect at the next start" in said.message


def test_without_elastic_no_job_is_below_its_target() -> None:
    world = shrunk()
    assert below(world).status == "True"
    world.change_spec(elastic=None)
    world.turn()
    assert world.status.condition("BelowTargetWorkers") is None
    assert is_steady(world)
