"""A worker that goes away reaches a checkpoint first: who waits for it, how long, and when it would be in vain."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest

from support.core import World, is_steady, seconds
from trainjob_api import contract
from trainjob_api.contract import Instruction, RankReport
from trainjob_api.v1alpha1 import CheckpointSpec
from trainjob_operator.core import boundaries
from trainjob_operator.core.ends.silence import SILENT_S
from trainjob_operator.core.instruct import instruct
from trainjob_operator.core.model import PodPhase
from trainjob_operator.core.pods.naming import parse_slots
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


def announce(world: World, slot: int, how: str) -> None:
    """It stands, and is to go; or its agent has had SIGTERM and nobody has deleted it."""
    if how == "sigterm":
        world.set_pod(slot, grace_s=GRACE_S)
        runs(world, slot, draining=True)
    elif how == "node":
        world.set_pod(slot, notice="its node node-1 is tainted: karpenter.sh/disrupted")
    else:
        world.set_pod(slot, disrupted=True, disruption="TerminationByKubelet")


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


# --- Pods that stand, and are to go -----------------------------------------------------------------------------------

STORED = {"checkpoint": CheckpointSpec(storage="/checkpoints")}
ANNOUNCED = ("sigterm", "node", "condition")


def at_boundary(world: World) -> None:
    """Its ranks wait behind a checkpoint that they have just saved."""
    assert world.status.boundary is not None
    runs(world, 0, boundary=boundaries.token(world.status.boundary), draining=world.agents[0].draining)


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("how", ANNOUNCED)
def test_a_worker_that_is_to_go_reaches_a_checkpoint_and_is_replaced(how: str, slot: int) -> None:
    world = training(**STORED)
    announce(world, slot, how)
    assert drains(world) and is_steady(world) and world.status.boundary is not None
    at_boundary(world)
    world.turn()
    sigterm = how == "sigterm"
    assert world.status.history[0].end_cause == (contract.REASON_POD_LOST if sigterm else contract.REASON_PREEMPTED)
    assert (world.status.failures.counted, world.status.failures.preemptions) == ((1, 0) if sigterm else (0, 1))
    # Told to end, it ends by itself.
    assert (slot in parse_slots(world.status.slots)) == sigterm


def test_sigterm_gives_the_ranks_what_the_pods_own_grace_period_leaves() -> None:
    world = training()
    announce(world, 1, "sigterm")
    assert drains(world)
    assert (told(world, 1)["gone_s"], told(world, 1)["drain_s"]) == (GRACE_S, GRACE_S - contract.DRAIN_RESERVE_S)
    world.tick(GRACE_S - contract.DRAIN_RESERVE_S - 1)
    assert drains(world)
    world.tick(1)
    assert not drains(world)


def test_sigterm_on_a_node_that_goes_is_a_preemption() -> None:
    world = training(**STORED)
    announce(world, 1, "node")
    announce(world, 1, "sigterm")
    assert drains(world)
    world.tick(GRACE_S - contract.DRAIN_RESERVE_S)
    assert not drains(world) and world.status.failures.preemptions == 1


@pytest.mark.parametrize("how", ["node", "condition"])
def test_a_notice_alone_stops_nobody_and_takes_no_time_from_the_grace_period(how: str) -> None:
    world = training(**{**STORED, "boundary_timeout_seconds": GRACE_S})
    announce(world, 1, how)
    assert drains(world)
    for _ in range(10):
        assert drains(world.tick(GRACE_S))
    leave(world, 1, disrupted=True)
    assert drains(world) and told(world, 1)["gone_s"] == GRACE_S
    world.tick(GRACE_S - contract.DRAIN_RESERVE_S - 1)
    assert drains(world)
    world.tick(1)
    assert not drains(world) and world.status.failures.preemptions == 1


@pytest.mark.parametrize("how", ["node", "condition"])
def test_a_notice_that_is_taken_back_is_forgotten(how: str) -> None:
    world = training(**STORED)
    announce(world, 1, how)
    assert drains(world) and world.status.boundary is not None
    world.set_pod(1, notice=None, disrupted=False)
    assert drains(world) and world.status.boundary is None


@pytest.mark.parametrize("wish", ["suspend", "restart", "scale"])
@pytest.mark.parametrize("how", ["node", "condition"])
def test_a_notice_that_stands_holds_up_nobody_who_wishes_an_end(how: str, wish: str) -> None:
    """It has no limit; what somebody wishes has boundaryTimeoutSeconds, from the wish on."""
    world = training(**{**STORED, "boundary_timeout_seconds": GRACE_S})
    announce(world, 1, how)
    for _ in range(3):
        assert drains(world.tick(GRACE_S))
    if wish == "restart":
        world.ask_restart("now")
    else:
        world.change_spec(**({"suspend": True} if wish == "suspend" else {"workers": 1}))
    assert drains(world) and is_steady(world) and "leaving" not in told(world, 0)
    assert drains(world.tick(GRACE_S - 1))
    world.tick(1)
    assert not drains(world)
    cause = {"suspend": contract.REASON_SUSPENDED, "restart": contract.REASON_RESTART_REQUESTED}
    assert world.status.history[0].end_cause == cause.get(wish, contract.REASON_SCALED)


def other_template() -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer", "image": "another", "command": ["python", "train.py"]}]}}


@pytest.mark.parametrize("how", ["node", "condition"])
def test_a_notice_that_stands_holds_up_no_other_template(how: str) -> None:
    """Suspended, edited and resumed between two looks: what trains by the old one has boundaryTimeoutSeconds from now."""
    world = training(**{**STORED, "boundary_timeout_seconds": GRACE_S})
    announce(world, 1, how)
    for _ in range(3):
        assert drains(world.tick(GRACE_S))
    world.change_spec(template=other_template())
    assert drains(world) and is_steady(world)
    assert drains(world.tick(GRACE_S - 1))
    world.tick(1)
    assert not drains(world) and world.status.history[0].end_cause == contract.REASON_SUSPENDED


@pytest.mark.parametrize("how", ["node", "condition"])
def test_a_notice_that_stands_holds_up_no_growth(how: str) -> None:
    world = training(**{**STORED, "boundary_timeout_seconds": GRACE_S})
    announce(world, 1, how)
    for _ in range(3):
        assert drains(world.tick(GRACE_S))
    world.change_spec(workers=3)
    assert drains(world) and world.pod(2).phase is PodPhase.PENDING, "the new worker comes up beside those that train"
    assert told(world, 0)["leaving"] == {"digits-1": 1}, "until it is there nobody wishes an end"
    assert drains(world.tick(GRACE_S))
    world.start_pods()
    world.sync_all()
    for slot in (0, 1):
        runs(world, slot)
    assert drains(world) and is_steady(world)
    assert drains(world.tick(GRACE_S - 1))
    world.tick(1)
    assert not drains(world) and world.status.history[0].end_cause == contract.REASON_SCALED


def test_a_wish_that_is_taken_back_leaves_the_notice() -> None:
    world = training(**{**STORED, "boundary_timeout_seconds": GRACE_S})
    announce(world, 1, "node")
    assert drains(world)
    world.change_spec(suspend=True)
    assert drains(world.tick(10))
    world.change_spec(suspend=False)
    assert drains(world.tick(10)) and told(world, 0)["leaving"] == {"digits-1": 1}
    assert drains(world.tick(2 * GRACE_S))


@pytest.mark.parametrize("how", ["node", "condition"])
def test_without_storage_no_pod_is_given_up_for_a_notice(how: str) -> None:
    world = training()
    announce(world, 1, how)
    assert drains(world) and world.status.boundary is None


@pytest.mark.parametrize("how", ANNOUNCED)
def test_a_job_that_never_reported_trains_on_until_its_pod_goes(how: str) -> None:
    world = World.of(workers=2, **STORED).run().tick(100)
    for slot in (0, 1):
        runs(world, slot)
    announce(world, 1, how)
    assert drains(world) and world.status.boundary is None


def test_all_workers_of_a_node_that_goes_are_replaced_at_once() -> None:
    world = training(workers=3, **STORED)
    announce(world, 0, "node")
    announce(world, 2, "node")
    assert drains(world)
    at_boundary(world)
    world.turn()
    assert world.status.failures.preemptions == 1
    assert [slot in parse_slots(world.status.slots) for slot in (0, 1, 2)] == [False, True, False]


def test_a_new_leader_lets_a_worker_drain_that_it_has_not_heard() -> None:
    world = training()
    announce(world, 1, "sigterm")
    assert drains(world)
    wish = world.status.boundary
    world.mute = {0, 1}
    world.agents.clear()
    world.listening_since = world.now
    assert drains(world) and world.status.boundary == wish
    for slot in (0, 1):
        runs(world, slot, attempt=1, draining=slot == 1)
    assert drains(world) and world.status.boundary == wish


def test_a_preemption_stays_one_for_a_leader_that_has_not_heard_the_worker() -> None:
    """It reads nodes only of workers that say that they were told to end."""
    world = training(workers=3, **STORED)
    announce(world, 1, "sigterm")
    world.set_pod(1, disrupted=True, disruption="its node is cordoned")
    assert drains(world)
    world.tick(GRACE_S - contract.DRAIN_RESERVE_S - 5)
    for slot in range(3):
        runs(world, slot, draining=slot == 1)
    assert drains(world)
    world.mute = {0, 1, 2}
    world.agents.clear()
    world.listening_since = world.now
    world.set_pod(1, disrupted=False, disruption=None)
    world.tick(5)
    assert not drains(world)
    failure = world.status.last_failure
    assert failure is not None and (failure.pod, failure.reason) == ("digits-1", contract.REASON_PREEMPTED)
    assert (world.status.failures.counted, world.status.failures.preemptions) == (0, 1)


def test_of_several_that_are_told_to_end_one_that_is_taken_is_told_of() -> None:
    world = training(workers=3, **STORED)
    announce(world, 0, "sigterm")
    announce(world, 1, "sigterm")
    announce(world, 1, "node")
    assert drains(world)
    at_boundary(world)
    world.turn()
    failure = world.status.last_failure
    assert failure is not None and (failure.pod, failure.reason) == ("digits-1", contract.REASON_PREEMPTED)
    assert (world.status.failures.counted, world.status.failures.preemptions) == (0, 1)


def test_workers_that_are_to_go_before_they_train_are_replaced_after_ever_longer_pauses() -> None:
    """Pods that tolerate every taint may come to such a node again and again."""
    world = World.of(workers=1, **STORED)
    for slot in range(3):
        world.settle()
        assert parse_slots(world.status.slots) == (slot,)
        announce(world, slot, "node")
        world.turn()
        retry_at = world.status.timing.retry_at
        if retry_at is not None:
            world.now = max(world.now, retry_at)
    assert retry_at is not None and world.status.failures.counted == 0


# --- What the loop hears ----------------------------------------------------------------------------------------------


def test_rank_0s_agent_is_told_who_goes_and_by_when() -> None:
    world = training(workers=3)
    leave(world, 2)
    assert drains(world)
    word = told(world, 0)
    assert word["leaving"] == {"digits-2": 2}
    assert word["gone_at"] == (world.now + seconds(GRACE_S)).timestamp()
    assert "leaving" not in told(world, 2) and "gone_at" not in told(world, 1)
    assert told(world.tick(1), 0) == word, "it is another only when something has changed"


@pytest.mark.parametrize("how", ["node", "condition"])
def test_of_a_notice_nobody_knows_the_time(how: str) -> None:
    world = training(workers=3, **STORED)
    announce(world, 1, how)
    assert drains(world)
    word = told(world, 0)
    assert word["leaving"] == {"digits-1": 1} and "gone_at" not in word
    announce(world, 2, how)
    assert drains(world) and told(world, 0)["leaving"] == {"digits-1": 1, "digits-2": 2}


def test_a_planned_change_takes_nobody_away() -> None:
    world = training()
    world.change_spec(workers=1)
    assert drains(world) and "boundary" in told(world, 0) and "leaving" not in told(world, 0)
