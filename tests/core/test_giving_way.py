"""Elastic jobs make room for one that cannot start, and take it back: what status says, and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from support.core import T0, World, is_steady, seconds
from trainjob_api import contract
from trainjob_operator.core.boundaries import token
from trainjob_operator.core.model import PodPhase, Standing
from trainjob_operator.core.size.gang import GANG_WAIT_S
from trainjob_operator.core.size.giving_way import IN_VAIN_S, LACKS_AFTER_S, STARTS_WITHIN_S

SIZES = {"min_workers": 2, "max_workers": 8, "grow_after_seconds": 60}
STORED = {"storage": "s3://bucket/runs"}
OTHER = Standing(name="other", uid="other", created_at=T0, lacks=2, content=False)


def trains(workers: int = 4, **fields: Any) -> World:
    """An elastic job that has reported, and saves."""
    world = World.of(**{"workers": workers, "elastic": SIZES, "checkpoint": STORED, **fields}).run()
    world.report(1)
    world.settle()
    return world


def at_a_boundary(world: World) -> None:
    """Its ranks wait behind a checkpoint that they have just saved."""
    wish = world.status.boundary
    assert wish is not None, world.turn().why
    world.sync(int(world.attempt.members.split("-")[0]), boundary=token(wish))


def gives(world: World, other: Standing = OTHER) -> World:
    world.neighbours = (other,)
    world.turn()
    at_a_boundary(world)
    world.turn()
    return world


def test_workers_beyond_the_least_size_go_at_the_next_boundary() -> None:
    world = trains()
    world.neighbours = (OTHER,)
    decision = world.turn()
    assert world.status.boundary is not None and world.status.boundary.cause == contract.REASON_GAVE_WAY
    assert (world.attempt.state, world.status.gave_way) == ("Running", None), "until then nothing is given"
    at_a_boundary(world)
    decision = world.turn()
    known = world.status.gave_way
    assert known is not None and (known.to, known.workers, known.freed) == ("other", 2, 2)
    assert world.status.history[-1].end_cause == contract.REASON_GAVE_WAY
    assert world.status.slots == "0-1"
    assert contract.REASON_GAVE_WAY in [event.reason for event in decision.events]
    assert (world.status.failures.counted, world.status.failures.preemptions) == (0, 0)
    assert world.attempt.state == "Ended" and "last word of digits-2, digits-3" in decision.why
    world.tick(1).sync_all()
    world.settle()
    assert (world.attempt.state, world.attempt.workers) == ("Running", 2)
    below = world.status.condition("BelowTargetWorkers")
    assert below is not None and below.status == "True" and "makes room for TrainJob other" in below.message
    world.tick(31).settle()
    world.finish_deletions()
    world.settle()
    assert is_steady(world.tick(20))


def test_an_allowed_size_is_kept_to() -> None:
    world = trains(8, elastic={**SIZES, "allowed_sizes": [2, 4, 8]})
    gives(world, replace(OTHER, lacks=1))
    assert world.status.gave_way is not None and world.status.gave_way.workers == 4


@pytest.mark.parametrize(
    "fields",
    [{"elastic": None}, {"checkpoint": {}}, {"elastic": {**SIZES, "min_workers": 4}}],
    ids=["one size", "no storage", "no worker beyond the least"],
)
def test_who_cannot_do_without_gives_nothing(fields: dict[str, Any]) -> None:
    world = trains(**fields)
    world.neighbours = (OTHER,)
    world.settle()
    assert world.status.boundary is None and world.status.gave_way is None


def test_a_wish_whose_asker_has_found_room_is_taken_back() -> None:
    world = trains()
    world.neighbours = (OTHER,)
    world.turn()
    world.neighbours = (replace(OTHER, lacks=0, content=True),)
    world.turn()
    assert (world.status.boundary, world.attempt.state, world.attempt.number) == (None, "Running", 1)


def test_once_the_other_trains_more_workers_are_made_again_and_join_it() -> None:
    world = gives(trains()).tick(1)
    world.sync_all()
    world.settle()
    world.neighbours = (replace(OTHER, lacks=0, content=True),)
    world.settle()
    assert world.status.gave_way is None and world.status.slots.startswith("0-1,")
    world.start_pods()
    world.sync_all()
    world.report(9)
    world.turn()
    world.tick(61).turn()
    at_a_boundary(world)
    world.turn()
    world.sync_all()
    world.settle()
    assert (world.attempt.workers, world.attempt.cause) == (4, contract.REASON_RESIZED)


def test_an_operator_that_knows_of_nobody_yet_takes_nothing_back_before_its_time() -> None:
    world = gives(trains())
    world.sync_all()
    world.neighbours = ()
    world.settle()
    world.tick(STARTS_WITHIN_S - 10).settle()
    assert world.status.gave_way is not None
    world.tick(11).settle()
    assert world.status.gave_way is None and not world.status.gave_way_in_vain


def test_room_that_helped_nobody_is_taken_back_and_not_given_again_for_an_hour() -> None:
    world = gives(trains()).tick(1)
    world.sync_all()
    world.settle()
    decision = world.tick(STARTS_WITHIN_S).turn()
    assert world.status.gave_way is None and list(world.status.gave_way_in_vain) == ["other"]
    assert any("did not start" in event.message for event in decision.events)
    assert decision.standing is not None and decision.standing.in_vain == {"other"}
    world.start_pods()
    world.sync_all()
    world.report(9)
    world.settle()
    world.tick(61).turn()
    at_a_boundary(world)
    world.settle()
    assert world.attempt.workers == 4
    world.sync_all()
    world.settle()
    assert world.status.boundary is None
    world.tick(IN_VAIN_S)
    world.report(12)
    world.turn()
    assert world.status.boundary is not None


def test_further_workers_that_find_no_room_are_not_waited_for_meanwhile() -> None:
    world = World.of(workers=4, elastic=SIZES, checkpoint=STORED)
    world.turn()
    world.schedule(0, 1)
    for slot in (0, 1):
        world.set_pod(slot, phase=PodPhase.RUNNING, ready=True)
    world.sync_all()
    world.tick(6).turn()
    world.sync_all()
    world.report(1)
    world.settle()
    assert (world.attempt.workers, world.status.slots) == (2, "0-3")
    world.neighbours = (OTHER, Standing(name="c", uid="c", created_at=T0, above=2))
    world.settle()
    assert (world.attempt.state, world.attempt.number, world.status.slots) == ("Running", 1, "0-1")
    assert world.status.gave_way is not None and world.status.gave_way.freed == 0


@pytest.mark.parametrize("edit", [{"elastic": None, "workers": 2}, {"suspend": True}], ids=["one size", "suspended"])
def test_an_edit_ends_it(edit: dict[str, Any]) -> None:
    world = gives(trains())
    world.sync_all()
    world.settle()
    world.change_spec(**edit)
    world.turn()
    assert world.status.gave_way is None


# --- How a job stands -------------------------------------------------------------------------------------------------


def standing(world: World) -> Standing:
    found = world.turn().standing
    assert found is not None
    return found


def test_a_start_lacks_what_found_no_room_for_a_while() -> None:
    world = World.of(workers=3)
    world.turn()
    world.schedule(0)
    first = world.turn()
    assert first.standing is not None and (first.standing.lacks, first.standing.content) == (0, False)
    assert first.requeue_after is not None and first.requeue_after <= seconds(LACKS_AFTER_S), "it looks again by itself"
    assert standing(world.tick(LACKS_AFTER_S)).lacks == 2


def test_one_that_gave_its_pods_back_lacks_them_still_and_tries_at_once_when_room_is_made() -> None:
    world = World.of(workers=3)
    world.turn()
    world.schedule(0)
    world.turn()
    world.tick(GANG_WAIT_S).turn()
    world.finish_deletions()
    assert world.status.slots == "" and standing(world).lacks == 3
    world.neighbours = (Standing(name="a", uid="a", gave_to="job-uid", gave=3),)
    world.turn()
    assert world.status.slots == "3-5"


@pytest.mark.parametrize(
    "words", ["1 node(s) didn't match Pod's node affinity/selector.", "1 node(s) had untolerated taint"]
)
def test_nobody_makes_room_for_a_job_that_no_node_would_take(words: str) -> None:
    world = World.of(workers=1)
    world.turn()
    world.set_pod(0, reason="Unschedulable", message=words)
    assert standing(world.tick(LACKS_AFTER_S)).lacks == 0


def test_a_job_over_its_quota_lacks_workers() -> None:
    world = World.of(workers=2)
    world.turn()
    world.pods.clear()
    world.refusals = ('pods "digits-0" is forbidden: exceeded quota: gpus',)
    assert standing(world).lacks == 2


def test_an_elastic_start_lacks_what_its_least_size_wants() -> None:
    world = World.of(workers=4, elastic=SIZES)
    world.turn()
    world.schedule()
    assert standing(world.tick(LACKS_AFTER_S)).lacks == 2


def test_a_job_that_trains_or_rests_is_content() -> None:
    world = trains()
    assert (standing(world).content, standing(world).above, standing(world).lacks) == (True, 2, 0)
    world.change_spec(suspend=True)
    world.turn()
    at_a_boundary(world)
    assert (standing(world).content, standing(world).above) == (True, 0)
