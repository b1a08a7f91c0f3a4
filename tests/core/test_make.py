"""An attempt knows what it was made of: edits take effect at the next start, and no start is mixed."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from support.core import TEMPLATE, World, is_steady, make_job, make_spec, raised
from trainjob_api import contract
from trainjob_api.v1alpha1 import CheckpointSpec, FailurePolicy, Rendezvous, Runtime
from trainjob_operator.core import make
from trainjob_operator.core.ends.plain_ends import KUBELETS_WAIT_S
from trainjob_operator.core.model import CreatePod, DeletePod, PodPhase
from trainjob_operator.core.pods.naming import parse_slots

STORED = {"checkpoint": {"storage": "/aaa"}}
OTHER = CheckpointSpec(storage="/bbb")
PLAIN = Runtime(agent="Disabled")


def new_template() -> dict[str, Any]:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["containers"][0]["image"] = "NEW"
    return template


def makes(world: World) -> set[str | None]:
    """What the living pods of the newest attempt were made of."""
    return {world.pod(slot).make for slot in parse_slots(world.attempt.members)}


# --- What it is a digest of -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "edit",
    [
        {"template": new_template()},
        {"checkpoint": OTHER},
        {"rendezvous": Rendezvous(port=30000)},
        {"processes_per_worker": 2},
        {"runtime": PLAIN},
    ],
    ids=lambda edit: next(iter(edit)),
)
def test_what_makes_a_pod_makes_another_make(edit: dict[str, Any]) -> None:
    spec = make_spec()
    assert make.of(spec.model_copy(update=edit)) != make.of(spec)


@pytest.mark.parametrize(
    "edit",
    [{"workers": 4}, {"suspend": True}, {"failure_policy": FailurePolicy(max_failures=7)}, {"pod_cleanup": "All"}],
)
def test_what_no_pod_knows_makes_no_other_make(edit: dict[str, Any]) -> None:
    assert make.of(make_spec().model_copy(update=edit)) == make.of(make_spec())


def test_what_is_left_out_and_its_default_are_the_same_and_so_is_the_order_of_keys() -> None:
    """A later version that knows more fields must not take the pods of a running job for outdated."""
    turned = {"spec": {"containers": [dict(reversed(TEMPLATE["spec"]["containers"][0].items()))]}}
    spelled_out = make_spec(
        template=turned,
        rendezvous={"backend": "auto", "port": 29500},
        checkpoint={"resumeFrom": "auto", "keep": None},
        runtime={"agent": "auto"},
    )
    assert make.of(spelled_out) == make.of(make_spec()) == "46aa7d14-44136fa3", (
        "the same in each version of the operator"
    )


def test_it_is_a_label_value_and_tells_the_mode() -> None:
    plain = make.of(make_spec(runtime={"agent": "Disabled"}))
    assert make.is_plain(plain) and not make.is_plain(make.of(make_spec())) and len(plain) <= 63


# --- Edits while an attempt runs --------------------------------------------------------------------------------------


def test_an_edit_disturbs_nothing_that_runs_and_is_told() -> None:
    world = World.of(workers=2, **STORED).run().tick(60)
    made_of = world.attempt.make
    world.change_spec(checkpoint=OTHER)
    decision = world.turn()
    assert (world.attempt.number, world.attempt.state, world.attempt.make) == (1, "Running", made_of)
    assert decision.actions == () and is_steady(world)
    progressing = world.status.condition("Progressing")
    assert progressing is not None and "at the next start" in progressing.message


@pytest.mark.parametrize("edit", [{"checkpoint": OTHER}, {"processes_per_worker": 2}], ids=["storage", "processes"])
@pytest.mark.parametrize("broken", ["pod", "rank"])
def test_after_an_edit_the_next_start_is_of_new_pods_alone(edit: dict[str, Any], broken: str) -> None:
    world = World.of(workers=2, **STORED).run().tick(60)
    world.change_spec(**edit)
    world.turn()
    if broken == "pod":
        world.lose_pod(1)
    else:
        world.break_rank(1, raised(1, "ValueError"))
    decision = world.turn()
    assert world.attempt.state == "Ended" and world.status.slots == "2-3"
    assert [action.slot for action in decision.actions if isinstance(action, CreatePod)] == [2, 3]
    assert "SpecChanged" in [event.reason for event in decision.events]
    world.tick(31).turn()
    world.finish_deletions()
    world.run()
    assert (world.attempt.number, world.attempt.members) == (2, "2-3")
    assert makes(world) == {world.attempt.make} == {make.of(world.job.spec)}
    assert world.attempt.world_size == (4 if "processes_per_worker" in edit else 2)


def test_a_suspension_between_two_looks_is_a_suspension() -> None:
    world = World.of(workers=2, **STORED).run().tick(60)
    world.change_spec(suspend=True, template=new_template())
    world.change_spec(suspend=False)
    world.turn()
    assert (world.attempt.state, world.attempt.end_cause) == ("Ended", contract.REASON_SUSPENDED)
    world.tick(31).turn()
    world.finish_deletions()
    world.run()
    assert (world.attempt.number, world.attempt.cause) == (2, contract.REASON_RESUMED)
    assert makes(world) == {make.of(world.job.spec)} and world.status.failures.counted == 0


def test_a_suspension_without_an_edit_that_nobody_saw_changes_nothing() -> None:
    world = World.of(workers=2).run().tick(60)
    world.change_spec(suspend=True)
    world.change_spec(suspend=False)
    world.turn()
    assert (world.attempt.number, world.attempt.state) == (1, "Running")


def test_workers_of_a_job_that_grows_after_an_edit_join_nobody_of_another_make() -> None:
    world = World.of(workers=2, **STORED).run().tick(60)
    world.change_spec(checkpoint=OTHER, workers=3)
    for _ in range(8):
        world.turn()
        world.start_pods()
        world.sync_all()
        world.tick(10).finish_deletions()
        assert world.attempt.state == "Ended" or len(makes(world)) == 1
    assert (world.attempt.workers, makes(world)) == (3, {make.of(world.job.spec)})


def test_pods_that_wait_for_their_start_are_made_anew() -> None:
    world = World.of(workers=2, **STORED)
    world.turn()
    world.change_spec(checkpoint=OTHER)
    decision = world.turn()
    assert [type(action) for action in decision.actions] == [CreatePod, CreatePod, DeletePod, DeletePod]
    world.finish_deletions()
    world.run()
    assert (world.attempt.members, makes(world)) == ("2-3", {make.of(world.job.spec)})


def test_an_edit_that_cannot_be_made_takes_nothing_away() -> None:
    world = World.of(workers=2, **STORED).run().tick(60)
    world.change_spec(checkpoint=CheckpointSpec(storage="bbb"))
    world.break_rank(1, raised(1, "ValueError"))
    world.settle()
    assert world.status.slots == "0-1" and not any(pod.deleting for pod in world.pods.values())


# --- The mode ---------------------------------------------------------------------------------------------------------


def test_agents_are_heard_to_the_end_of_their_attempt_though_the_next_is_to_be_without() -> None:
    world = World.of(workers=2, **STORED).run().tick(60)
    world.change_spec(runtime=PLAIN)
    world.turn()
    assert (world.attempt.state, world.turn().actions) == ("Running", ())
    for slot in (0, 1):
        world.sync(slot, completed=True)
    world.turn()
    assert world.status.holds("Complete")


def test_the_group_without_agents_begins_when_the_workers_with_agents_are_gone() -> None:
    world = World.of(workers=2, **STORED).run().tick(60)
    world.change_spec(runtime=PLAIN)
    world.turn()
    world.break_rank(1, raised(1, "ValueError"))
    world.turn()
    assert (world.attempt.number, world.status.slots) == (1, "")
    world.tick(31).turn()
    assert all(pod.deleting for pod in world.pods.values()) and world.attempt.number == 1
    world.finish_deletions()
    world.turn()
    assert (world.attempt.number, world.attempt.members) == (2, "2-3") and make.is_plain(world.attempt.make)


def test_a_group_without_agents_completes_though_the_next_is_to_have_them() -> None:
    world = World.of(workers=2, runtime={"agent": "Disabled"}).run().tick(60)
    world.change_spec(runtime=Runtime())
    world.turn()
    for slot in (0, 1):
        world.set_pod(slot, phase=PodPhase.SUCCEEDED, exit_code=0)
        world.turn()
    assert world.status.holds("Complete") and world.status.failures.counted == 0


def test_workers_with_agents_begin_when_the_group_without_is_gone() -> None:
    world = World.of(workers=2, runtime={"agent": "Disabled"}).run().tick(60)
    world.change_spec(runtime=Runtime())
    world.fail_pod(1)
    world.tick(KUBELETS_WAIT_S)
    for _ in range(4):
        world.turn()
        world.start_pods()
        world.sync_all()
    assert (world.attempt.number, world.attempt.state) == (1, "Ended"), "digits-0 may still write"
    world.finish_deletions()
    world.run()
    assert (world.attempt.number, world.attempt.members) == (2, "2-3") and not make.is_plain(world.attempt.make)


def test_a_group_without_agents_of_which_a_part_was_made_before_the_edit_is_made_anew() -> None:
    world = World.of(workers=2, runtime={"agent": "Disabled"})
    world.turn()
    world.lose_pod(1)  # its create never took effect: the operator died
    world.change_spec(rendezvous=Rendezvous(port=30000))
    world.turn()
    assert world.attempt.state == "Ended"
    world.finish_deletions()
    world.run()
    assert (world.attempt.members, makes(world)) == ("2-3", {make.of(world.job.spec)})
    assert world.status.failures.counted == 0


# --- Pods and attempts from before there were makes -------------------------------------------------------------------


def without_makes(world: World) -> None:
    """As a version of the operator that knew of no makes left it."""
    for pod in list(world.pods.values()):
        world.set_pod(pod.slot, make=None)
    status = world.status.model_copy(update={"attempt": world.attempt.model_copy(update={"make": None})})
    world.job = world.job.model_copy(update={"status": status})


def test_a_running_job_is_not_restarted_by_an_upgrade_and_its_pods_are_kept() -> None:
    world = World.of(workers=2, **STORED).run().tick(60)
    without_makes(world)
    assert is_steady(world)
    world.break_rank(1, raised(1, "ValueError"))
    world.turn()
    assert (world.attempt.number, world.attempt.members) == (2, "0-1")
    world.run().tick(60)
    world.change_spec(checkpoint=OTHER)
    world.break_rank(1, raised(1, "TypeError"))
    world.turn()
    assert world.status.slots == "2-3", "they were taken for what attempt 2 was made of"


def test_the_make_of_a_job_is_that_of_its_spec() -> None:
    assert make_job().status.attempt is None
    world = World.of(workers=1).run()
    assert world.attempt.make == make.of(world.job.spec) == world.pod(0).make
