"""Slots, members, scaling, and when an attempt may begin."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from support.core import World, is_steady, raised, seconds
from trainjob_api import contract
from trainjob_api.bad_nodes import Mark
from trainjob_api.v1alpha1 import Failures, TrainJobStatus
from trainjob_operator.core.ends.failures import COMMUNICATION_WAIT_S
from trainjob_operator.core.ends.plain_ends import KUBELETS_WAIT_S
from trainjob_operator.core.model import CreatePod, DeletePod, EnsureService, PodPhase, PodView, ServiceView
from trainjob_operator.core.pods.naming import parse_slots
from trainjob_operator.core.size.pod_actions import KEPT_FINISHED
from trainjob_operator.core.turn import LISTEN_S


def test_slots_are_listed_before_their_pods_are_created() -> None:
    world = World.of(workers=3)
    decision = world.turn()
    assert (decision.status.slots, decision.status.next_slot) == ("0-2", 3)
    assert decision.actions == (EnsureService(), CreatePod(0), CreatePod(1), CreatePod(2))


def test_new_slots_start_above_every_pod_of_the_name() -> None:
    world = World.of(workers=2)
    world.pods["stranger"] = PodView(slot=6, name="stranger", uid="x", phase=PodPhase.RUNNING, owned=False)
    world.pods["liar"] = PodView(slot=10**12, name="liar", uid="y", phase=PodPhase.RUNNING, owned=False)
    assert world.turn().status.slots == "7-8"


def test_a_listed_slot_without_a_pod_is_created_under_its_name_before_it_was_a_member() -> None:
    world = World.of(workers=2)
    world.turn()
    world.lose_pod(1)
    assert world.turn().actions == (CreatePod(1),)
    assert world.status.failures.counted == 0


def test_a_name_taken_by_somebody_else_gives_the_next_slot() -> None:
    world = World.of(workers=2)
    world.turn()
    world.pods["digits-1"] = replace(world.pod(1), uid="foreign", owned=False)
    decision = world.turn()
    assert decision.status.slots == "0,2"
    assert decision.actions == (CreatePod(2),)


def test_a_lost_members_slot_is_never_used_again() -> None:
    world = World.of(workers=3).run()
    world.lose_pod(1)
    decision = world.turn()
    assert (decision.status.slots, decision.status.next_slot) == ("0,2-3", 4)
    assert decision.actions == (CreatePod(3),)
    assert world.attempt.state == "Ended"
    world.run()
    assert (world.attempt.number, world.attempt.members) == (2, "0,2-3")
    assert {name: pod.uid for name, pod in world.pods.items()} == {
        "digits-0": "uid-1",
        "digits-2": "uid-3",
        "digits-3": "uid-4",
    }


def test_pods_that_status_does_not_account_for_are_deleted_unless_finished() -> None:
    world = World.of(workers=1).run()
    world.pods["digits-8"] = PodView(slot=8, name="digits-8", uid="u8", phase=PodPhase.RUNNING)
    world.pods["digits-9"] = PodView(slot=9, name="digits-9", uid="u9", phase=PodPhase.FAILED)
    world.pods["digits-7"] = PodView(slot=7, name="digits-7", uid="u7", phase=PodPhase.RUNNING, owned=False)
    world.pods["twin"] = PodView(slot=0, name="twin", uid="u0", phase=PodPhase.RUNNING)
    assert set(world.turn().actions) == {DeletePod("digits-8", "u8"), DeletePod("twin", "u0")}
    assert is_steady(world)


def test_members_must_have_synced_and_be_quiet() -> None:
    world = World.of(workers=2)
    world.turn()
    world.start_pods()
    world.sync(0)
    assert "digits-1" in world.turn().why
    world.sync(1, quiet=False)
    assert world.turn().status.attempt is None
    world.sync(1, quiet=True, draining=True)
    assert world.turn().status.attempt is None
    world.sync(1, draining=False, address="")
    assert world.turn().status.attempt is None
    world.sync(1, address="10.0.0.1:7000")
    assert world.turn().status.attempt is not None


def test_an_agent_of_another_pod_of_that_name_does_not_count() -> None:
    world = World.of(workers=1)
    world.turn()
    world.start_pods()
    world.sync(0)
    world.agents[0] = replace(world.agents[0], pod_uid="uid-of-the-dead")
    assert world.turn().status.attempt is None


def test_a_rank_failure_restarts_in_place_in_one_write() -> None:
    world = World.of(workers=2).run().tick(60)
    world.sync(0, quiet=False)
    world.sync(1, quiet=False, ranks=(raised(1, "ValueError"),))
    decision = world.turn()
    assert decision.actions == ()
    assert (world.attempt.number, world.attempt.state, world.attempt.members) == (2, "Running", "0-1")
    assert world.status.history[-1].end_cause == contract.REASON_USER_ERROR


def test_without_everyone_the_end_is_written_first() -> None:
    world = World.of(workers=2).run().tick(60)
    del world.agents[0]  # a new operator: this agent has not synced yet
    world.listening_since = world.now
    world.break_rank(1, raised(1, "ValueError"))
    world.turn()
    assert world.attempt.state == "Running", "rank 0's agent may know of progress"
    world.tick(LISTEN_S).turn()
    assert (world.attempt.number, world.attempt.state) == (1, "Ended")
    world.sync(0, attempt=1, quiet=False)
    world.turn()
    assert world.attempt.state == "Ended", "its ranks still live"
    world.sync(0, quiet=True)
    world.sync(1, quiet=True)
    world.turn()
    assert (world.attempt.number, world.attempt.state) == (2, "Running")
    assert world.status.failures.counted == 1


def test_a_member_that_its_peers_lost_speaks_for_itself_first() -> None:
    world = World.of(workers=3).run().tick(60)
    world.sync(0, lost_peers=(2,), ranks=(raised(0, "DistBackendError", communication=True, at=world.now),))
    world.tick(COMMUNICATION_WAIT_S).sync(2)
    world.turn()
    assert world.attempt.state == "Ended"
    world.sync(1, quiet=True)
    world.sync(0, quiet=True)
    assert world.turn().status.attempt == world.attempt
    world.tick(1).sync(2, quiet=True)
    world.turn()
    assert (world.attempt.number, world.attempt.state) == (2, "Running")


def test_the_uploads_of_a_leaving_worker_are_waited_for() -> None:
    world = World.of(workers=2).run().tick(60)
    world.sync(1, uploads=2)
    world.set_pod(1, deleting=True)
    world.turn()
    world.start_pods()
    world.sync(2)
    world.sync(0, quiet=True)
    decision = world.turn()
    assert (world.attempt.number, decision.why) == (1, "waiting for 2 uploads of removed workers")
    world.sync(1, uploads=0)
    world.turn()
    assert (world.attempt.number, world.attempt.members) == (2, "0,2")


def test_uploads_that_stand_still_hold_nobody_for_ever() -> None:
    world = World.of(workers=2).run().tick(60)
    world.sync(1, uploads=2)
    world.set_pod(1, deleting=True)
    world.turn()
    world.start_pods()
    world.tick(30).sync_all()
    world.turn()
    assert world.attempt.number == 2


def test_the_second_strike_replaces_only_that_pod() -> None:
    world = World.of(workers=2).run().tick(60)
    world.break_rank(1, raised(1, "RuntimeError", "CUDA error: an illegal memory access"))
    world.turn()
    world.run().tick(60)
    world.break_rank(1, raised(1, "RuntimeError", "CUDA error: an illegal memory access"))
    decision = world.turn()
    assert CreatePod(2, ("node-1",)) in decision.actions
    assert (world.status.slots, world.status.failures.avoid_nodes) == ("0,2", ["node-1"])
    assert not any(isinstance(a, DeletePod) for a in decision.actions), (
        "its agent was told to exit and may do so by itself"
    )
    world.tick(30)
    assert DeletePod("digits-1", "uid-2") in world.turn().actions
    world.finish_deletions()
    world.run()
    assert world.attempt.members == "0,2"


def test_more_workers_join_when_they_are_up() -> None:
    world = World.of(workers=2).run().tick(60)
    world.change_spec(workers=4)
    decision = world.turn()
    assert decision.actions == (CreatePod(2), CreatePod(3))
    assert (world.attempt.number, world.attempt.state) == (1, "Running"), "training goes on meanwhile"
    world.run()
    assert (world.attempt.number, world.attempt.members, world.attempt.cause) == (2, "0-3", contract.REASON_SCALED)
    assert world.status.failures.counted == 0


def test_training_goes_on_until_new_workers_are_warm() -> None:
    """Else all ranks would stand still while the new ones import."""
    world = World.of(workers=2).run().tick(60)
    world.change_spec(workers=4)
    world.turn()
    world.start_pods()
    for slot, warming in ((2, False), (3, True)):
        world.sync(slot, warming=warming)
    world.turn()
    assert (world.attempt.number, world.attempt.state) == (1, "Running")
    world.sync(3, warming=False)
    world.turn()
    assert (world.attempt.number, world.attempt.members) == (2, "0-3")


def test_a_new_worker_that_dies_costs_the_running_attempt_nothing() -> None:
    world = World.of(workers=1, failure_policy={"maxFailures": 0}).run().tick(60)
    world.change_spec(workers=2)
    for expected in ("0,2", "0", "0"):
        world.turn()
        world.start_pods()
        last = max(world.pods.values(), key=lambda pod: pod.slot)
        world.fail_pod(last.slot)
        assert world.turn().status.slots == expected, "the second one in a row waits"
    assert (world.attempt.number, world.attempt.state, world.status.failures.counted) == (1, "Running", 0)
    world.tick(1)
    assert world.turn().status.slots == "0,3"


def test_fewer_workers_at_once() -> None:
    world = World.of(workers=3).run().tick(60)
    world.change_spec(workers=2)
    decision = world.turn()
    assert (world.attempt.number, world.attempt.members, world.status.slots) == (2, "0-1", "0-1")
    assert decision.actions == ()
    world.tick(30)
    assert world.turn().actions == (DeletePod("digits-2", "uid-3"),)


def test_a_foreign_service_is_waited_for() -> None:
    world = World.of(workers=1)
    world.service = ServiceView(name="digits", owned=False)
    decision = world.turn()
    assert (decision.actions, decision.status.slots) == ((), "")
    assert decision.requeue_after == timedelta(seconds=10), "nobody tells when it is gone"
    condition = decision.status.condition("ResourcesCreated")
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", contract.REASON_SERVICE_CONFLICT)
    world.service = None
    world.run()


def plain(**fields: object) -> World:
    return World.of(**{"workers": 2, "runtime": {"agent": "Disabled"}, **fields})


def test_plain_mode_commits_the_attempt_before_its_pods() -> None:
    world = plain()
    decision = world.turn()
    assert (world.attempt.number, world.attempt.state, world.attempt.members, world.attempt.world_size) == (
        1,
        "Running",
        "0-1",
        2,
    )
    assert decision.actions == (EnsureService(), CreatePod(0), CreatePod(1))


def test_plain_mode_pods_that_were_not_created_yet_are_no_loss() -> None:
    world = plain()
    world.turn()
    world.lose_pod(1)  # the operator died between the two creates
    assert world.turn().actions == (CreatePod(1),)
    assert world.status.failures.counted == 0


def test_plain_mode_recreates_the_group_when_the_old_one_is_gone() -> None:
    world = plain().run().tick(60)
    world.fail_pod(1)
    world.tick(KUBELETS_WAIT_S)
    decision = world.turn()
    assert decision.actions == (DeletePod("digits-0", "uid-1", 5),)
    assert (world.attempt.state, world.status.slots) == ("Ended", "")
    assert world.turn().why == "waiting for pods of the group before to be gone: digits-0"
    world.finish_deletions()
    assert world.turn().actions == (CreatePod(2), CreatePod(3))
    assert (world.attempt.number, world.attempt.members) == (2, "2-3")
    assert "digits-1" in world.pods, "the finished pod keeps its log"


def test_plain_mode_the_next_group_waits_for_as_long_as_the_old_one_may_take() -> None:
    """Scripts that write a checkpoint on SIGTERM have a long grace period: two groups would write the same folder."""
    world = plain().run().tick(60)
    world.change_spec(workers=1)
    world.turn()
    for slot in (0, 1):
        world.set_pod(slot, gone_by=world.now + timedelta(seconds=300))
    world.tick(290).turn()
    assert (world.attempt.number, world.status.slots) == (1, "")
    world.tick(3600)
    decision = world.turn()
    assert world.attempt.number == 1, "a process that cannot be killed may still write"
    assert "digits-0, digits-1" in decision.why and decision.requeue_after is not None
    world.finish_deletions()
    world.turn()
    assert (world.attempt.number, world.attempt.members) == (2, "2")


def test_plain_mode_a_pod_that_stands_in_the_way_with_no_attempt_is_waited_for_too() -> None:
    world = plain()
    world.pods["digits-7"] = PodView(slot=7, name="digits-7", uid="u7", phase=PodPhase.RUNNING)
    assert world.turn().actions == (EnsureService(), DeletePod("digits-7", "u7"))
    assert world.status.attempt is None
    world.finish_deletions()
    world.turn()
    assert world.attempt.number == 1


@pytest.mark.parametrize("lingers", [False, True])
def test_plain_mode_a_finished_pod_on_its_way_out_is_waited_for_only_while_a_container_runs(lingers: bool) -> None:
    """A group that could begin says so in its first turn, not in the one after it."""
    world = plain()
    world.job = world.job.model_copy(update={"status": TrainJobStatus(slots="0", next_slot=1)})
    done = {"phase": PodPhase.SUCCEEDED, "exit_code": 0, "deleting": True, "lingers": lingers}
    world.pods["digits-0"] = PodView(slot=0, name="digits-0", uid="u0", **done)
    world.turn()
    assert (world.status.attempt is None) == lingers
    before = world.status
    assert world.turn().actions == () and world.status == before


def test_plain_mode_a_dead_node_does_not_hold_the_group_for_ever() -> None:
    world = plain().run().tick(60)
    world.lose_pod(1)
    world.turn()
    assert world.attempt.state == "Ended"
    world.tick(59)
    world.set_pod(0, doubt="its node node-0 is NotReady")
    world.turn()
    assert world.attempt.number == 1
    world.tick(1).turn()
    assert world.attempt.number == 2


def test_plain_mode_a_probe_that_fails_is_no_dead_node() -> None:
    world = plain().run().tick(60)
    world.lose_pod(1)
    world.turn()
    world.set_pod(0, doubt="its readiness probe fails", doubt_since=world.now)
    world.tick(600).turn()
    assert world.attempt.number == 1


def test_plain_mode_scales_by_a_new_group() -> None:
    world = plain().run().tick(60)
    world.change_spec(workers=1)
    assert world.turn().actions == (DeletePod("digits-0", "uid-1"), DeletePod("digits-1", "uid-2"))
    world.finish_deletions()
    world.turn()
    assert (world.attempt.members, world.attempt.cause, world.status.failures.counted) == (
        "2",
        contract.REASON_SCALED,
        0,
    )


def test_finished_pods_of_earlier_slots_are_pruned_but_for_the_last_few() -> None:
    world = World.of(workers=2, failure_policy={"maxFailures": -1, "noProgressAttempts": 0}).run()
    for _ in range(12):
        world.tick(60).fail_pod(max(parse_slots(world.attempt.members)), 1)
        world.turn()
        world.run()
        world.finish_deletions()
    kept = sorted(pod.slot for pod in world.pods.values() if pod.phase is PodPhase.FAILED)
    assert kept == [9, 10, 11, 12][-len(kept) :] and len(kept) <= KEPT_FINISHED + 1
    assert world.status.last_failure is not None and world.status.last_failure.pod in world.pods
    assert is_steady(world)


def test_pods_that_were_sent_home_are_pruned_before_those_that_tell_of_a_failure() -> None:
    world = World.of(workers=1).run()
    for slot, code in ((20, 1), (21, contract.EXIT_REMOVED), (22, contract.EXIT_REMOVED), (23, 0), (24, 7)):
        phase = PodPhase.FAILED if code else PodPhase.SUCCEEDED
        world.pods[f"digits-{slot}"] = PodView(
            slot=slot, name=f"digits-{slot}", uid=f"u{slot}", phase=phase, exit_code=code
        )
    world.turn()
    assert {pod.slot for pod in world.pods.values() if pod.deleting} == {21, 22}


def test_the_failed_attempts_members_and_the_first_causes_pod_stay() -> None:
    world = World.of(workers=8, failure_policy={"maxFailures": 0}, pod_cleanup="Running").run().tick(60)
    for slot in range(8):
        world.fail_pod(slot, 1)
    world.turn()
    assert world.status.holds("Failed")
    world.tick(3600).turn()
    assert not any(pod.deleting for pod in world.pods.values())


@pytest.mark.parametrize("change", [{"suspend": True}, {"workers": 1}])
def test_workers_that_were_told_to_leave_go_also_when_they_ended_in_time(change: dict[str, object]) -> None:
    world = World.of(workers=3).run()
    world.change_spec(**change)
    world.settle()
    gone = {0, 1, 2} if "suspend" in change else {1, 2}
    for slot in gone:
        world.fail_pod(slot, contract.EXIT_REMOVED)
    world.turn()
    assert {pod.slot for pod in world.pods.values() if pod.deleting} == gone


def test_a_lost_workers_sidecar_does_not_keep_its_node() -> None:
    world = World.of(workers=2).run().tick(60)
    world.fail_pod(1, 137, lingers=True)
    world.turn()
    world.settle()
    assert world.pod(1).deleting and not world.pod(0).deleting
    world.finish_deletions()
    world.run()
    assert world.attempt.members == "0,2"


def test_plain_mode_a_sidecar_does_not_hold_the_next_group() -> None:
    world = World.of(workers=2, runtime={"agent": "Disabled"}).run().tick(60)
    world.fail_pod(1, 1, lingers=True)
    world.tick(KUBELETS_WAIT_S)
    world.settle()
    assert world.pod(0).deleting and world.pod(1).deleting
    world.finish_deletions()
    world.run()
    assert world.attempt.members == "2-3"


def test_while_pods_are_refused_one_create_finds_out_when_there_is_room() -> None:
    world = World.of(workers=64)
    world.turn()
    for slot in range(2, 64):
        world.lose_pod(slot)
    world.refusals = ("pods is forbidden: exceeded quota: pods, requested: pods=1, used: pods=2, limited: pods=2",)
    assert [action.slot for action in world.turn().actions if isinstance(action, CreatePod)] == [2]
    world.refusals = ()
    assert len(world.turn().actions) == 61, "the rest follows as soon as one could be made"


def test_plain_mode_a_rank_that_has_finished_stays_finished_when_its_pod_is_removed() -> None:
    """By the pod garbage collector, with its node, by hand: the others train on."""
    world = plain().run().tick(60)
    world.set_pod(1, phase=PodPhase.SUCCEEDED, exit_code=0, finished_at=world.now)
    world.turn()
    assert world.attempt.succeeded == "1"
    world.set_pod(1, deleting=True)
    world.turn()
    world.lose_pod(1)
    world.tick(60)
    assert (world.turn().actions, world.attempt.state, world.status.failures.counted) == ((), "Running", 0)
    assert (world.status.workers.ready, world.status.condition("ResourcesCreated").status) == (2, "True")  # type: ignore[union-attr]
    assert is_steady(world)
    world.set_pod(0, phase=PodPhase.SUCCEEDED, exit_code=0, finished_at=world.now)
    world.turn()
    assert world.status.holds("Complete")


def test_plain_mode_who_finished_in_an_earlier_group_has_not_finished_in_the_next() -> None:
    world = plain().run().tick(60)
    world.set_pod(1, phase=PodPhase.SUCCEEDED, exit_code=0, finished_at=world.now)
    world.turn()
    world.fail_pod(0)
    world.turn()
    world.finish_deletions()
    world.run()
    assert (world.attempt.members, world.attempt.succeeded) == ("2-3", "")


def test_plain_mode_a_container_that_the_kubelet_starts_again_is_waited_for() -> None:
    world = plain(workers=1).run().tick(60)
    world.set_pod(0, phase=PodPhase.PENDING, crashing=True, restarts=3, reason="CrashLoopBackOff", exit_code=1)
    decision = world.turn()
    assert (world.attempt.number, world.attempt.state) == (1, "Ended")
    assert decision.actions == (DeletePod("digits-0", "uid-1", 5),)
    world.finish_deletions()
    world.turn()
    assert (world.attempt.number, world.attempt.members) == (2, "1")


@pytest.mark.parametrize("known", ["by this leader", "by none", "this leader makes them"])
def test_plain_mode_a_member_that_was_there_before_all_had_a_node_is_not_made_again(known: str) -> None:
    """What the others have met is gone with it. Of what the leader before has made a new one knows nothing."""
    world = World.of(workers=3, runtime={"agent": "Disabled"})
    world.turn()
    world.refusals = None if known == "by none" else ()
    pod = world.pod(0)
    world.schedule(1)
    world.set_pod(1, phase=PodPhase.RUNNING)
    del world.pods["digits-0"]
    if known == "by this leader":
        world.went = {0: pod}
    world.turn()
    again = known == "this leader makes them"
    assert ("digits-0" in world.pods) == again and (
        world.attempt.state == "Running" and world.attempt.number == 1
    ) == again
    assert world.status.failures.counted == int(known == "by this leader")


def test_plain_mode_a_new_leader_makes_the_pods_of_an_attempt_of_which_none_runs() -> None:
    world = World.of(workers=3, runtime={"agent": "Disabled"})
    world.turn()
    world.refusals = None
    del world.pods["digits-0"]
    world.turn()
    assert "digits-0" in world.pods and world.attempt.number == 1


def test_new_pods_keep_away_from_nodes_on_which_other_jobs_suffered_and_it_is_told_once() -> None:
    world = World.of(workers=2)
    world.job = world.job.model_copy(
        update={"status": world.status.model_copy(update={"failures": Failures(avoid_nodes=["mine"])})}
    )
    told = (("a", "Hang"), ("c", "PodLost"))
    world.marks = tuple(Mark(node, world.now, job, why) for node in ("mine", "theirs") for job, why in told)
    decision = world.turn()
    assert {action.avoid_nodes for action in decision.actions if isinstance(action, CreatePod)} == {("mine", "theirs")}
    (event,) = [event for event in decision.events if event.reason == contract.REASON_BAD_NODE]
    assert event.type == "Warning" and "theirs: " not in event.message and "mine" not in event.message
    assert "theirs, until" in event.message and "a (Hang), c (PodLost)" in event.message
    assert not [event for event in world.turn().events if event.reason == contract.REASON_BAD_NODE]


def test_the_pod_of_the_job_that_makes_a_node_bad_keeps_away_from_it_too() -> None:
    """Its own failure and another job's: the replacement is made in the turn that finds it."""
    world = World.of(workers=2).run().tick(60)
    node = world.pod(1).node
    assert node is not None
    world.marks = (Mark(node, world.now, "another", contract.REASON_HANG),)
    world.went = {1: world.pod(1)}
    world.lose_pod(1)
    decision = world.turn()
    assert [action.avoid_nodes for action in decision.actions if isinstance(action, CreatePod)] == [(node,)]
    assert [(each.node, each.reason) for each in world.status.suspects] == [(node, contract.REASON_POD_LOST)]


def test_what_breaks_by_the_scripts_own_fault_says_nothing_of_its_node() -> None:
    world = World.of(workers=2).run().tick(60)
    world.break_rank(1, raised(1, "ValueError"))
    world.turn()
    assert world.status.last_failure is not None and world.status.suspects == []


def plain_group_of_which_one_was_lost() -> World:
    """Both members have run; one is gone, the other one is removed."""
    world = plain().run().tick(10)
    world.lose_pod(1)
    world.turn()
    world.finish_deletions()
    assert world.attempt.state == "Ended" and not world.pods
    return world


@pytest.mark.parametrize("agent", ["Disabled", "auto"])
def test_plain_mode_the_next_group_waits_for_a_create_that_was_not_answered(agent: str) -> None:
    """It may take effect long after nobody expects it any more, beside whatever trains by then."""
    world = plain_group_of_which_one_was_lost()
    world.change_spec(runtime=world.job.spec.runtime.model_copy(update={"agent": agent}))
    world.creates_land_until = world.now + seconds(40)
    for _ in range(3):
        decision = world.turn()
        world.start_pods()
        world.sync_all()
    assert world.attempt.number == 1
    assert "may still come" in decision.why and decision.requeue_after == seconds(40)
    world.tick(40).run()
    assert world.attempt.number == 2


def test_plain_mode_a_new_leader_waits_for_creates_of_the_one_before_that_it_has_not_heard_of() -> None:
    world = plain()
    world.turn()
    world.listening_since = world.tick(5).now
    world.tick(5)
    world.start_pods()
    world.turn()
    world.fail_pod(0)
    world.tick(5).turn()
    world.pods.clear()
    assert world.attempt.running_at is not None
    decision = world.turn()
    assert world.attempt.number == 1 and "may still come" in decision.why
    world.tick(49).turn()
    assert world.attempt.number == 1, "until a minute after this leader began"
    world.tick(1).turn()
    assert world.attempt.number == 2


def test_plain_mode_a_new_leader_begins_at_once_where_all_pods_ran_long_before() -> None:
    world = plain().run().tick(100)
    world.listening_since = world.now
    world.tick(5).lose_pod(1)
    world.turn()
    world.finish_deletions()
    world.turn()
    assert world.attempt.number == 2
