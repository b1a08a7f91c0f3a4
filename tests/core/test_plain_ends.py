"""Without agents: the kubelet that speaks first does not decide who broke first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.core import World, seconds
from trainjob_api import contract
from trainjob_api.v1alpha1 import CheckpointSpec
from trainjob_operator.core import groups
from trainjob_operator.core.answers import Hold
from trainjob_operator.core.ends.incident import Incident
from trainjob_operator.core.ends.plain_ends import KUBELETS_WAIT_S, VICTIMS_WAIT_S
from trainjob_operator.core.model import CreatePod, PodPhase, PodView
from trainjob_operator.core.size.gang import GANG_WAIT_S
from trainjob_operator.core.turn import Turn

LOST_PEER = (
    "Traceback (most recent call last):\n"
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.4]:7000\n"
)


def plain(workers: int = 3, **fields: Any) -> World:
    return World.of(workers=workers, runtime={"agent": "Disabled"}, **fields).run().tick(60)


def find(world: World) -> Incident | Hold | None:
    turn = Turn.of(world.observe(), world.now)
    return groups.of(turn).find_end(turn)


def test_who_ended_first_is_the_cause_however_late_its_kubelet_is() -> None:
    world = plain()
    first = world.now
    world.tick(0.4).fail_pod(0, 1)
    found = find(world)
    assert isinstance(found, Hold) and found.until == world.now + seconds(KUBELETS_WAIT_S)
    decision = world.turn()
    assert world.attempt.state == "Running" and decision.requeue_after is not None
    assert decision.requeue_after <= seconds(KUBELETS_WAIT_S) and not decision.actions
    world.tick(1.5).fail_pod(1, 3)
    world.set_pod(1, finished_at=first)
    world.tick(KUBELETS_WAIT_S).turn()
    failure = world.status.last_failure
    assert failure is not None and (failure.pod, failure.exit_code) == ("digits-1", 3)
    assert world.status.failures.counted == 1


def test_who_speaks_of_a_lost_peer_waits_longer_for_the_one_that_was_first() -> None:
    world = plain()
    first = world.now
    world.tick(0.4).fail_pod(0, 1, message=LOST_PEER)
    found = find(world)
    assert isinstance(found, Hold) and found.until == world.now + seconds(VICTIMS_WAIT_S)
    world.tick(KUBELETS_WAIT_S).turn()
    assert world.attempt.state == "Running", "a kubelet on a busy machine is later than that"
    world.tick(2.0).fail_pod(1, 3)
    world.set_pod(1, finished_at=first)
    world.turn()
    failure = world.status.last_failure
    assert failure is not None and (failure.pod, failure.exit_code) == ("digits-1", 3)


def test_of_a_peer_that_nobody_tells_of_it_is_the_cause_in_the_end() -> None:
    world = plain()
    world.fail_pod(0, 1, message=LOST_PEER)
    world.tick(VICTIMS_WAIT_S).turn()
    failure = world.status.last_failure
    assert failure is not None and (failure.pod, failure.exit_code) == ("digits-0", 1)


def test_nobody_is_waited_for_once_all_have_ended() -> None:
    world = plain()
    for slot in range(3):
        world.fail_pod(slot, slot + 1)
    found = find(world)
    assert isinstance(found, Incident) and found.slot == 0


def test_nor_for_those_that_have_succeeded() -> None:
    world = plain()
    world.set_pod(2, phase=PodPhase.SUCCEEDED, exit_code=0)
    world.fail_pod(0, 1)
    world.fail_pod(1, 1)
    assert isinstance(find(world), Incident)


def test_of_the_same_second_the_one_that_speaks_of_no_lost_peer_is_the_cause() -> None:
    """A kubelet's moments are whole seconds."""
    world = plain()
    for slot in (0, 2):
        world.fail_pod(slot, 1, message=LOST_PEER)
    world.fail_pod(1, 1, message="this failure is on purpose")
    found = find(world)
    assert isinstance(found, Incident) and found.slot == 1


def test_where_all_speak_of_a_lost_peer_the_first_is_the_cause() -> None:
    world = plain()
    for slot in (2, 1, 0):
        world.fail_pod(slot, 1, message=LOST_PEER)
        world.tick(0.5)
    found = find(world)
    assert isinstance(found, Incident) and found.slot == 2


def test_a_pod_that_is_taken_away_is_the_cause_of_its_peers_ends() -> None:
    world = plain()
    world.fail_pod(0, 1, message=LOST_PEER)
    world.tick(0.5).set_pod(1, deleting=True, disrupted=True)
    found = find(world)
    assert isinstance(found, Incident) and (found.slot, found.reason) == (1, contract.REASON_PREEMPTED)


def test_a_kubelet_whose_clock_is_ahead_does_not_put_off_the_end() -> None:
    world = plain()
    world.fail_pod(0, 1)
    world.set_pod(0, finished_at=world.now + seconds(3600))
    assert isinstance(find(world), Incident)


def test_a_deadline_that_passes_meanwhile_waits_for_the_cause() -> None:
    world = plain(active_deadline_seconds=62)
    world.fail_pod(0, 1)
    world.tick(2.5).turn()
    assert world.attempt.state == "Running" and not world.status.finished
    world.tick(KUBELETS_WAIT_S).turn()
    assert world.status.finished and world.status.history[-1].end_cause == contract.REASON_EXIT
    assert world.status.failures.counted == 1


@pytest.mark.parametrize(
    "meanwhile", [lambda world: world.change_spec(workers=2), lambda world: world.ask_restart("now")]
)
def test_what_is_wished_meanwhile_makes_nobody_forget_the_failure(meanwhile: Callable[[World], None]) -> None:
    world = plain()
    world.fail_pod(0, 3)
    meanwhile(world)
    world.turn()
    assert world.attempt.state == "Running"
    world.tick(KUBELETS_WAIT_S).turn()
    assert (world.attempt.state, world.attempt.end_cause) == ("Ended", contract.REASON_EXIT)
    assert world.status.failures.counted == 1


def test_an_attempt_whose_cause_is_waited_for_gets_no_more_pods() -> None:
    """They would be deleted a moment later; after an edit they would be of another make than the others."""
    world = World.of(workers=2, runtime={"agent": "Disabled"})
    world.turn()
    world.start_pods()
    world.lose_pod(0)
    world.fail_pod(1, 1)
    world.change_spec(checkpoint=CheckpointSpec(storage="/elsewhere"))
    decision = world.turn()
    assert world.attempt.state == "Running" and not any(isinstance(action, CreatePod) for action in decision.actions)
    for _ in range(3):
        world.tick(KUBELETS_WAIT_S).turn()
    assert world.attempt.number == 2
    assert {pod.make for pod in world.pods.values() if pod.slot > 1} == {world.attempt.make}


def test_a_start_that_broke_is_not_given_back_before_its_cause_is_told() -> None:
    world = World.of(workers=3, runtime={"agent": "Disabled"}, failurePolicy={"maxFailures": 0})
    world.turn()
    world.schedule(0, 1)
    world.turn()
    world.tick(GANG_WAIT_S - 1)
    world.fail_pod(0, 3)
    world.turn()
    world.tick(1).turn()
    assert world.attempt.state == "Running", "the others' kubelets may still tell of an earlier end"
    world.tick(KUBELETS_WAIT_S).turn()
    assert world.status.holds("Failed") and world.attempt.end_cause == contract.REASON_EXIT


def test_an_attempt_that_begins_in_the_turn_of_a_failure_gets_its_pod_in_that_turn() -> None:
    world = plain(workers=1)
    world.fail_pod(0, 1)
    decision = world.turn()
    assert (world.attempt.number, world.attempt.state) == (2, "Running")
    assert [action.slot for action in decision.actions if isinstance(action, CreatePod)] == [1]


def test_a_name_that_another_pod_bears_costs_nothing_and_the_next_group_has_other_names() -> None:
    """Members are committed before their pods are made: one whose name somebody took never was."""
    world = World.of(workers=2, runtime={"agent": "Disabled"}, failurePolicy={"maxFailures": 0})
    decision = world.turn()
    assert world.attempt.members == "0-1" and CreatePod(1) in decision.actions
    world.pods["digits-1"] = PodView(slot=-1, name="digits-1", uid="another", owned=False, phase=PodPhase.RUNNING)
    decision = world.turn()
    assert (world.status.failures.counted, world.status.failures.early_in_row) == (0, 1)
    assert world.status.last_failure.message == "digits-1 could not be made: another pod has its name"  # type: ignore[union-attr]
    del world.pods["digits-0"]
    world.tick(30).run()
    assert world.attempt.number == 2 and world.attempt.members == "2-3"
