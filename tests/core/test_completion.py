"""A job that is complete is never declared failed, whatever else happens in the same moment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from support.core import World, ended
from trainjob_api import contract
from trainjob_operator.core.groups.agents import COMPLETE_WORD_S
from trainjob_operator.core.turn import LISTEN_S

NO_BUDGET = {"failure_policy": {"maxFailures": 0}}
STORED = {"checkpoint": {"storage": "/checkpoints"}}


def trained(**fields: Any) -> World:
    world = World.of(workers=3, **(NO_BUDGET | fields)).run().tick(60)
    world.sync_all()
    return world


def new_leader(world: World) -> World:
    """The leading operator changes: nobody has been heard yet."""
    world.agents.clear()
    world.listening_since = world.now
    return world


def done(world: World, slot: int) -> None:
    world.sync(slot, attempt=1, quiet=True, joined=True, completed=True, run=1)


# --- While completion is being confirmed ---


def test_a_lost_pod_beside_the_word_of_completion() -> None:
    world = trained()
    done(world, 1)
    world.lose_pod(2)
    decision = world.turn()
    assert not world.status.finished and world.status.failures.counted == 0 and world.attempt.state == "Running"
    assert "rank 0's agent" in decision.why and decision.requeue_after is not None
    done(world, 0)
    assert world.turn().status.holds("Complete") and world.status.failures.counted == 0


def test_a_deadline_beside_the_word_of_completion() -> None:
    world = trained(active_deadline_seconds=100)
    world.tick(100)
    done(world, 1)
    world.turn()
    assert not world.status.finished
    done(world, 0)
    assert world.turn().status.holds("Complete")


def test_the_wait_for_rank_0_ends() -> None:
    world = trained()
    world.mute = {0}
    done(world, 1)
    world.lose_pod(2)
    world.turn()
    assert world.tick(COMPLETE_WORD_S).turn().status.holds("Complete")


def test_an_edit_is_not_answered_while_nothing_but_the_last_word_is_waited_for() -> None:
    """Nothing of the spec is looked at then, and `observedGeneration` says so."""
    world = trained()
    before = world.status.observed_generation
    done(world, 1)
    world.change_spec(runtime=world.job.spec.runtime.model_copy(update={"spare_workers": 1}))
    world.turn()
    assert world.status.observed_generation == before != world.job.metadata.generation
    done(world, 0)
    world.turn()
    assert world.status.holds("Complete") and world.status.observed_generation == world.job.metadata.generation


# --- Before a new leader has heard the members ---


def test_a_new_leader_hears_the_living_before_it_fails_the_job_for_a_lost_pod() -> None:
    world = trained()
    world.lose_pod(2)
    new_leader(world)
    decision = world.turn()
    assert not world.status.finished and world.status.failures.counted == 0 and world.attempt.state == "Running"
    assert "digits-2 is gone" in decision.why and "digits-0" in decision.why
    assert decision.status.slots == "0-2" and not decision.actions, "nothing is put in its place before that"
    world.tick(1)
    done(world, 0)
    done(world, 1)
    assert world.turn().status.holds("Complete")


def test_a_new_leader_hears_the_living_before_a_deadline_fails_the_job() -> None:
    world = trained(active_deadline_seconds=100)
    new_leader(world.tick(1000))
    world.turn()
    assert not world.status.finished
    done(world, 0)
    assert world.turn().status.holds("Complete")


def test_once_all_have_been_heard_the_verdict_falls_at_once() -> None:
    world = trained()
    world.lose_pod(2)
    new_leader(world).turn()
    world.tick(1)
    for slot in (0, 1):
        world.sync(slot, attempt=1, quiet=False, joined=True)
    world.turn()
    assert world.status.holds("Failed") and world.status.failures.counted == 1


def test_who_is_never_heard_is_not_waited_for_longer() -> None:
    world = trained()
    world.lose_pod(2)
    new_leader(world).turn()
    world.mute = {0, 1}
    assert world.turn().requeue_after is not None
    world.tick(LISTEN_S).turn()
    assert world.status.holds("Failed")


def test_within_the_budget_recovery_does_not_wait_for_anybody() -> None:
    world = trained(failure_policy={"maxFailures": 3})
    world.lose_pod(2)
    new_leader(world).turn()
    assert world.attempt.state == "Ended" and world.status.slots == "0-1,3"


# --- The pending verdict ---


def vanished() -> World:
    world = trained(**STORED)
    for slot in (0, 1, 2):
        world.lose_pod(slot)
    world.turn()
    assert world.status.verdict is not None
    return world


def test_rank_0_is_lost_and_the_others_ranks_have_ended_well() -> None:
    """They do not know whether rank 0's agent has written the end record."""
    world = trained(**STORED)
    for slot in (1, 2):
        world.sync(slot, quiet=True, ranks=(ended(slot, contract.END_OK, exit_code=0),))
    world.lose_pod(0)
    world.turn()
    assert not world.status.finished and world.status.verdict is not None


@pytest.mark.parametrize("quiet", [True, False])
def test_a_living_member_whose_ranks_did_not_end_well_knows_that_training_was_not_over(quiet: bool) -> None:
    world = trained(**STORED)
    ranks = (ended(1, contract.END_STOPPED, signal=9),) if quiet else ()
    world.sync(1, quiet=quiet, ranks=ranks)
    world.agents[2] = replace(world.agents[2], quiet=True, ranks=(ended(2, contract.END_OK, exit_code=0),))
    world.lose_pod(0)
    world.turn()
    assert world.status.holds("Failed")


def test_what_was_over_before_it_was_seen_running_still_tells_its_run() -> None:
    world = World.of(workers=2, **STORED)
    while world.turn().status.attempt is None:
        world.start_pods()
        world.sync_all()
    assert world.attempt.running_at is None and world.attempt.run is None
    for slot in (0, 1):
        world.sync(slot, attempt=1, quiet=True, joined=True, completed=True, run=2, resumed_from="1-1-4")
    assert world.turn().status.holds("Complete")
    assert (world.attempt.run, world.attempt.resumed_from, world.status.history[-1].resumed_from) == (
        2,
        "1-1-4",
        "1-1-4",
    )
