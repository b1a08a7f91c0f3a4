"""Conditions, phase, counts, and the size of the object."""

from __future__ import annotations

import json

import pytest

from support.core import T0, World, ended, is_steady, raised, seconds
from trainjob_api import contract
from trainjob_api.contract import CheckpointReport, ProgressReport
from trainjob_api.v1alpha1 import Condition, TrainJobStatus
from trainjob_operator.core.ends.silence import SILENT_S
from trainjob_operator.core.model import PodPhase

ALL = [
    "Suspended",
    "ResourcesCreated",
    "PodsScheduled",
    "WorkersReady",
    "Progressing",
    "Degraded",
    "Complete",
    "Failed",
]


def said(world: World, type_: str) -> tuple[str, str]:
    condition = world.status.condition(type_)
    assert condition is not None
    return condition.status, condition.reason


@pytest.mark.parametrize("fields", [{}, {"suspend": True}, {"runtime": {"agent": "Disabled"}}, {"template": {}}])
def test_all_conditions_are_there_from_the_first_turn(fields: dict[str, object]) -> None:
    world = World.of(**fields)
    world.turn()
    assert [condition.type for condition in world.status.conditions] == ALL


def test_the_way_to_running() -> None:
    world = World.of(workers=2)
    world.turn()
    assert (world.status.phase, said(world, "ResourcesCreated")) == ("Pending", ("False", contract.REASON_CREATING))
    world.tick(5).turn()
    assert said(world, "ResourcesCreated") == ("True", contract.REASON_CREATED)
    assert said(world, "PodsScheduled") == ("False", contract.REASON_UNSCHEDULED)
    world.start_pods()
    world.tick(10).turn()
    assert (world.status.phase, said(world, "PodsScheduled")) == ("Starting", ("True", contract.REASON_SCHEDULED))
    assert said(world, "WorkersReady") == ("False", contract.REASON_NOT_READY)
    world.sync_all()
    world.turn()
    assert said(world, "WorkersReady") == ("True", contract.REASON_READY)
    assert said(world, "Progressing") == ("True", contract.REASON_STARTING)
    world.sync_all()
    world.turn()
    assert (world.status.phase, said(world, "Progressing")) == ("Running", ("True", contract.REASON_RUNNING))
    assert (world.status.workers.ready, world.status.workers.desired, world.status.selector) == (
        2,
        2,
        "trainjob.dev/job=digits",
    )
    assert is_steady(world.tick(30))


def test_the_usual_steps_of_a_start_are_written_with_what_must_be_or_ever_more_rarely() -> None:
    world = World.of(workers=3)
    world.turn()
    written = []
    for _ in range(200):
        before = world.status
        world.tick(1)
        if world.now == T0 + seconds(2):
            world.schedule(0, 1, 2)
        for slot in range(3):
            if world.now == T0 + seconds(10 * (slot + 1)):
                world.set_pod(slot, phase=PodPhase.RUNNING, ready=True)
                if slot < 2:
                    world.sync(slot)
        decision = world.turn()
        if world.status != before:
            written.append((int((world.now - T0).total_seconds()), world.status.phase, world.status.workers.summary))
        elif world.status.workers.ready < 2 <= len(world.agents):
            assert decision.requeue_after is not None, "what was put off is not forgotten"
    assert written == [(5, "Starting", "0/3"), (15, "Starting", "1/3"), (45, "Starting", "2/3")]


@pytest.mark.parametrize("fields", [{"startup_deadline_seconds": 600}, {"runtime": {"agent": "Disabled"}}])
def test_when_a_rule_reads_it_the_moment_of_scheduling_is_written_at_once(fields: dict[str, object]) -> None:
    world = World.of(workers=2, **fields)
    world.turn()
    world.tick(1).schedule(0, 1)
    world.turn()
    assert world.status.timing.scheduled_at == T0 + seconds(1)


def test_what_is_unusual_is_written_at_once_and_so_is_its_end() -> None:
    world = World.of(workers=2)
    world.turn()
    world.set_pod(1, reason="Unschedulable", message="0/3 nodes have a GPU")
    world.tick(1).turn()
    assert said(world, "PodsScheduled") == ("False", contract.REASON_UNSCHEDULABLE)
    world.schedule(0, 1)
    world.tick(1).turn()
    assert said(world, "PodsScheduled") == ("True", contract.REASON_SCHEDULED)


def test_transition_times_change_with_the_status_alone() -> None:
    world = World.of(workers=2)
    world.turn()
    world.tick(5).start_pods()
    world.turn()
    scheduled = world.status.condition("PodsScheduled")
    assert scheduled is not None and scheduled.last_transition_time == T0 + seconds(5)
    failed = world.status.condition("Failed")
    assert failed is not None and failed.last_transition_time == T0
    world.tick(5).change_spec(workers=2)
    world.turn()
    scheduled = world.status.condition("PodsScheduled")
    assert scheduled is not None
    assert (scheduled.last_transition_time, scheduled.observed_generation) == (T0 + seconds(5), 2)


def test_the_schedulers_and_the_kubelets_word_are_passed_on() -> None:
    world = World.of(workers=2)
    world.turn()
    world.set_pod(1, reason="Unschedulable", message="0/3 nodes have a GPU")
    world.turn()
    condition = world.status.condition("PodsScheduled")
    assert (
        condition is not None
        and condition.message == "0 of 2 pods have a node; digits-1: Unschedulable: 0/3 nodes have a GPU"
    )
    world.set_pod(1, scheduled=True, reason="ImagePullBackOff", message="no such image")
    world.turn()
    condition = world.status.condition("WorkersReady")
    assert condition is not None and "digits-1: ImagePullBackOff: no such image" in condition.message


def test_phases_after_a_failure() -> None:
    world = World.of(workers=2, failure_policy={"maxFailures": 1}).run().tick(60)
    world.lose_pod(1)
    world.turn()
    assert world.status.phase == "Restarting"
    world.run()
    assert world.status.phase == "Running"
    world.break_rank(0, raised(0, "ValueError", "bad"))
    world.turn()
    assert world.status.phase == "Failed"
    assert said(world, "Failed") == ("True", contract.REASON_LIMIT)
    assert said(world, "Complete") == ("False", contract.REASON_FINISHED)


def test_degraded_by_an_agents_warning() -> None:
    world = World.of(workers=2).run()
    world.sync(1, warning="uploads fail: disk full")
    world.turn()
    assert said(world, "Degraded") == ("True", contract.REASON_WARNING)
    world.sync(1, warning=None)
    world.turn()
    assert said(world, "Degraded") == ("False", contract.REASON_HEALTHY)


def test_degraded_by_checkpoints_that_do_not_reach_storage_comes_before_other_warnings() -> None:
    world = World.of(workers=2).run()
    world.sync(
        0, warning="the history cannot be written", checkpoint_trouble="Checkpoint 1-1-3 cannot be stored: disk full"
    )
    world.turn()
    assert said(world, "Degraded") == ("True", contract.REASON_CHECKPOINT_FAILING)
    world.sync(0, warning="the history cannot be written", checkpoint_trouble=None)
    world.turn()
    assert said(world, "Degraded") == ("True", contract.REASON_WARNING)


def test_silence_of_all_agents_is_told_and_nothing_else() -> None:
    world = World.of(workers=2).run()
    world.turn()
    world.mute = {0, 1}
    assert world.tick(SILENT_S).turn().requeue_after == seconds(10), "a third of the silence, for a witness"
    world.tick(60 - SILENT_S)
    decision = world.turn()
    assert said(world, "Degraded") == ("True", contract.REASON_UNREACHABLE)
    assert (decision.actions, world.attempt.state) == ((), "Running")
    world.sync(1)
    world.turn()
    assert said(world, "Degraded") == ("False", contract.REASON_HEALTHY)


def test_a_restarted_operator_changes_nothing_while_agents_come_back() -> None:
    world = World.of(workers=2).run().tick(600)
    world.sync_all()
    world.turn()
    world.agents.clear()
    world.listening_since = world.now
    assert is_steady(world.tick(5))


def test_back_off_is_told() -> None:
    world = World.of(workers=1, failure_policy={"maxFailures": -1}).run()
    for _ in range(2):
        world.tick(1).break_rank(0, ended(0, contract.END_DAMAGED))
        world.turn()
        if world.attempt.state == "Running":
            world.run()
    assert said(world, "Degraded") == ("True", contract.REASON_BACK_OFF)
    assert said(world, "Progressing") == ("False", contract.REASON_BACK_OFF)


def test_an_invalid_spec_makes_no_pods_and_says_why() -> None:
    world = World.of(template={"spec": {"containers": []}})
    decision = world.turn()
    assert decision.actions == ()
    condition = world.status.condition("ResourcesCreated")
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", contract.REASON_INVALID_SPEC)
    assert "containers" in condition.message
    assert (world.status.slots, world.status.phase) == ("", "Pending")
    assert is_steady(world)


def test_a_spec_that_becomes_invalid_stops_nothing_that_runs() -> None:
    world = World.of(workers=2).run().tick(60)
    world.change_spec(template={})
    assert world.turn().actions == ()
    assert world.attempt.state == "Running"
    world.sync(0, completed=True)
    world.turn()
    assert world.status.holds("Complete")


def test_the_object_stays_small_at_512_ranks() -> None:
    world = World.of(
        workers=512, processes_per_worker=1, failure_policy={"maxFailures": -1, "noProgressAttempts": 0}
    ).run()
    text = "é" * 5000
    for turn in range(14):
        world.tick(60)
        metrics = {f"{i}{'metric' * 40}": 0.1234567890123456 for i in range(40)}
        checkpoint = CheckpointReport(id=f"1-{turn}-{turn}", uri="/" + "u" * 5000, time=0.0, bytes=2**40, step=turn)
        progress = ProgressReport(position=turn, step=turn, metrics=metrics)
        leader = min(pod.slot for pod in world.pods.values() if not pod.deleting)
        world.sync(
            leader,
            progress=progress,
            latest=checkpoint,
            best=checkpoint,
            checkpoint_count=9,
            warning=text,
            resumed_from="/" + "r" * 5000,
        )
        world.turn()
        slots = [pod.slot for pod in world.pods.values() if not pod.deleting]
        for slot in slots[turn :: 14 if turn < 12 else 2]:
            world.lose_pod(slot)
        live = [pod.slot for pod in world.pods.values()]
        world.break_rank(
            live[-1], {**raised(1, "E" * 3000, text), "error": {"type": "E", "message": text, "traceback": text}}
        )
        world.turn()
        for action_slot in live[:3]:
            world.set_pod(action_slot, node="n" * 253)
        world.run()
    document = {"metadata": {"name": "digits"}, "status": world.status.to_json()}
    assert len(world.status.history) == 10
    size = len(json.dumps(document, ensure_ascii=False).encode())
    assert size < 32 * 1024


def test_what_a_later_version_wrote_into_status_is_no_trouble() -> None:
    """Replicas of two versions lead in turn while the operator is upgraded or rolled back."""
    world = World.of(workers=1).run()
    written = world.status.to_json()
    written |= {"elastic": {"min": 2}, "attempt": {**written["attempt"], "prefork": True}}
    assert TrainJobStatus.model_validate(written) == world.status


def test_conditions_of_others_are_kept() -> None:
    world = World.of(workers=1).run()
    theirs = Condition(type="QuotaReserved", status="True", reason="Admitted", last_transition_time=T0)
    conditions = [theirs, *world.status.conditions]
    world.job = world.job.model_copy(update={"status": world.status.model_copy(update={"conditions": conditions})})
    world.tick(60).break_rank(0, raised(0, "ValueError"))
    world.turn()
    assert world.status.condition("QuotaReserved") == theirs and len(world.status.conditions) == 9
    assert is_steady(world)
    many = [theirs.model_copy(update={"type": f"Type{n}"}) for n in range(16)]
    world.job = world.job.model_copy(update={"status": world.status.model_copy(update={"conditions": many})})
    world.turn()
    assert len(world.status.conditions) == 16, "more are refused by the API server"
