"""Spare workers: who is one, when one takes a place, and what becomes of those that cannot be had."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from support.core import World, is_steady, make_spec, raised, seconds
from trainjob_api import contract
from trainjob_api.bad_nodes import Mark
from trainjob_api.validation import validate_spec
from trainjob_operator.core import make
from trainjob_operator.core.instruct import instruct
from trainjob_operator.core.model import CreatePod, Decision, DeletePod
from trainjob_operator.core.pods.naming import parse_slots, spare_slots, worker_slots
from trainjob_operator.core.size.gang import GANG_WAIT_S, RESTART_WAIT_S
from trainjob_operator.core.size.spares import SETTLED_S
from trainjob_operator.core.turn import LISTEN_S


def of(workers: int = 2, spares: int = 1, **fields: Any) -> World:
    """All workers train, and the spares have just been listed."""
    world = World.of(workers=workers, runtime={"spareWorkers": spares}, **fields)
    world.turn()
    world.start_pods()
    for _ in range(2):
        world.sync_all()
        world.turn()
    assert world.status.phase == "Running" and len(parse_slots(world.status.spares)) == spares
    return world


def standing(workers: int = 2, spares: int = 1, **fields: Any) -> World:
    """And they are ready."""
    world = of(workers, spares, **fields)
    bring_up(world)
    assert world.status.workers.spares == f"{spares}/{spares}" and is_steady(world)
    return world


def bring_up(world: World) -> Decision:
    """All pods that are wished come up."""
    for _ in range(4):
        world.turn()
        world.start_pods()
        world.sync_all()
        # Past the rare writes of a start.
        world.tick(15)
    return world.turn()


def set_spares(world: World, count: int) -> None:
    """The user edits the field."""
    world.change_spec(runtime=world.job.spec.runtime.model_copy(update={"spare_workers": count}))


def lists(world: World) -> tuple[str, str, str]:
    """Members, all slots, spares."""
    return world.attempt.members, world.status.slots, world.status.spares


def created(decision: Decision) -> list[int]:
    return [action.slot for action in decision.actions if isinstance(action, CreatePod)]


def told(world: World) -> tuple[str, str, str]:
    """The condition."""
    said = world.status.condition("SparesReady")
    assert said is not None
    return said.status, said.reason, said.message


# --- They come ---


def test_none_are_there_unless_they_are_wished() -> None:
    world = World.of(workers=2).run()
    assert (world.status.slots, world.status.spares, world.status.workers.spares) == ("0-1", "", None)
    assert world.status.condition("SparesReady") is None


def test_they_are_asked_for_once_all_workers_train() -> None:
    world = World.of(workers=2, runtime={"spareWorkers": 2})
    assert created(world.turn()) == [0, 1]
    world.start_pods()
    world.sync(0)
    assert created(world.turn()) == [] and world.status.spares == ""
    world.sync(1)
    decision = world.turn()
    assert lists(world) == ("0-1", "0-3", "2-3") and created(decision) == [2, 3]
    assert told(world)[:2] == ("False", contract.REASON_SPARES_COMING)


def test_what_is_shown_of_them() -> None:
    world = standing(spares=2)
    assert told(world) == ("True", contract.REASON_SPARES_READY, "2 of 2 spare workers are ready")
    assert world.status.workers.summary == "2/2" and world.status.reason == contract.REASON_RUNNING
    assert (world.attempt.workers, world.attempt.world_size) == (2, 2)


def test_a_spare_is_told_to_wait() -> None:
    world = standing()
    word, why = instruct(world.job, world.agents, 2, world.pod(2).uid)
    assert (word["do"], why) == (contract.DO_HOLD, "slot 2 is a spare, no member of attempt 1")


def test_a_member_is_never_a_spare_whatever_is_marked() -> None:
    world = World.of(workers=2).run()
    status = world.status.model_copy(update={"spares": "0-7"})
    assert (spare_slots(status), worker_slots(status)) == ((), (0, 1))


# --- One takes a place ---


def test_a_spare_takes_the_place_of_a_lost_worker_in_the_write_that_tells_of_it_and_its_successor_is_listed() -> None:
    world = standing()
    world.lose_pod(1)
    decision = world.turn()
    assert (world.attempt.number, world.attempt.state) == (2, "Running")
    assert lists(world) == ("0,2", "0,2-3", "3") and created(decision) == [3]
    assert world.attempt.from_spares == "2"
    assert [event.message for event in decision.events if event.reason == contract.REASON_SPARE_TAKEN] == [
        "digits-2 stood by as spare, and takes part from attempt 2 on"
    ]
    assert world.status.failures.counted == 1 and world.status.history[-1].from_spares is None
    bring_up(world)
    assert world.status.workers.spares == "1/1" and is_steady(world)
    world.tick(60).lose_pod(0)
    world.turn()
    assert lists(world) == ("2-3", "2-4", "4") and world.status.history[-1].from_spares == "2"


def test_the_oldest_one_is_taken() -> None:
    world = standing(spares=2)
    world.lose_pod(0)
    world.turn()
    assert lists(world) == ("1-2", "1-4", "3-4")


def test_two_lost_at_once_take_two() -> None:
    world = standing(workers=3, spares=2)
    world.lose_pod(0)
    world.lose_pod(2)
    world.turn()
    assert lists(world) == ("1,3-4", "1,3-6", "5-6") and world.attempt.from_spares == "3-4"


def test_of_two_lost_one_is_made_anew_and_the_next_attempt_waits_for_it() -> None:
    world = standing(workers=3)
    world.lose_pod(0)
    world.lose_pod(2)
    decision = world.turn()
    assert (world.attempt.state, world.status.slots, world.status.spares) == ("Ended", "1,3-4", "3")
    assert created(decision) == [4]
    world.start_pods()
    world.sync_all()
    world.turn()
    assert lists(world) == ("1,3-4", "1,3-5", "5")


@pytest.mark.parametrize(
    "trouble",
    [{"address": ""}, {"draining": True}, {"warming": True}, {"quiet": False}],
    ids=lambda fields: next(iter(fields)),
)
def test_one_that_is_not_ready_is_not_taken(trouble: dict[str, Any]) -> None:
    world = standing()
    world.sync(2, **trouble)
    world.turn()
    world.lose_pod(1)
    decision = world.turn()
    assert (world.attempt.number, world.attempt.state) == (1, "Ended")
    assert created(decision) == [3], "its successor is made as if there were no spare"
    world.sync(0, quiet=True)
    world.turn()
    assert world.attempt.state == "Ended"
    world.sync(2, address="10.0.0.2:7000", draining=False, warming=False, quiet=True)
    world.turn()
    assert lists(world) == ("0,2", "0,2-3", "3"), "it was ready before the other one: that is the spare now"
    assert world.status.next_slot == 4


def test_the_successor_that_is_up_first_is_taken() -> None:
    world = of()
    world.lose_pod(1)
    world.turn()
    assert (world.status.slots, world.status.spares) == ("0,3", ""), "what has no node is no help"
    world.start_pods()
    world.sync_all()
    world.turn()
    assert lists(world) == ("0,3", "0,3-4", "4")


def test_a_spare_that_nobody_has_heard_is_not_taken() -> None:
    world = of()
    world.turn()
    world.start_pods()
    world.lose_pod(1)
    world.turn()
    assert (world.attempt.state, world.status.slots, world.status.spares) == ("Ended", "0,2-3", "2")


def test_a_silent_spare_is_not_taken() -> None:
    world = standing()
    world.mute.add(2)
    world.tick(LISTEN_S)
    world.lose_pod(1)
    world.turn()
    assert world.attempt.state == "Ended" and "3" in world.status.slots


def test_a_member_that_lives_is_waited_for_though_a_spare_is_ready() -> None:
    world = standing(workers=3)
    world.sync(0, lost_peers=(2,), ranks=(raised(0, "DistBackendError", communication=True, at=world.now),))
    world.tick(5).sync(2)
    world.turn()
    world.sync(0, quiet=True)
    world.sync(1, quiet=True)
    world.turn()
    assert world.attempt.state == "Ended", "it may hold what was trained last"
    world.tick(1).sync(2, quiet=True)
    world.turn()
    assert lists(world) == ("0-2", "0-3", "3")


def test_a_rank_that_breaks_starts_again_in_place() -> None:
    world = standing()
    world.break_rank(1, raised(1, "ValueError"))
    world.turn()
    assert lists(world) == ("0-1", "0-2", "2") and world.attempt.number == 2


def test_a_worker_that_breaks_again_is_replaced_by_the_spare_away_from_its_node() -> None:
    world = standing(spares=2)
    world.set_pod(2, node="node-1")
    for _ in range(2):
        world.break_rank(1, raised(1, "RuntimeError", "CUDA error: an illegal memory access"))
        world.turn()
        world.sync_all()
        world.turn()
        world.tick(60).sync_all()
    assert lists(world) == ("0,3", "0,2-4", "2,4"), "digits-2 is on the node that is suspected"
    assert world.status.failures.avoid_nodes == ["node-1"]


def test_a_spare_on_a_node_where_other_jobs_suffered_is_taken_last() -> None:
    world = standing(spares=2)
    assert world.pod(2).node == "node-2"
    world.marks = tuple(Mark("node-2", world.now, job, contract.REASON_HANG) for job in ("one", "two"))
    world.lose_pod(1)
    world.turn()
    world.sync_all()
    world.turn()
    assert world.attempt.members == "0,3"


def test_a_back_off_holds_the_next_start_and_the_spare_takes_part_in_it() -> None:
    world = standing()
    world.lose_pod(1)
    world.turn()
    books = world.status.failures.model_copy(update={"early_in_row": 4})
    world.job = world.job.model_copy(update={"status": world.status.model_copy(update={"failures": books})})
    world.start_pods()
    world.sync_all()
    world.lose_pod(2)
    decision = world.turn()
    assert (world.attempt.state, world.status.slots, world.status.spares) == ("Ended", "0,3", "3")
    assert decision.actions == (), "nothing is made in its place"
    world.tick(60)
    world.sync(0, quiet=True)
    world.turn()
    assert lists(world) == ("0,3", "0,3-4", "4") and world.attempt.from_spares == "3"


# --- They cost nothing ---


def test_a_spare_that_dies_is_replaced_and_costs_nothing() -> None:
    world = standing(failure_policy={"maxFailures": 0})
    world.fail_pod(2)
    decision = world.turn()
    assert lists(world) == ("0-1", "0-1,3", "3") and created(decision) == [3]
    assert (world.attempt.number, world.status.failures.counted, world.status.failures.early_in_row) == (1, 0, 0)
    world.start_pods()
    world.fail_pod(3)
    world.turn()
    assert lists(world) == ("0-1", "0-1", ""), "the second one in a row waits"
    assert told(world)[:2] == ("False", contract.REASON_BACK_OFF) and "digits-3" in told(world)[2]
    assert world.status.timing.retry_at is None, "no worker waits for that"
    world.tick(1)
    assert created(world.turn()) == [4]


def test_one_that_stood_for_long_begins_the_count_anew() -> None:
    world = standing()
    for _ in range(3):
        world.tick(SETTLED_S)
        world.sync_all()
        world.set_pod(max(parse_slots(world.status.slots)), deleting=True)
        assert len(created(world.turn())) == 1
        world.finish_deletions()
        bring_up(world)


def test_a_spare_that_dies_between_attempts_is_no_failed_start() -> None:
    world = standing(workers=3, failure_policy={"maxFailures": 1})
    world.lose_pod(0)
    world.lose_pod(1)
    world.turn()
    assert world.attempt.state == "Ended" and world.status.spares == "3"
    world.fail_pod(3)
    world.turn()
    assert world.status.failures.counted == 1 and not world.status.finished


def test_a_notice_for_its_node_replaces_the_spare_only() -> None:
    world = standing()
    world.set_pod(2, notice="node-2 is cordoned")
    decision = world.turn()
    assert lists(world) == ("0-1", "0-1,3", "3") and world.attempt.number == 1
    assert DeletePod("digits-2", world.pod(2).uid) in decision.actions
    assert world.status.failures.preemptions == 0 and world.status.boundary is None


def test_a_lost_spare_is_given_up() -> None:
    world = standing()
    world.mute.add(2)
    world.set_pod(2, doubt="its node node-2 is NotReady")
    world.tick(LISTEN_S)
    world.turn()
    assert lists(world) == ("0-1", "0-1,3", "3") and world.status.failures.early_in_row == 0


# --- They hold nobody up ---


def test_one_that_finds_no_node_is_given_back_and_tried_again() -> None:
    world = of()
    world.turn()
    world.schedule()
    world.turn()
    assert told(world)[:2] == ("False", contract.REASON_UNSCHEDULABLE)
    assert world.status.phase == "Running" and world.status.reason == contract.REASON_RUNNING
    world.tick(GANG_WAIT_S)
    decision = world.turn()
    assert lists(world) == ("0-1", "0-1", "") and any(isinstance(a, DeletePod) for a in decision.actions)
    status, reason, message = told(world)
    assert (status, reason) == ("False", contract.REASON_BACK_OFF) and "Insufficient cpu" in message
    assert (world.attempt.number, world.status.failures.counted, world.status.timing.gang_retry_at) == (1, 0, None)
    world.finish_deletions()
    assert is_steady(world)
    world.tick(30)
    world.sync_all()
    assert created(world.turn()) == [3]
    world.start_pods()
    world.sync_all()
    world.tick(30)
    world.turn()
    assert world.status.workers.spares == "1/1"


def test_one_that_is_refused_is_tried_again_later() -> None:
    world = of()
    world.turn()
    world.lose_pod(2)
    world.refusals = ('pods "digits-2" is forbidden: exceeded quota: gpus',)
    world.turn()
    assert lists(world) == ("0-1", "0-1", "") and "exceeded quota" in told(world)[2]
    assert world.status.phase == "Running" and world.status.reason == contract.REASON_RUNNING
    world.refusals = ()
    assert is_steady(world)


def test_while_a_worker_has_no_node_no_spare_asks_for_one() -> None:
    world = standing(spares=2)
    world.set_pod(3, deleting=True)
    world.turn()
    world.finish_deletions()
    assert lists(world) == ("0-1", "0-2,4", "2,4")
    world.schedule()
    world.lose_pod(0)
    world.lose_pod(1)
    decision = world.turn()
    assert (world.attempt.state, world.status.slots, world.status.spares) == ("Ended", "2,5", "2")
    assert created(decision) == [5]


def test_two_spares_of_which_one_finds_a_node_are_no_start_that_is_given_back() -> None:
    world = of(spares=2)
    world.turn()
    world.schedule(2)
    world.tick(RESTART_WAIT_S)
    world.sync_all()
    world.turn()
    assert world.attempt.number == 1 and world.status.timing.gang_retry_at is None
    assert "2" in world.status.spares and world.status.slots.startswith("0-2")


def test_an_image_that_a_spare_cannot_pull_is_told_and_holds_nobody_up() -> None:
    world = of()
    world.turn()
    world.schedule(2)
    world.set_pod(2, reason="ImagePullBackOff", message="no such image")
    world.turn()
    assert told(world)[:2] == ("False", contract.REASON_IMAGE_PULL)
    before = world.status
    world.set_pod(2, reason="ErrImagePull", message="again")
    assert world.turn().status == before
    world.lose_pod(1)
    world.turn()
    world.start_pods()
    world.set_pod(2, phase=world.pod(0).phase.PENDING, ready=False, reason="ImagePullBackOff")
    world.sync_all()
    world.turn()
    assert lists(world)[0] == "0,3", "the worker that was made anew does not wait for it"


# --- Edits ---


def test_an_edit_adds_and_takes_away_without_a_restart() -> None:
    world = World.of(workers=2).run().tick(60)
    set_spares(world, 2)
    assert created(world.turn()) == [2, 3]
    bring_up(world)
    assert (world.attempt.number, world.status.workers.spares) == (1, "2/2")
    set_spares(world, 1)
    decision = world.turn()
    assert lists(world) == ("0-1", "0-2", "2")
    assert [a.name for a in decision.actions if isinstance(a, DeletePod)] == ["digits-3"]
    set_spares(world, 0)
    world.turn()
    assert lists(world) == ("0-1", "0-1", "") and world.status.workers.spares is None
    assert world.attempt.number == 1 and world.status.condition("SparesReady") is None


def test_fewer_are_wished_and_one_that_is_not_ready_goes_first() -> None:
    world = standing(spares=2)
    world.sync(2, warming=True)
    set_spares(world, 1)
    world.turn()
    assert world.status.spares == "2", "synced is what counts; both are"
    set_spares(world, 2)
    world.turn()
    world.start_pods()
    set_spares(world, 1)
    world.turn()
    assert world.status.spares == "2"


def test_an_edit_ends_the_pause_before_the_next_try() -> None:
    world = standing()
    for slot in (2, 3, 4):
        if slot in parse_slots(world.status.slots):
            world.fail_pod(slot)
        world.turn()
        world.start_pods()
    assert world.status.timing.spare_retry_at is not None
    set_spares(world, 2)
    assert len(created(world.turn())) == 2


def test_the_field_is_in_no_pods_make() -> None:
    plain, spare = make_spec(), make_spec(runtime={"spareWorkers": 3})
    assert make.of(plain) == make.of(spare)
    assert make.of(make_spec(runtime={"prefork": "Never"})) == make.of(
        make_spec(runtime={"prefork": "Never", "spareWorkers": 1})
    )


def test_an_edit_of_what_pods_are_made_of_makes_the_spare_anew_and_leaves_what_runs() -> None:
    world = standing()
    world.change_spec(checkpoint=world.job.spec.checkpoint.model_copy(update={"keep": 7}))
    decision = world.turn()
    assert lists(world) == ("0-1", "0-1,3", "3") and created(decision) == [3] and world.attempt.number == 1
    bring_up(world)
    world.break_rank(1, raised(1, "ValueError"))
    world.turn()
    assert (world.attempt.state, world.status.slots) == ("Ended", "3-4") or world.attempt.number == 2
    world.run()
    assert {world.pod(slot).make for slot in parse_slots(world.attempt.members)} == {make.of_job(world.job)}
    assert 3 in parse_slots(world.attempt.members)


# --- The size of the job ---


def test_more_workers_are_wished_and_the_spare_is_the_first_of_them() -> None:
    world = standing()
    world.change_spec(workers=3)
    world.turn()
    assert (world.attempt.number, world.attempt.state) == (1, "Running"), "at the next boundary"
    assert (world.status.slots, world.status.spares) == ("0-2", "")
    world.run()
    assert (world.attempt.members, world.attempt.cause) == ("0-2", contract.REASON_SCALED)
    assert world.status.spares == "3"


def test_fewer_workers_are_wished_and_the_spare_stays_one() -> None:
    world = standing(workers=3)
    world.change_spec(workers=2)
    world.turn()
    world.run()
    assert lists(world) == ("0-1", "0-1,3", "3")


ELASTIC = {"minWorkers": 1, "maxWorkers": 3, "shrinkAfterSeconds": 30}


def test_a_spare_is_used_before_an_elastic_job_shrinks() -> None:
    world = standing(workers=3, elastic=ELASTIC)
    world.lose_pod(2)
    world.turn()
    assert (world.attempt.workers, world.attempt.members) == (3, "0-1,3")


def test_an_elastic_job_that_trains_with_fewer_has_no_spares_and_grows_with_all_that_are_up() -> None:
    world = standing(workers=3, elastic=ELASTIC)
    world.lose_pod(0)
    world.lose_pod(2)
    world.turn()
    world.tick(31)
    world.sync_all()
    world.turn()
    assert world.attempt.workers == 2 and world.attempt.members == "1,3"
    assert world.status.spares == "" and told(world)[1] == contract.REASON_SPARES_COMING
    world.run()
    world.tick(61)
    world.sync_all()
    world.turn()
    world.run()
    assert (world.attempt.workers, len(parse_slots(world.status.spares))) == (3, 1)


def test_spares_do_not_let_an_elastic_job_grow_beyond_its_wish() -> None:
    world = standing(workers=2, spares=2, elastic=ELASTIC)
    world.tick(600)
    world.sync_all()
    assert is_steady(world) and world.attempt.workers == 2 and world.status.growth is None


# --- At rest ---


def test_a_suspended_job_has_none_and_they_come_again() -> None:
    world = standing()
    world.change_spec(suspend=True)
    world.turn()
    assert (world.status.slots, world.status.spares, world.status.workers.spares) == ("", "", "0/1")
    assert told(world)[:2] == ("False", contract.REASON_SUSPENDED)
    world.pods = {}
    world.agents = {}
    assert is_steady(world)
    world.change_spec(suspend=False)
    world.run()
    assert world.status.spares != "" and world.attempt.workers == 2


@pytest.mark.parametrize("well", [True, False])
def test_a_job_that_is_over_has_none(well: bool) -> None:
    world = standing(failure_policy={"maxFailures": 0})
    if well:
        world.sync(0, completed=True, quiet=True)
    else:
        world.break_rank(1, raised(1, "ValueError"))
    world.turn()
    assert world.status.finished and (world.status.slots, world.status.spares) == ("0-1", "")
    assert world.status.workers.spares is None
    word, _ = instruct(world.job, world.agents, 2, world.pod(2).uid)
    assert word["do"] == contract.DO_EXIT
    world.tick(31)
    assert DeletePod("digits-2", world.pod(2).uid) in world.turn().actions


def test_a_spare_looks_whether_a_job_whose_workers_all_vanished_is_complete() -> None:
    world = standing(checkpoint={"storage": "/checkpoints"}, failure_policy={"maxFailures": 0})
    world.report(1)
    world.turn()
    world.lose_pod(0)
    world.lose_pod(1)
    decision = world.turn()
    assert world.status.verdict is not None and created(decision) == []
    assert instruct(world.job, world.agents, 2, world.pod(2).uid)[0]["do"] == contract.DO_CHECK
    world.sync_all()
    world.turn()
    assert world.status.finished and world.status.holds("Failed")


# --- A new leader, other modes ---


def test_a_new_leader_that_has_heard_nobody_writes_nothing() -> None:
    world = standing()
    world.agents = {}
    world.listening_since = world.now
    assert is_steady(world)
    world.tick(5)
    for slot in (0, 1, 2):
        world.sync(slot, attempt=1 if slot < 2 else 0, quiet=slot == 2, joined=slot < 2)
    assert is_steady(world)


def test_without_agents_there_are_no_spares() -> None:
    spec = make_spec(runtime={"agent": "Disabled", "spareWorkers": 1})
    (problem,) = validate_spec(spec, "digits")
    assert problem.field == "spec.runtime.spareWorkers" and "agent: Disabled" in problem.message
    world = World.of(workers=2, runtime={"agent": "Disabled", "spareWorkers": 1})
    world.turn()
    assert world.status.slots == "" and world.status.reason == contract.REASON_INVALID_SPEC
    assert world.status.condition("SparesReady") is None


def test_a_job_that_is_to_do_without_agents_loses_its_spares() -> None:
    world = standing()
    world.change_spec(runtime=world.job.spec.runtime.model_copy(update={"agent": "Disabled", "spare_workers": 0}))
    world.turn()
    assert lists(world) == ("0-1", "0-1", "")


def test_a_gang_that_is_given_back_takes_its_spares_with_it() -> None:
    world = standing(workers=3, checkpoint={"storage": "/checkpoints"})
    for slot in (0, 1):
        world.lose_pod(slot)
    world.sync(3, warming=True)
    world.turn()
    assert world.status.slots == "2-5" and world.status.spares == "3"
    for s in (1, RESTART_WAIT_S):
        world.schedule()
        world.tick(s)
        world.sync(2, quiet=True)
        world.turn()
    assert (world.status.slots, world.status.spares) == ("", "")
    assert world.status.timing.gang_retry_at is not None
    world.pods, world.agents = {}, {}
    world.tick(600)
    world.run()
    assert world.status.spares != ""


def test_the_pause_is_bounded_however_wrong_a_clock_was() -> None:
    world = standing()
    timing = world.status.timing.model_copy(update={"spare_retry_at": world.now + seconds(10**6)})
    world.job = world.job.model_copy(update={"status": world.status.model_copy(update={"timing": timing})})
    world.fail_pod(2)
    world.tick(500)
    world.sync_all()
    world.pods["digits-2"] = replace(world.pod(2), deleting=True)
    world.turn()
    world.tick(500)
    world.sync_all()
    world.turn()
    assert world.status.spares != ""
