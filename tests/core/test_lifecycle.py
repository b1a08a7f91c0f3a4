"""Suspension, deadlines, the end and what is left after it."""

from __future__ import annotations

import pytest

from support.core import World, ended, is_steady, raised, seconds
from trainjob_api import contract
from trainjob_operator.core.ends.failures import COMMUNICATION_WAIT_S
from trainjob_operator.core.model import CreatePod, DeleteJob, DeletePod, PodPhase


def test_suspend_ends_the_attempt_and_removes_the_pods() -> None:
    world = World.of(workers=2).run().tick(60)
    world.change_spec(suspend=True)
    world.turn()
    assert (world.attempt.state, world.attempt.end_cause, world.status.slots) == (
        "Ended",
        contract.REASON_SUSPENDED,
        "",
    )
    assert (world.status.phase, world.status.holds("Suspended")) == ("Suspended", True)
    assert world.status.timing.active_seconds == 60
    world.tick(30)
    assert world.turn().actions == (DeletePod("digits-0", "uid-1"), DeletePod("digits-1", "uid-2"))
    world.finish_deletions()
    assert is_steady(world)


def test_resume_begins_a_new_attempt_with_new_pods() -> None:
    world = World.of(workers=1).run().tick(60)
    world.change_spec(suspend=True)
    world.turn()
    world.set_pod(0, phase=PodPhase.FAILED, exit_code=contract.EXIT_REMOVED)
    world.tick(1000).turn()
    world.change_spec(suspend=False)
    assert world.turn().actions == (CreatePod(1),)
    world.run()
    assert (world.attempt.number, world.attempt.members, world.attempt.cause) == (2, "1", contract.REASON_RESUMED)
    assert (world.status.failures.counted, world.status.timing.active_seconds) == (0, 60)


def test_suspended_between_two_attempts_the_next_one_resumes() -> None:
    world = World.of(workers=2).run().tick(60)
    world.lose_pod(1)
    world.turn()
    world.change_spec(suspend=True)
    world.tick(30).turn()
    world.finish_deletions()
    world.turn()
    world.change_spec(suspend=False)
    world.run()
    assert (world.attempt.cause, world.status.failures.counted) == (contract.REASON_RESUMED, 1)


@pytest.mark.parametrize("told", [True, False], ids=["the cause comes in", "it never does"])
def test_a_suspension_waits_for_the_cause_of_what_has_broken_before(told: bool) -> None:
    world = World.of(workers=3).run().tick(60)
    broke = world.now
    world.break_rank(2, raised(2, "DistBackendError", communication=True, at=broke))
    world.change_spec(suspend=True)
    decision = world.turn()
    assert (world.attempt.state, world.status.slots, decision.actions) == ("Running", "0-2", ())
    assert (world.status.phase, world.status.holds("Suspended")) == ("Running", False)
    assert decision.requeue_after is not None and decision.requeue_after <= seconds(COMMUNICATION_WAIT_S)
    if told:
        world.break_rank(1, raised(1, "ValueError", "loss is nan", at=broke))
    world.tick(COMMUNICATION_WAIT_S).turn()
    failure = world.status.last_failure
    assert failure is not None and world.status.failures.counted == 1
    assert failure.rank == (1 if told else 2)
    assert (world.attempt.state, world.attempt.end_cause) == ("Ended", contract.REASON_SUSPENDED)
    assert (world.status.phase, world.status.slots) == ("Suspended", "")


def test_a_job_that_is_born_suspended_has_no_pods() -> None:
    world = World.of(workers=2, suspend=True)
    decision = world.turn()
    assert (decision.actions, decision.status.slots, decision.status.phase, decision.status.timing.active_since) == (
        (),
        "",
        "Suspended",
        None,
    )


def test_active_deadline() -> None:
    world = World.of(workers=1, active_deadline_seconds=100).run()
    world.tick(50).sync_all()
    decision = world.turn()
    assert decision.requeue_after is not None
    assert decision.requeue_after.total_seconds() == 50
    world.tick(50).turn()
    failed = world.status.condition("Failed")
    assert failed is not None
    assert (failed.status, failed.reason) == ("True", contract.REASON_DEADLINE)
    assert world.status.last_failure is not None
    assert world.status.last_failure.reason == contract.REASON_DEADLINE
    assert world.attempt.state == "Ended"


def test_suspended_time_does_not_count() -> None:
    world = World.of(workers=1, active_deadline_seconds=100).run()
    world.tick(60).change_spec(suspend=True)
    world.turn()
    world.tick(10_000).turn()
    assert not world.status.finished
    world.change_spec(suspend=False)
    world.run().tick(39).turn()
    assert not world.status.finished
    world.tick(1).turn()
    assert world.status.holds("Failed")


def test_start_up_deadline_runs_from_scheduling_until_ranks_run() -> None:
    world = World.of(workers=2, startup_deadline_seconds=25)
    world.turn()
    world.tick(10_000).turn()
    assert not world.status.finished, "waiting for a node is no failure"
    world.start_pods()
    decision = world.turn()
    assert decision.requeue_after is not None
    assert decision.requeue_after.total_seconds() == 25
    world.sync(0)
    world.tick(25).turn()
    failed = world.status.condition("Failed")
    assert failed is not None
    assert failed.reason == contract.REASON_STARTUP_DEADLINE
    assert "digits-1" in failed.message


def test_start_up_deadline_is_met_by_running_ranks() -> None:
    world = World.of(workers=2, startup_deadline_seconds=60).run()
    world.tick(1000).turn()
    world.agents.clear()
    world.tick(1000).turn()
    assert world.status.phase == "Running"


def test_a_new_leader_waits_for_agents_before_it_calls_a_start_late() -> None:
    world = World.of(workers=1, startup_deadline_seconds=60)
    world.turn()
    world.start_pods()
    world.turn()
    world.tick(59)
    world.listening_since = world.now
    assert not world.tick(5).turn().status.finished
    assert world.tick(25).turn().status.finished


def test_plain_start_up_deadline() -> None:
    world = World.of(workers=1, startup_deadline_seconds=60, runtime={"agent": "Disabled"})
    world.turn()
    world.set_pod(0, scheduled=True, reason="ImagePullBackOff")
    world.turn()
    world.tick(60).turn()
    assert world.status.holds("Failed")


def finished(**fields: object) -> World:
    world = World.of(**{"workers": 2, **fields}).run()
    world.sync(0, completed=True)
    world.turn()
    assert world.status.holds("Complete")
    return world


def test_pods_that_still_run_after_thirty_seconds_are_deleted() -> None:
    world = finished()
    assert is_steady(world.tick(29))
    world.set_pod(0, phase=PodPhase.SUCCEEDED)
    assert world.tick(1).turn().actions == (DeletePod("digits-1", "uid-2"),)
    assert is_steady(world)


@pytest.mark.parametrize(
    ("policy", "at_once", "later"),
    [("All", {"uid-1"}, {"uid-2"}), ("Running", set(), {"uid-2"}), ("None", set(), set())],
)
def test_pod_cleanup(policy: str, at_once: set[str], later: set[str]) -> None:
    world = finished(pod_cleanup=policy)
    world.set_pod(0, phase=PodPhase.SUCCEEDED)
    assert {a.uid for a in world.turn().actions if isinstance(a, DeletePod)} == at_once
    world.finish_deletions()
    assert {a.uid for a in world.tick(30).turn().actions if isinstance(a, DeletePod)} == later


@pytest.mark.parametrize(("policy", "taken"), [("All", True), ("Running", True), ("None", False)])
def test_a_container_beside_the_trainer_that_never_ends(policy: str, taken: bool) -> None:
    world = finished(pod_cleanup=policy, workers=1)
    world.set_pod(0, phase=PodPhase.SUCCEEDED, lingers=True)
    assert not world.tick(29).turn().actions
    assert bool(world.tick(1).turn().actions) is taken


def test_time_to_live() -> None:
    world = finished(ttl_seconds_after_finished=100, pod_cleanup="None")
    decision = world.tick(1).turn()
    assert decision.requeue_after is not None
    assert decision.requeue_after.total_seconds() == 99
    assert world.tick(99).turn().actions == (DeleteJob("job-uid"),)


def test_terminal_stays_terminal() -> None:
    world = finished()
    before = world.status
    world.change_spec(suspend=True, workers=7)
    world.break_rank(1, raised(1, "ValueError"))
    world.lose_pod(0)
    world.tick(5).turn()
    assert world.status == before.model_copy(update={"observed_generation": 2})


def test_a_job_that_is_being_deleted_is_left_alone() -> None:
    world = World.of(workers=2).run()
    world.job = world.job.model_copy(
        update={"metadata": world.job.metadata.model_copy(update={"deletion_timestamp": world.now})}
    )
    world.lose_pod(1)
    decision = world.turn()
    assert (decision.actions, decision.requeue_after) == ((), None)
    assert world.attempt.state == "Running"


def test_active_time_adds_up_over_suspensions() -> None:
    world = World.of(workers=1).run()
    for total in (60, 120):
        world.tick(60).change_spec(suspend=True)
        world.turn()
        assert world.status.timing.active_seconds == total
        world.tick(1000).change_spec(suspend=False)
        world.run()


def test_the_newest_progress_is_kept_when_the_job_is_suspended() -> None:
    world = World.of(workers=1, boundary_timeout_seconds=0).run()
    world.report(1)
    world.turn()
    world.tick(1).report(2)
    world.change_spec(suspend=True)
    world.turn()
    assert world.status.progress.position == 2


@pytest.mark.parametrize("plain", [False, True])
def test_a_person_asks_for_a_restart(plain: bool) -> None:
    world = (
        World.of(workers=2, failure_policy={"maxFailures": 0}, runtime={"agent": "Disabled"} if plain else {})
        .run()
        .tick(60)
    )
    before = dict(world.pods)
    world.ask_restart("2026-01-01T00:00:00Z")
    world.turn()
    for _ in range(3):
        world.finish_deletions()
        world.turn()
        world.start_pods()
        world.sync_all()
    world.turn()
    assert (world.attempt.number, world.attempt.cause, world.attempt.state) == (
        2,
        contract.REASON_RESTART_REQUESTED,
        "Running",
    )
    assert (world.status.restart, world.status.failures.counted) == ("2026-01-01T00:00:00Z", 0)
    assert (set(world.pods) == set(before)) == (not plain), "in place where agents run"
    assert world.turn().status.attempt == world.attempt, "answered once"
    world.ask_restart("again")
    world.turn()
    assert (world.attempt.number, world.status.restart) == (2 if plain else 3, "again")


def test_a_restart_that_was_asked_for_before_the_start_changes_nothing() -> None:
    world = World.of(workers=1)
    world.ask_restart("x" * 500)
    world.run()
    assert (world.attempt.number, world.status.restart) == (1, "x" * contract.RESTART_TOKEN_LIMIT)
    assert is_steady(world)


def test_who_asks_for_a_restart_does_not_wait_for_the_back_off() -> None:
    world = World.of(workers=1, failure_policy={"maxFailures": -1}).run()
    for _ in range(4):
        world.tick(1).break_rank(0, ended(0, contract.END_DAMAGED))
        world.turn()
        if world.status.timing.retry_at is not None:
            break
        world.run()
    assert world.attempt.state == "Ended"
    world.sync_all()
    world.ask_restart("now")
    world.turn()
    assert (world.attempt.state, world.status.timing.retry_at, world.status.failures.early_in_row) == (
        "Running",
        None,
        0,
    )


def test_a_finished_job_is_not_restarted() -> None:
    world = World.of(workers=1).run()
    world.sync(0, completed=True)
    world.turn()
    world.ask_restart("once more")
    assert world.turn().status == world.status and world.status.holds("Complete")


# --- What a table shows -----------------------------------------------------------------------------------------------


def test_a_complete_job_shows_the_workers_that_completed_it() -> None:
    world = World.of(workers=2).run()
    world.sync(0, completed=True)
    world.turn()
    assert world.status.phase == "Complete"
    assert (world.status.workers.summary, world.status.workers.ready, world.status.workers.desired) == ("2/2", 0, 2)


def test_a_failed_and_a_suspended_job_show_that_nothing_is_up() -> None:
    failed = World.of(workers=2, failure_policy={"maxFailures": 0}).run()
    failed.break_rank(0, ended(0, contract.END_EXIT, exit_code=1))
    failed.turn()
    assert (failed.status.phase, failed.status.workers.summary) == ("Failed", "0/2")
    suspended = World.of(workers=2).run()
    suspended.change_spec(suspend=True)
    suspended.turn()
    assert (suspended.status.phase, suspended.status.workers.summary) == ("Suspended", "0/2")


def test_a_cancelled_job_says_so_and_is_treated_like_a_suspended_one() -> None:
    world = World.of(workers=2).run()
    world.annotate({contract.ANNOTATION_CANCELLED: "2026-01-01T12:00:00Z"})
    assert is_steady(world), "the mark alone is nothing"
    world.change_spec(suspend=True)
    decision = world.turn()
    condition = world.status.condition("Suspended")
    assert condition is not None and (condition.status, condition.reason) == ("True", contract.REASON_CANCELLED)
    assert "tj resume digits" in condition.message
    assert (world.status.phase, world.status.reason, world.attempt.end_cause) == (
        "Cancelled",
        contract.REASON_CANCELLED,
        contract.REASON_SUSPENDED,
    )
    assert [event.reason for event in decision.events] == [contract.REASON_CANCELLED]
    world.annotate({})
    world.change_spec(suspend=False)
    world.finish_deletions()
    world.run()
    assert (world.status.phase, world.attempt.cause) == ("Running", contract.REASON_RESUMED)


# --- Init containers --------------------------------------------------------------------------------------------------


def test_an_init_container_that_fails_is_named_with_its_end_and_its_log() -> None:
    world = World.of(workers=2)
    world.turn()
    world.start_pods()
    words = "init container fetch ended with exit code 3: no such bucket"
    world.fail_pod(1, exit_code=None, reason=contract.REASON_INIT_FAILED, message=words, failed_init="fetch")
    decision = world.turn()
    failure = world.status.last_failure
    assert failure is not None and (failure.reason, failure.pod) == (contract.REASON_INIT_FAILED, "digits-1")
    assert failure.message == f"digits-1 could not begin: {words}; its log: kubectl logs -n ml digits-1 -c fetch"
    assert (world.status.failures.counted, world.status.failures.early_in_row) == (1, 1)
    assert ("Warning", contract.REASON_INIT_FAILED) in [(event.type, event.reason) for event in decision.events]


def test_without_agents_an_init_container_that_fails_is_named_too() -> None:
    world = World.of(workers=2, runtime={"agent": "Disabled"})
    world.turn()
    world.start_pods()
    words = "init container fetch ended with exit code 3: no such bucket"
    world.fail_pod(1, exit_code=None, reason=contract.REASON_INIT_FAILED, message=words, failed_init="fetch")
    world.tick(60).turn()
    failure = world.status.last_failure
    assert failure is not None and (failure.reason, failure.pod) == (contract.REASON_INIT_FAILED, "digits-1")
    assert failure.message == f"digits-1 could not begin: {words}; its log: kubectl logs -n ml digits-1 -c fetch"
    assert world.status.failures.counted == 1


# --- Pods that no node takes ------------------------------------------------------------------------------------------

NO_ROOM = "Pod was rejected: Node didn't have enough resource: cpu, requested: 4000, used: 2000, capacity: 4000"


@pytest.mark.parametrize("agent", ["auto", "Disabled"])
@pytest.mark.parametrize("reason", ["OutOfcpu", "OutOfnvidia.com/gpu", "UnexpectedAdmissionError", "NodeShutdown"])
def test_a_pod_that_its_kubelet_does_not_take_costs_no_failure_and_goes_elsewhere(reason: str, agent: str) -> None:
    world = World.of(workers=2, runtime={"agent": agent}, failurePolicy={"maxFailures": 0})
    world.turn()
    world.start_pods()
    world.fail_pod(1, exit_code=None, reason=reason, message=NO_ROOM, node="node-b")
    decision = world.tick(60).turn()
    failure, books = world.status.last_failure, world.status.failures
    assert not world.status.finished
    assert failure is not None and (failure.reason, failure.node) == (contract.REASON_NODE_REFUSED, "node-b")
    assert failure.message.startswith(f"digits-1 was not taken by the kubelet of its node node-b ({reason}: {NO_ROOM})")
    assert (books.counted, books.preemptions, books.early_in_row) == (0, 1, 1)
    assert books.avoid_nodes == ["node-b"]
    made = [action for action in decision.actions if isinstance(action, CreatePod)]
    made += [action for action in world.tick(60).turn().actions if isinstance(action, CreatePod)]
    assert all(action.avoid_nodes == ("node-b",) for action in made)


@pytest.mark.parametrize(
    ("agent", "said"), [("auto", contract.REASON_START_FAILED), ("Disabled", contract.REASON_POD_FAILED)]
)
def test_a_pod_that_no_node_would_take_counts(agent: str, said: str) -> None:
    """And no exit code is told where there was none."""
    world = World.of(workers=2, runtime={"agent": agent})
    world.turn()
    world.start_pods()
    world.fail_pod(1, exit_code=None, reason="SysctlForbidden", message="forbidden sysctl: kernel.msgmax")
    world.tick(60).turn()
    failure = world.status.last_failure
    assert failure is not None and failure.reason == said
    assert (world.status.failures.counted, world.status.failures.preemptions) == (1, 0)


def test_an_edit_of_a_job_that_is_over_is_answered_once() -> None:
    world = World.of(workers=1).run()
    world.sync(0, completed=True)
    world.turn()
    before = world.status
    world.change_spec(workers=4)
    decision = world.turn()
    assert [event.reason for event in decision.events] == [contract.REASON_FINISHED]
    assert "never runs again" in decision.events[0].message and decision.actions == ()
    assert world.status == before.model_copy(update={"observed_generation": 2})
    assert world.turn().events == () and is_steady(world)


def test_a_job_that_another_controller_manages_is_left_alone() -> None:
    world = World.of(workers=2, managedBy="kueue.x-k8s.io/multikueue")
    decision = world.turn()
    assert (decision.actions, decision.events, decision.requeue_after, world.status.slots) == ((), (), None, "")
    assert decision.why == "spec.managedBy is kueue.x-k8s.io/multikueue: this job is that controller's, and left alone"
    assert is_steady(world)


def test_a_job_that_names_this_operator_is_managed() -> None:
    World.of(workers=1, managedBy=contract.MANAGER).run()
