"""The rules together: a job's way, told as stories; and each incident counted once."""

from __future__ import annotations

from typing import Any

import pytest

from support.core import T0, World, ended, is_steady, raised, seconds
from trainjob_api import contract
from trainjob_api.v1alpha1 import Runtime
from trainjob_operator.core.decide import decide
from trainjob_operator.core.groups.agents import COMPLETE_WORD_S
from trainjob_operator.core.model import CreatePod, PodPhase
from trainjob_operator.core.turn import LISTEN_S


def failed(world: World) -> tuple[str, str]:
    condition = world.status.condition("Failed")
    assert condition is not None
    assert condition.status == "True"
    return condition.reason, condition.message


def cause(world: World) -> str:
    assert world.status.last_failure is not None
    return world.status.last_failure.reason


def test_from_nothing_to_complete() -> None:
    world = World.of(workers=2).run()
    world.tick(60).sync(0, completed=True, run=1)
    decision = world.turn()
    assert world.status.holds("Complete")
    assert (world.attempt.state, world.attempt.end_cause, world.status.phase) == (
        "Ended",
        contract.REASON_COMPLETED,
        "Complete",
    )
    assert [entry.end_cause for entry in world.status.history] == [contract.REASON_COMPLETED]
    assert [event.reason for event in decision.events] == [contract.REASON_COMPLETED]


def test_completed_counts_when_the_other_pods_are_gone() -> None:
    world = World.of(workers=2).run().tick(60)
    world.lose_pod(1)
    world.sync(0, completed=True)
    world.turn()
    assert world.status.holds("Complete")


def test_the_last_word_of_rank_0s_agent_is_waited_for_but_not_for_long() -> None:
    world = World.of(workers=2).run()
    world.tick(60).sync_all()
    world.sync(1, completed=True)
    decision = world.turn()
    assert not world.status.finished and decision.requeue_after == seconds(COMPLETE_WORD_S)
    world.sync(0, completed=True, progress={"position": 3, "step": 9, "time": 0.0})
    world.turn()
    assert world.status.holds("Complete") and world.status.progress.step == 9


def test_a_silent_leader_does_not_hold_up_completion() -> None:
    world = World.of(workers=2).run()
    world.tick(60).sync_all()
    world.sync(1, completed=True)
    world.tick(COMPLETE_WORD_S).turn()
    assert world.status.holds("Complete")


@pytest.mark.parametrize("gone", [False, True], ids=["silent", "gone with its pod"])
def test_another_workers_word_tells_how_far_a_complete_run_came(gone: bool) -> None:
    world = World.of(workers=2).run()
    world.tick(60).sync_all()
    world.sync(0, progress={"position": 1, "step": 1, "time": 1.0})
    if gone:
        world.lose_pod(0)
    world.sync(1, completed=True, progress={"position": 3, "step": 9, "time": 2.0}, latest={"id": "1-1-3"})
    world.tick(COMPLETE_WORD_S).turn()
    assert world.status.holds("Complete")
    progress, latest = world.status.progress, world.status.checkpoint.latest
    assert (progress.position, progress.step, latest and latest.id) == (3, 9, "1-1-3")


def test_a_checkpoint_of_which_a_last_word_tells_the_name_alone_stays_as_it_was_told() -> None:
    world = World.of(workers=1).run().tick(60)
    checkpoint: Any = {"id": "1-1-3", "step": 9, "uri": "s3://bucket/1-1-3", "time": 1.0, "bytes": 7, "metrics": {}}
    world.sync(0, progress={"position": 3, "step": 9, "time": 2.0}, latest=checkpoint, best=checkpoint)
    world.turn()
    before = world.status.checkpoint
    assert before.latest is not None and before.latest.bytes == 7
    name: Any = {"id": "1-1-3", "bytes": 0, "metrics": {}}
    world.sync(0, completed=True, progress={"position": 3, "step": 9, "time": 2.0}, latest=name, best=None)
    world.turn()
    assert world.status.holds("Complete") and world.status.checkpoint.latest == before.latest
    assert world.status.checkpoint.best == before.best


@pytest.mark.parametrize("speaks", [True, False])
def test_a_new_leader_of_the_operator_waits_for_the_first_word_of_rank_0s_agent(speaks: bool) -> None:
    world = World.of(workers=2).run()
    world.tick(60).agents.pop(0)
    world.listening_since = world.now
    world.sync(1, completed=True)
    decision = world.turn()
    assert not world.status.finished and decision.requeue_after == seconds(LISTEN_S)
    world.mute.add(0)
    world.tick(LISTEN_S / 2).turn()
    assert not world.status.finished
    if speaks:
        world.sync(0, attempt=1, completed=True, progress={"position": 3, "step": 9, "time": 0.0})
    else:
        world.tick(LISTEN_S / 2)
    world.turn()
    assert world.status.holds("Complete") and world.status.progress.step == (9 if speaks else None)


def test_completed_of_another_run_does_not() -> None:
    world = World.of(workers=1).run()
    world.sync(0, completed=True, run=2)
    world.turn()
    assert not world.status.finished


def test_success_of_ranks_waits_for_the_word_that_all_is_stored() -> None:
    world = World.of(workers=2).run()
    for slot in range(2):
        world.break_rank(slot, ended(slot, contract.END_OK, exit_code=0))
    world.turn()
    assert (world.status.finished, world.attempt.state) == (False, "Running")


def test_plain_success_is_every_container() -> None:
    world = World.of(workers=2, runtime={"agent": "Disabled"}).run().tick(60)
    world.set_pod(0, phase=PodPhase.SUCCEEDED, exit_code=0)
    world.turn()
    assert not world.status.finished
    world.set_pod(1, phase=PodPhase.SUCCEEDED, exit_code=0)
    world.turn()
    assert world.status.holds("Complete")


def test_an_incident_is_counted_once() -> None:
    world = World.of(workers=3).run().tick(60)
    world.lose_pod(1)
    world.break_rank(2, raised(2, "DistBackendError", communication=True, at=world.now))
    seen = world.observe()
    world.turn()
    assert world.status.failures.counted == 1
    again = decide(world.observe(), world.now)
    assert again.status.failures.counted == 1
    # The same old look at the pods and agents, after the write.
    stale = type(seen)(job=world.job, pods=seen.pods, service=seen.service, agents=seen.agents)
    assert decide(stale, world.now).status.failures == world.status.failures


def test_an_in_place_restart_is_counted_once() -> None:
    world = World.of(workers=2).run().tick(60)
    world.break_rank(1, raised(1, "ValueError"))
    world.turn()
    assert (world.attempt.number, world.status.failures.counted) == (2, 1)
    assert is_steady(world), "its agents still speak of attempt 1"


def test_a_node_that_takes_its_pods_one_after_another_is_one_failure() -> None:
    world = World.of(workers=4).run().tick(60)
    for slot in (1, 2, 3):
        world.lose_pod(slot)
        world.turn()
    world.fail_pod(0, 137)
    world.turn()
    assert (world.status.failures.counted, world.status.slots) == (1, "4-7")


def test_budget_used_up_names_the_limit_and_the_first_cause() -> None:
    world = World.of(workers=2, failure_policy={"maxFailures": 2, "noProgressAttempts": 0}).run()
    for number, slot in enumerate((0, 1, 0)):
        world.tick(60).break_rank(slot, raised(slot, "ValueError", f"bad shape {number}"))
        world.turn()
        if not world.status.finished:
            world.run()
    reason, message = failed(world)
    assert reason == contract.REASON_LIMIT
    assert "maxFailures is 2" in message
    assert "raised ValueError: bad shape" in message
    assert (cause(world), world.status.failures.counted, world.attempt.number) == (contract.REASON_USER_ERROR, 3, 3)


def test_a_rule_fails_the_job_with_its_first_cause() -> None:
    world = World.of(workers=2, failure_policy={"rules": [{"exitCodes": [42], "action": "Fail"}]}).run().tick(60)
    world.break_rank(1, ended(1, contract.END_EXIT, exit_code=42))
    world.turn()
    assert failed(world)[0] == contract.REASON_RULE
    assert (cause(world), world.status.last_failure and world.status.last_failure.exit_code) == (
        contract.REASON_EXIT,
        42,
    )


def test_what_cannot_start_fails_at_once() -> None:
    world = World.of(workers=2, failure_policy={"maxFailures": -1}).run()
    world.break_rank(
        0, ended(0, contract.END_START, exit_code=1, error={"type": "SyntaxError", "message": "invalid syntax"})
    )
    world.turn()
    assert failed(world) == (
        contract.REASON_START,
        "rank 0 on digits-0 cannot start: SyntaxError: invalid syntax; a restart cannot help",
    )


def test_no_progress_fails_a_job_that_had_reported() -> None:
    world = World.of(workers=3, failure_policy={"maxFailures": -1, "noProgressAttempts": 3}).run().tick(60)
    world.report(1)
    for slot in (1, 2, 1, 0):
        world.tick(60).break_rank(slot, raised(slot, "ValueError"))
        world.turn()
        if not world.status.finished:
            world.tick(31).run()
    assert failed(world)[0] == contract.REASON_NO_PROGRESS
    assert world.attempt.number == 4


def test_damage_is_not_counted_and_backs_off() -> None:
    world = World.of(workers=1, failure_policy={"maxFailures": 0}).run()
    starts = []
    for _ in range(4):
        world.tick(1).break_rank(0, ended(0, contract.END_DAMAGED))
        decision = world.turn()
        starts.append(
            decision.requeue_after.total_seconds() if world.attempt.state == "Ended" and decision.requeue_after else 0
        )
        world.tick(starts[-1]).run()
    assert starts == [0, 1, 2, 4]
    assert (world.status.failures.counted, world.attempt.number) == (0, 5)


def test_a_storage_error_is_counted_and_backs_off() -> None:
    world = World.of(workers=1).run()
    for wait in (0, 1):
        world.tick(60).break_rank(0, ended(0, contract.END_STORAGE))
        world.turn()
        assert (world.attempt.state == "Ended") == (wait > 0)
        world.tick(wait).run()
    assert (world.status.failures.counted, world.status.failures.last_cause) == (2, contract.REASON_STORAGE)


def test_a_long_attempt_ends_the_back_off() -> None:
    world = World.of(workers=1, failure_policy={"maxFailures": -1}).run()
    for _ in range(2):
        world.tick(1).break_rank(0, ended(0, contract.END_LOST))
        world.turn()
        world.tick(1).turn()
        world.tick(30).run()
    world.tick(10).break_rank(0, ended(0, contract.END_LOST))
    world.turn()
    assert world.status.failures.early_in_row == 0


def test_pods_that_end_before_the_start_are_one_failure_a_write() -> None:
    world = World.of(workers=3, failure_policy={"maxFailures": 2})
    world.turn()
    world.start_pods()
    for slot in range(3):
        world.fail_pod(slot, 128, reason="StartError", message="no such command")
    decision = world.turn()
    assert (world.status.failures.counted, world.status.slots, world.status.attempt) == (1, "3-5", None)
    assert decision.actions == (CreatePod(3), CreatePod(4), CreatePod(5))
    world.start_pods()
    world.fail_pod(4)
    world.turn()
    assert (world.status.failures.counted, world.status.slots) == (2, "3,5")
    assert world.status.timing.retry_at == T0 + seconds(1)
    assert world.turn().status.slots == "3,5"
    world.tick(1).turn()
    assert world.status.slots == "3,5-6"
    world.start_pods()
    world.fail_pod(6)
    world.turn()
    assert failed(world)[0] == contract.REASON_LIMIT
    assert cause(world) == contract.REASON_START_FAILED


def test_an_image_in_which_no_agent_can_run_is_not_tried_again() -> None:
    """No Python in it, say: the next pod is of the same image."""
    world = World.of(workers=2, failure_policy={"maxFailures": 3})
    world.turn()
    world.start_pods()
    world.fail_pod(1, contract.EXIT_BAD_CONFIG, message="agent | No Python 3.9 or newer was found in this image")
    world.turn()
    reason, message = failed(world)
    assert (reason, world.status.next_slot) == (contract.REASON_START, 2)
    assert "No Python 3.9 or newer was found in this image" in message and "a restart cannot help" in message


def test_a_preempted_pod_is_replaced_and_not_counted() -> None:
    world = World.of(workers=2, failure_policy={"maxFailures": 0}).run().tick(60)
    world.set_pod(1, deleting=True, disrupted=True)
    assert world.turn().actions == (CreatePod(2),)
    world.finish_deletions()
    world.run()
    assert (world.attempt.number, world.attempt.members, world.attempt.cause) == (2, "0,2", contract.REASON_PREEMPTED)


def test_a_pod_that_is_going_away_is_replaced_without_waiting_for_it() -> None:
    world = World.of(workers=2).run().tick(60)
    world.set_pod(0, deleting=True)
    world.turn()
    world.run()
    assert (world.attempt.members, "digits-0" in world.pods) == ("1-2", True)


def test_history_tells_the_attempts() -> None:
    world = World.of(workers=2, failure_policy={"maxFailures": -1}).run()
    for _ in range(12):
        world.tick(60).break_rank(0, raised(0, "ValueError"))
        world.report(world.attempt.number)
        world.turn()
        world.tick(31).run()
    history = world.status.history
    assert [entry.attempt for entry in history] == list(range(3, 13))
    assert {entry.down_seconds for entry in history} == {0.0}


def test_the_first_turns_say_why() -> None:
    world = World.of(workers=2)
    assert world.turn().why == "waiting for 2 of 2 workers: digits-0, digits-1"
    world.start_pods()
    world.sync_all()
    assert world.turn().why == "attempt 1 begins with 2 workers, 2 ranks (Started)"


@pytest.mark.parametrize("plain", [False, True])
def test_running_is_steady(plain: bool) -> None:
    world = World.of(workers=4, runtime={"agent": "Disabled"} if plain else {}).run()
    for _ in range(10):
        world.tick(20).sync_all()
        assert is_steady(world)


def test_preemptions_are_counted_apart_and_have_a_limit() -> None:
    world = World.of(workers=2, failure_policy={"maxFailures": 0, "maxPreemptions": 1}).run()
    for slot in (1, 2):
        world.tick(60).set_pod(slot, deleting=True, disrupted=True, disruption="PreemptionByScheduler")
        world.turn()
        world.finish_deletions()
        if not world.status.finished:
            world.run()
    reason, message = failed(world)
    assert reason == contract.REASON_PREEMPTION_LIMIT and "2 preemptions, failurePolicy.maxPreemptions is 1" in message
    assert (world.status.failures.counted, world.status.failures.preemptions, cause(world)) == (
        0,
        2,
        contract.REASON_PREEMPTED,
    )
    assert world.status.reason == contract.REASON_PREEMPTED


def test_a_pod_that_crashes_before_the_start_is_a_failed_start() -> None:
    world = World.of(workers=2)
    world.turn()
    world.start_pods()
    world.sync(0)
    world.set_pod(
        1,
        phase=PodPhase.PENDING,
        crashing=True,
        restarts=3,
        reason="CrashLoopBackOff",
        message="no python",
        exit_code=127,
    )
    decision = world.turn()
    assert (world.status.failures.counted, cause(world), world.status.slots) == (1, contract.REASON_START_FAILED, "0,2")
    assert [event.message for event in decision.events] == [
        "digits-1 ended with exit code 127 (CrashLoopBackOff: no python) before training began"
    ]
    assert world.pod(1).deleting


def test_what_agents_of_another_make_said_before_a_group_without_agents_began_does_not_complete_it() -> None:
    world = World.of(workers=1)
    world.turn()
    world.start_pods()
    world.sync(0, completed=True)
    world.set_pod(0, phase=PodPhase.SUCCEEDED, exit_code=0)
    world.change_spec(runtime=Runtime(agent="Disabled"))
    world.turn()
    world.turn()
    assert (world.status.finished, world.attempt.state) == (False, "Running")
