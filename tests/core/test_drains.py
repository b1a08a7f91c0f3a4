"""A worker that goes away reaches a checkpoint first: who waits for it, how long, and when it would be in vain."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import pytest

from support.core import World, is_steady, seconds
from trainjob_api import contract
from trainjob_api.contract import Instruction, RankReport
from trainjob_operator.core.ends.silence import SILENT_S
from trainjob_operator.core.instruct import instruct
from trainjob_operator.core.turn import LISTEN_S

GRACE_S = 120.0


def runs(world: World, slot: int, **fields: object) -> None:
    """Its agent tells that its rank trains."""
    rank = cast(RankReport, {"rank": slot, "local_rank": 0, "pid": 100 + slot, "state": contract.RANK_RUNNING})
    world.sync(slot, ranks=(rank,), **fields)


def training(workers: int = 2, **fields: object) -> World:
    """A job that has saved a checkpoint, and whose agents tell of ranks that train."""
    world = World.of(workers=workers, **{"boundary_timeout_seconds": 600, **fields}).run().tick(100)
    world.report(7)
    for slot in range(workers):
        runs(world, slot)
    world.turn()
    return world


def leave(world: World, slot: int, grace_s: float = GRACE_S, **fields: object) -> None:
    """The pod is deleted, and its agent has had SIGTERM."""
    gone_by = world.now + seconds(grace_s)
    world.set_pod(slot, **{"deleting": True, "grace_s": grace_s, "gone_by": gone_by, **fields})
    if slot not in world.mute:
        runs(world, slot, draining=True)


def told(world: World, slot: int) -> Instruction:
    return instruct(world.job, world.agents, slot, world.pod(slot).uid)[0]


def drains(world: World) -> bool:
    world.turn()
    return world.attempt.number == 1 and world.attempt.state == "Running"


def test_it_waits_until_what_is_left_is_for_storing() -> None:
    world = training()
    leave(world, 1)
    assert drains(world) and is_steady(world)
    word = told(world, 1)
    assert (word["gone_s"], word["drain_s"]) == (GRACE_S, GRACE_S - contract.DRAIN_RESERVE_S)
    assert "drain_s" not in told(world, 0)
    world.tick(GRACE_S - contract.DRAIN_RESERVE_S - 1)
    assert drains(world)
    world.tick(1)
    assert not drains(world)


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
def test_the_api_servers_clock_gives_and_takes_no_time(ahead_s: float) -> None:
    world = training()
    leave(world, 1, gone_by=world.now + seconds(ahead_s))
    assert drains(world) and told(world, 1)["gone_s"] == GRACE_S
    world.tick(GRACE_S - contract.DRAIN_RESERVE_S - 1)
    assert drains(world)
    world.tick(1)
    assert not drains(world)


def test_an_earlier_wish_gives_and_takes_no_time() -> None:
    world = training()
    world.change_spec(workers=1)
    assert drains(world)
    world.tick(50)
    leave(world, 1)
    assert drains(world) and told(world, 1)["gone_s"] == GRACE_S
    world.tick(GRACE_S - contract.DRAIN_RESERVE_S - 1)
    assert drains(world)
    world.tick(1)
    assert not drains(world)


def test_of_several_that_go_the_first_counts() -> None:
    world = training(workers=3)
    leave(world, 1)
    assert drains(world)
    leave(world.tick(20), 2, grace_s=30)
    assert drains(world)
    assert [told(world, slot)["gone_s"] for slot in (1, 2)] == [30, 30]
    world.tick(30 - contract.DRAIN_RESERVE_S)
    assert not drains(world)


def test_a_drain_that_is_seen_by_a_clock_far_ahead_is_no_longer_than_its_grace() -> None:
    world = training()
    leave(world, 1)
    world.now += timedelta(hours=1)
    for slot in (0, 1):
        runs(world, slot)
    assert drains(world)
    world.now -= timedelta(hours=1)
    assert drains(world) and world.status.boundary is not None and world.status.boundary.gone_by is not None
    assert world.status.boundary.gone_by <= world.now + seconds(GRACE_S)


def test_a_new_leader_goes_on_waiting_until_it_could_hear_the_members() -> None:
    world = training()
    leave(world, 1)
    assert drains(world)
    world.mute = {0, 1}
    world.agents.clear()
    world.listening_since = world.now
    assert drains(world)
    world.tick(LISTEN_S - 1)
    assert drains(world)
    decision = world.turn()
    assert decision.requeue_after is not None and decision.requeue_after <= seconds(1)
    world.tick(1)
    assert not drains(world), "silence means something by now"


def test_a_new_leader_hears_of_ranks_that_ended() -> None:
    world = training()
    leave(world, 1)
    assert drains(world)
    world.agents.clear()
    world.listening_since = world.now
    world.sync(1, attempt=1, ranks=({"rank": 1, "local_rank": 0, "pid": 101, "state": contract.RANK_ENDED},))
    assert not drains(world)


def test_a_new_leader_that_knows_of_no_drain_begins_none_unheard() -> None:
    world = training()
    leave(world, 1)
    world.agents.clear()
    world.listening_since = world.now
    assert not drains(world)


@pytest.mark.parametrize("slot", [0, 1])
def test_it_does_not_wait_for_a_machine_that_died(slot: int) -> None:
    """Its agent's last word still says that its ranks train."""
    world = training(workers=3)
    leave(world, 1)
    assert drains(world)
    world.mute = {slot}
    decision = world.tick(SILENT_S - 1).turn()
    assert world.attempt.number == 1 and decision.requeue_after is not None and decision.requeue_after <= seconds(1)
    world.tick(1)
    assert not drains(world)


def test_it_does_not_wait_for_a_member_that_others_cannot_reach() -> None:
    world = training(workers=3)
    leave(world, 1)
    assert drains(world)
    world.sync(0, lost_peers=(1,))
    assert not drains(world)


def test_a_cancelled_job_does_not_drain() -> None:
    world = training()
    leave(world, 1)
    assert drains(world)
    world.annotate({contract.ANNOTATION_CANCELLED: "now"})
    world.change_spec(suspend=True)
    assert not drains(world) and world.attempt.end_cause == contract.REASON_SUSPENDED


def test_a_drain_puts_no_deadline_off() -> None:
    world = training(active_deadline_seconds=150)
    leave(world, 1)
    assert drains(world)
    world.tick(49)
    assert drains(world) and not world.status.finished
    world.tick(1).turn()
    failed = world.status.condition("Failed")
    assert failed is not None and (failed.status, failed.reason) == ("True", contract.REASON_DEADLINE)
