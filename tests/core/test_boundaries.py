"""A planned change waits for a checkpoint: who asks for it, what ends the wait, what takes the wish back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from support.core import World, is_steady, raised, seconds
from trainjob_api import contract
from trainjob_operator.core import boundaries
from trainjob_operator.core.instruct import instruct
from trainjob_operator.core.model import PodPhase
from trainjob_operator.core.moments import after
from trainjob_operator.core.turn import LISTEN_S

WAIT_S = 60


def training(workers: int = 2, **fields: object) -> World:
    """A job that has saved a checkpoint."""
    world = World.of(workers=workers, boundary_timeout_seconds=WAIT_S, **fields).run().tick(100)
    world.report(7)
    world.sync(0, latest={"id": "7", "time": world.now.timestamp(), "bytes": 1})
    world.turn()
    return world


def wish(world: World, what: str) -> str:
    """Somebody wishes a change; the cause by which it is known."""
    if what == "scale":
        world.change_spec(workers=1)
        return contract.REASON_SCALED
    if what == "suspend":
        world.change_spec(suspend=True)
        return contract.REASON_SUSPENDED
    world.ask_restart("token")
    return contract.REASON_RESTART_REQUESTED


def reach(world: World) -> None:
    """Rank 0's agent says that its ranks wait behind a checkpoint."""
    assert world.status.boundary is not None
    world.sync(0, boundary=boundaries.token(world.status.boundary))


@pytest.mark.parametrize("what", ["scale", "suspend", "restart"])
def test_a_planned_change_waits_for_the_boundary_and_ends_the_attempt_there(what: str) -> None:
    world = training()
    cause = wish(world, what)
    decision = world.turn()
    assert world.attempt.state == "Running" and decision.requeue_after is not None
    assert decision.requeue_after <= seconds(WAIT_S)
    boundary = world.status.boundary
    assert boundary is not None and (boundary.cause, boundary.since) == (cause, world.now)
    said = world.status.condition("Progressing")
    until = f"until {after(world.now, WAIT_S):%H:%M:%S} UTC"
    assert said is not None and f"{cause} waits for the next report() with a checkpoint, {until}" in said.message
    assert is_steady(world.tick(WAIT_S - 1))
    reach(world)
    world.turn()
    assert world.status.history[-1].end_cause == cause and world.status.boundary is None
    assert world.attempt.number == (1 if what == "suspend" else 2)
    assert (world.status.failures.counted, world.status.failures.preemptions) == (0, 0)


@pytest.mark.parametrize("what", ["scale", "suspend", "restart"])
def test_without_a_checkpoint_it_waits_no_longer_than_it_may(what: str) -> None:
    world = training()
    wish(world, what)
    world.turn()
    world.tick(WAIT_S).turn()
    assert len(world.status.history) == 1 and world.status.boundary is None


def test_only_rank_0s_agent_is_asked() -> None:
    world = training()
    wish(world, "restart")
    world.turn()
    assert world.status.boundary is not None
    words = [instruct(world.job, world.agents, slot, world.agents[slot].pod_uid)[0] for slot in (0, 1)]
    assert [word.get("boundary") for word in words] == [boundaries.token(world.status.boundary), None]


def test_another_wishs_boundary_is_none_of_this_one() -> None:
    world = training()
    wish(world, "restart")
    world.turn()
    world.sync(0, boundary="an older wish")
    world.turn()
    assert world.attempt.number == 1


def test_an_edit_that_changes_its_mind_takes_the_wish_back() -> None:
    world = training()
    wish(world, "scale")
    world.turn()
    world.change_spec(workers=2)
    world.turn()
    assert world.status.boundary is None and world.attempt.number == 1
    assert "boundary" not in instruct(world.job, world.agents, 0, world.agents[0].pod_uid)[0]


def test_a_wish_that_follows_another_has_no_new_wait() -> None:
    world = training()
    wish(world, "scale")
    world.turn()
    world.tick(40)
    world.change_spec(workers=2, suspend=True)
    world.turn()
    assert world.status.boundary is not None and world.status.boundary.cause == contract.REASON_SUSPENDED
    world.tick(WAIT_S - 40).turn()
    assert world.attempt.end_cause == contract.REASON_SUSPENDED


def test_what_breaks_meanwhile_ends_the_attempt_and_is_counted_once() -> None:
    world = training(workers=3)
    world.change_spec(workers=2)
    world.turn()
    world.break_rank(1, raised(1, "ValueError"))
    world.turn()
    assert world.status.boundary is None and world.status.failures.counted == 1
    assert world.status.history[-1].end_cause == contract.REASON_USER_ERROR
    assert (world.attempt.number, world.attempt.workers) == (2, 2), "the new size takes effect with the restart"


@pytest.mark.parametrize("why", ["no report", "no wait", "cancelled", "without agents"])
def test_what_has_no_boundary_ends_at_once(why: str) -> None:
    if why == "without agents":
        world = World.of(workers=2, runtime={"agent": "Disabled"})
        world.settle()
        world.start_pods()
        world.settle()
    elif why == "no wait":
        world = training()
        world.change_spec(boundary_timeout_seconds=0)
    else:
        world = World.of(workers=2).run().tick(100) if why == "no report" else training()
    if why == "cancelled":
        world.annotate({contract.ANNOTATION_CANCELLED: "now"})
    world.change_spec(suspend=True)
    world.turn()
    assert world.attempt.end_cause == contract.REASON_SUSPENDED


def test_growth_waits_for_a_boundary_too() -> None:
    world = World.of(workers=2, elastic={"min_workers": 1, "max_workers": 2, "grow_after_seconds": 0})
    world.turn()
    world.schedule(0)
    world.set_pod(0, phase=world.pod(0).phase.RUNNING, ready=True)
    world.sync_all()
    world.turn()
    world.sync_all()
    world.turn()
    world.tick(10).report(3)
    world.sync(0, latest={"id": "3", "time": world.now.timestamp(), "bytes": 1})
    world.turn()
    world.start_pods()
    world.sync_all()
    world.turn()
    assert world.attempt.number == 1 and world.status.boundary is not None
    assert world.status.boundary.cause == contract.REASON_RESIZED
    reach(world)
    world.turn()
    assert (world.attempt.number, world.attempt.workers) == (2, 2)


def test_the_wait_for_a_boundary_puts_no_deadline_off() -> None:
    world = training(active_deadline_seconds=150)
    wish(world, "restart")
    world.turn()
    world.tick(49).turn()
    assert world.status.boundary is not None and not world.status.finished
    world.tick(1).turn()
    failed = world.status.condition("Failed")
    assert failed is not None and (failed.status, failed.reason) == ("True", contract.REASON_DEADLINE)


GRACE_S = 30.0


def goes_away(world: World, slot: int) -> None:
    """Its pod is deleted, its agent hears of that and says so."""
    world.set_pod(slot, deleting=True, disrupted=True, grace_s=GRACE_S)
    ranks = cast(Any, ({"rank": slot, "local_rank": 0, "pid": 1, "state": contract.RANK_RUNNING},))
    for each in (0, 1):
        world.sync(each, draining=each == slot, ranks=ranks)
    world.turn()


@pytest.mark.parametrize("before", [None, "scale", "suspend", "restart"])
def test_a_worker_that_goes_away_is_told_how_long_it_has_from_now_on(before: str | None) -> None:
    """Also where a planned change has waited for a checkpoint for a while."""
    world = training()
    if before is not None:
        wish(world, before)
        world.turn()
        world.tick(WAIT_S / 2).turn()
    goes_away(world, 1)
    word, _ = instruct(world.job, world.agents, 1, world.agents[1].pod_uid)
    assert (word["gone_s"], word["drain_s"]) == (GRACE_S, GRACE_S - contract.DRAIN_RESERVE_S)
    assert is_steady(world.tick(1))
    assert instruct(world.job, world.agents, 1, world.agents[1].pod_uid)[0] == word
    assert "drain_s" not in instruct(world.job, world.agents, 0, world.agents[0].pod_uid)[0]
    reach(world)
    world.turn()
    assert [entry.end_cause for entry in world.status.history] == [contract.REASON_PREEMPTED]


# --- What the next attempt waits for ----------------------------------------------------------------------------------


def shrunk() -> World:
    """Four workers have stored all but the checkpoint of the boundary, at which three of them are removed."""
    world = training(4, checkpoint={"storage": "/checkpoints"})
    for slot in range(4):
        world.sync(slot, uploads=0)
    world.tick(1)
    world.change_spec(workers=1)
    world.turn()
    reach(world)
    world.turn()
    assert world.attempt.state == "Ended" and world.status.slots == "0"
    world.tick(1).sync(0, quiet=True)
    return world


def test_after_a_boundary_removed_workers_are_heard_before_the_next_attempt_begins() -> None:
    """What they said before it is older than the checkpoint of which they have a part."""
    world = shrunk()
    assert "the last word of digits-1, digits-2, digits-3" in world.turn().why
    world.sync(1)
    world.sync(2, uploads=1)
    world.sync(3)
    assert "1 uploads" in world.turn().why
    world.sync(2, uploads=0)
    world.turn()
    assert (world.attempt.number, world.attempt.members) == (2, "0")


def test_removed_workers_that_say_nothing_are_not_waited_for_for_ever() -> None:
    world = shrunk()
    world.turn()
    assert world.attempt.state == "Ended"
    world.tick(30).sync(0)
    world.turn()
    assert (world.attempt.number, world.attempt.state) == (2, "Running")


def test_removed_workers_whose_containers_have_ended_are_not_waited_for() -> None:
    world = shrunk()
    for slot in (1, 2, 3):
        world.set_pod(slot, phase=PodPhase.SUCCEEDED)
    world.turn()
    assert (world.attempt.number, world.attempt.state) == (2, "Running")


def test_without_storage_nobody_is_waited_for() -> None:
    world = training(4)
    world.tick(1)
    world.change_spec(workers=1)
    world.turn()
    reach(world)
    world.turn()
    assert (world.attempt.number, world.attempt.state) == (2, "Running")


# --- A new leader -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["scale", "suspend", "restart"])
def test_a_new_leader_hears_the_members_before_it_ends_an_attempt_by_plan(what: str) -> None:
    """The one before it died before it could write that the ranks run, or how far they came."""
    world = training()
    running = world.attempt.model_copy(update={"running_at": None})
    progress = world.status.progress.model_copy(update={"position": 0})
    status = world.status.model_copy(update={"attempt": running, "progress": progress})
    world.job = world.job.model_copy(update={"status": status})
    heard, world.agents, world.listening_since = world.agents, {}, world.now
    cause = wish(world, what)
    decision = world.turn()
    assert world.attempt.state == "Running"
    assert f"{cause} waits for the word of 2 workers: this leader is new to them" in decision.why
    assert decision.requeue_after is not None and decision.requeue_after <= seconds(LISTEN_S)
    world.tick(1)
    world.agents = {slot: replace(view, heard_at=world.now) for slot, view in heard.items()}
    world.turn()
    assert world.attempt.state == "Running" and world.status.boundary is not None
    assert world.status.boundary.cause == cause
    reach(world)
    world.turn()
    assert world.status.history[-1].end_cause == cause


def test_a_new_leader_that_hears_nobody_does_not_wait_for_ever() -> None:
    world = training()
    running = world.attempt.model_copy(update={"running_at": None})
    world.job = world.job.model_copy(update={"status": world.status.model_copy(update={"attempt": running})})
    world.agents, world.listening_since = {}, world.now
    world.ask_restart("token")
    world.turn()
    assert world.attempt.state == "Running"
    world.tick(LISTEN_S).turn()
    assert world.status.history[-1].end_cause == contract.REASON_RESTART_REQUESTED
