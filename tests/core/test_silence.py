"""Silence is a verdict only with a second witness."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from support.core import World, ended, is_steady, raised, seconds
from trainjob_api import contract
from trainjob_operator.core import groups
from trainjob_operator.core.answers import Hold
from trainjob_operator.core.ends.failures import COMMUNICATION_WAIT_S
from trainjob_operator.core.ends.incident import Incident
from trainjob_operator.core.ends.silence import LOOK_EVERY_S, SILENT_S
from trainjob_operator.core.model import Decision, DeletePod, PodPhase
from trainjob_operator.core.pods.naming import parse_slots
from trainjob_operator.core.turn import Turn

NODE_WORDS = "its node node-1 is NotReady (NodeStatusUnknown)"


def training(mute: int | None = 1, **fields: Any) -> World:
    """Three workers that train; one is heard for the last time now."""
    world = World.of(**{"workers": 3} | fields).run().tick(60)
    world.sync_all()
    world.mute = set() if mute is None else {mute}
    return world


def find(world: World) -> Incident | Hold | None:
    turn = Turn.of(world.observe(), world.now)
    return groups.of(turn).find_end(turn)


def incident(world: World) -> Incident:
    found = find(world)
    assert isinstance(found, Incident), found
    return found


def deleted(decision: Decision) -> list[str]:
    return [action.name for action in decision.actions if isinstance(action, DeletePod)]


# --- The verdict ------------------------------------------------------------------------------------------------------


def test_silence_and_a_node_that_is_not_ready() -> None:
    world = training()
    world.set_pod(1, doubt=NODE_WORDS)
    world.tick(SILENT_S - 0.001)
    assert find(world) is None
    world.tick(0.001)
    found = incident(world)
    assert (found.reason, found.slot, found.pod, found.node) == (
        contract.REASON_WORKER_UNREACHABLE,
        1,
        "digits-1",
        "node-1",
    )
    assert found.message == f"the agent of digits-1 has been silent for 30 s, and {NODE_WORDS}"
    assert (found.counted, found.strikes, found.avoid_node, found.victims) == (False, False, False, 2)


def test_silence_and_a_peer_that_cannot_reach_it() -> None:
    world = training()
    world.tick(15).sync(0, lost_peers=(1,))
    assert find(world.tick(SILENT_S - 15.001)) is None
    found = incident(world.tick(0.001))
    assert found.message.endswith("and digits-0 cannot reach it")
    assert found.avoid_node, "the scheduler still takes the node for a good one"


@pytest.mark.parametrize("mute", [None, 1], ids=["heard", "silent"])
def test_neither_of_the_two_alone_is_a_verdict(mute: int | None) -> None:
    world = training(mute)
    if mute is None:
        world.set_pod(1, doubt=NODE_WORDS)
        world.sync(0, lost_peers=(1,))
    assert find(world.tick(600)) is None
    world.turn()
    assert is_steady(world)


def test_a_slow_agent_that_its_peers_reach_is_left_alone_and_its_node_is_looked_at_ever_less_often() -> None:
    world = training().tick(SILENT_S)  # `silence_watch.py` asks for the first look
    pauses = []
    for _ in range(10):
        after_s = world.turn().requeue_after
        assert after_s is not None
        pauses.append(after_s.total_seconds())
        world.tick(pauses[-1])
    assert all(LOOK_EVERY_S[0] <= pause <= LOOK_EVERY_S[1] for pause in pauses)
    assert world.attempt.state == "Running" and pauses[-1] == LOOK_EVERY_S[1]


def test_a_doubt_asks_for_a_look_when_silence_is_due() -> None:
    world = training()
    world.tick(25).set_pod(1, doubt=NODE_WORDS)
    assert world.turn().requeue_after == seconds(5)


def test_what_a_silent_agent_said_of_others_counts_no_more() -> None:
    world = training()
    world.sync(0, lost_peers=(1,))
    world.mute = {0, 1}
    assert find(world.tick(SILENT_S)) is None


def test_an_older_attempts_word_of_lost_peers_counts_no_more() -> None:
    world = training()
    world.tick(15).sync(0, lost_peers=(1,), attempt=world.attempt.number - 1)
    assert find(world.tick(15)) is None


@pytest.mark.parametrize(("heard_again", "counts"), [(False, True), (True, False)])
def test_a_readiness_probe_that_fails_is_a_witness_only_since_the_last_word(heard_again: bool, counts: bool) -> None:
    world = training()
    world.tick(1).set_pod(1, doubt="its readiness probe fails", doubt_since=world.now)
    if heard_again:
        world.tick(1).sync(1)
    assert isinstance(find(world.tick(SILENT_S)), Incident) is counts


def test_plain_jobs_have_no_agents() -> None:
    world = World.of(workers=2, runtime={"agent": "Disabled"}).run()
    world.set_pod(1, doubt=NODE_WORDS)
    assert find(world.tick(600)) is None


# --- All silent -------------------------------------------------------------------------------------------------------


def test_all_silent_while_a_pod_stands_well_is_no_verdict_about_any() -> None:
    world = training()
    world.mute = {0, 1, 2}
    world.set_pod(1, doubt=NODE_WORDS)
    world.set_pod(2, doubt=NODE_WORDS)
    world.tick(600)
    assert find(world) is None
    decision = world.turn()
    degraded = world.status.condition("Degraded")
    assert degraded is not None and degraded.reason == contract.REASON_UNREACHABLE
    assert decision.actions == () and world.attempt.state == "Running"


def test_all_silent_and_all_on_lost_nodes_is_one() -> None:
    world = training()
    world.mute = {0, 1, 2}
    for slot in range(3):
        world.set_pod(slot, doubt=f"its node node-{slot} is NotReady")
    found = incident(world.tick(SILENT_S))
    assert (
        found.slot == 0
        and found.message.endswith("its node node-0 is NotReady; 2 more lost with it")
        and found.victims == 0
    )


def test_workers_beside_a_lost_one_on_its_node_go_with_it() -> None:
    world = training()
    world.mute = {1, 2}
    world.set_pod(2, node="node-1")
    world.sync(0, lost_peers=(1,))
    world.tick(SILENT_S).turn()
    assert world.status.slots == "0,3-4"


# --- A new leader -----------------------------------------------------------------------------------------------------


def leads_since(world: World, moment: datetime) -> None:
    """This process has heard nobody yet."""
    world.agents.clear()
    world.listening_since = moment


def test_silence_is_timed_from_the_moment_when_this_leader_began_to_listen() -> None:
    world = training()
    world.tick(600)
    leads_since(world, world.now)
    world.set_pod(1, doubt=NODE_WORDS)
    for slot in (0, 2):
        world.sync(slot, attempt=1, joined=True, quiet=False)
    assert find(world.tick(SILENT_S - 1)) is None
    assert isinstance(find(world.tick(1)), Incident)


def test_a_leader_that_nobody_has_found_yet_takes_nobody_for_lost() -> None:
    world = training()
    leads_since(world, world.now)
    world.set_pod(1, doubt=NODE_WORDS)
    assert find(world.tick(600)) is None


def test_a_probe_that_failed_before_this_leader_heard_anyone_is_no_witness() -> None:
    world = training()
    world.set_pod(1, doubt="its readiness probe fails", doubt_since=world.now)
    world.tick(600)
    leads_since(world, world.now)
    for slot in (0, 2):
        world.sync(slot, attempt=1, joined=True, quiet=False)
    assert find(world.tick(600)) is None


# --- What is done -----------------------------------------------------------------------------------------------------


def test_the_slot_is_replaced_in_the_write_that_ends_the_attempt_and_its_pod_deleted_without_waiting_for_its_agent() -> (
    None
):
    world = training()
    world.sync(1, uploads=2)
    world.set_pod(1, doubt=NODE_WORDS)
    decision = world.tick(SILENT_S).turn()
    assert (world.attempt.state, world.attempt.end_cause, world.status.slots) == (
        "Ended",
        contract.REASON_WORKER_UNREACHABLE,
        "0,2-3",
    )
    assert deleted(decision) == ["digits-1"] and "digits-3" in world.pods
    assert all(action.grace_s is None for action in decision.actions if isinstance(action, DeletePod)), "not by force"
    assert (world.status.failures.counted, world.status.failures.preemptions) == (0, 1)
    # The pod stays Terminating, its uploads are not waited for.
    world.start_pods()
    world.sync_all()
    world.turn()
    assert (world.attempt.number, world.attempt.state, world.attempt.members) == (2, "Running", "0,2-3")
    assert world.pod(1).deleting


def test_the_budget_of_preemptions_pays() -> None:
    world = training(failure_policy={"maxPreemptions": 0})
    world.set_pod(1, doubt=NODE_WORDS)
    world.tick(SILENT_S).turn()
    failed = world.status.condition("Failed")
    assert failed is not None and (failed.status, failed.reason) == ("True", contract.REASON_PREEMPTION_LIMIT)
    assert world.status.reason == contract.REASON_WORKER_UNREACHABLE, "the column names the first cause"


def test_a_rank_that_broke_is_the_cause_and_the_silent_worker_is_replaced_all_the_same() -> None:
    world = training()
    world.set_pod(1, doubt=NODE_WORDS)
    world.tick(SILENT_S).break_rank(2, raised(2, "ValueError"))
    world.turn()
    assert world.attempt.end_cause == contract.REASON_USER_ERROR and world.status.slots == "0,2-3"


def test_a_communication_error_waits_while_a_peer_that_others_lost_says_nothing() -> None:
    """Whose ranks lost a peer because its node is gone have no failure of their own to be charged."""
    world = training()
    world.tick(15)
    world.break_rank(0, raised(0, "DistBackendError", communication=True, at=world.now))
    world.sync(0, lost_peers=(1,))
    found = find(world.tick(5))
    assert isinstance(found, Hold) and found.until == world.now + seconds(SILENT_S - 20)
    assert "waiting for the word of digits-1" in found.why
    assert incident(world.tick(SILENT_S - 20)).reason == contract.REASON_WORKER_UNREACHABLE


def test_a_communication_error_stands_once_the_peer_has_spoken() -> None:
    world = training()
    world.tick(15)
    world.break_rank(0, raised(0, "DistBackendError", communication=True, at=world.now))
    world.sync(0, lost_peers=(1,))
    world.tick(1).sync(1)
    assert incident(world.tick(COMMUNICATION_WAIT_S)).reason == contract.REASON_COMMUNICATION


# --- While no attempt runs --------------------------------------------------------------------------------------------


def waiting() -> World:
    """Three workers are wished; digits-2 has no node yet."""
    world = World.of(workers=3)
    world.turn()
    world.start_pods()
    world.set_pod(2, phase=PodPhase.PENDING, scheduled=False, ready=False, node=None, scheduled_at=None)
    world.sync(0)
    world.sync(1)
    world.turn()
    assert world.status.attempt is None
    return world


def test_a_worker_that_is_lost_before_training_began_is_replaced_uncounted() -> None:
    world = waiting()
    world.mute = {1}
    world.set_pod(1, doubt=NODE_WORDS)
    world.tick(SILENT_S - 1).turn()
    assert world.status.slots == "0-2"
    decision = world.tick(1).turn()
    assert world.status.slots == "0,2-3" and deleted(decision) == ["digits-1"]
    assert (world.status.failures.counted, world.status.failures.preemptions) == (0, 0)
    assert [event.reason for event in decision.events] == [contract.REASON_WORKER_UNREACHABLE]


def test_a_pod_that_never_came_up_on_a_lost_node_is_replaced() -> None:
    world = waiting()
    world.schedule(2)
    world.set_pod(2, doubt="its node node-2 is NotReady")
    world.tick(SILENT_S).turn()
    assert world.status.slots == "0-1,3"


def test_what_the_api_server_dates_into_our_future_is_silent_since_we_listen() -> None:
    """Its clock and ours differ by an hour: nobody waits for an hour."""
    world = waiting()
    world.schedule(2)
    world.listening_since = world.now
    ahead = world.now + seconds(3600)
    world.set_pod(2, created_at=ahead, scheduled_at=ahead, doubt="its node node-2 is NotReady")
    world.tick(SILENT_S - 1).turn()
    assert world.status.slots == "0-2"
    world.tick(1).turn()
    assert world.status.slots == "0-1,3"


def test_one_that_merely_takes_long_to_come_up_is_not() -> None:
    world = waiting()
    world.schedule(2)
    world.tick(3600).turn()
    assert world.status.slots == "0-2"


def test_replacements_that_are_lost_too_come_ever_later() -> None:
    world = waiting()
    pauses = []
    for _ in range(4):
        slot = max(parse_slots(world.status.slots))
        world.schedule(slot)
        world.set_pod(slot, doubt=f"its node node-{slot} is NotReady")
        world.tick(SILENT_S).turn()
        lost_at = world.now
        while f"digits-{slot + 1}" not in world.pods:
            world.tick(0.5).turn()
        pauses.append((world.now - lost_at).total_seconds())
    assert pauses == [0.0, 1.0, 2.0, 4.0]


def test_no_attempt_begins_with_a_worker_that_is_silent() -> None:
    world = training()
    world.tick(25).break_rank(0, ended(0, contract.END_EXIT, exit_code=1))
    world.tick(SILENT_S - 25).turn()
    assert (world.attempt.number, world.attempt.state) == (1, "Ended")
    world.sync(0, quiet=True)
    world.sync(2, quiet=True)
    world.turn()
    assert world.attempt.state == "Ended"
    world.sync(1, quiet=True)
    world.turn()
    assert (world.attempt.number, world.attempt.state) == (2, "Running")
