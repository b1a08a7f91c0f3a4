"""Failed waits for a fresh worker's look at the end record when all workers vanished without a word."""

from __future__ import annotations

import pytest

from support.core import World, ended, raised
from trainjob_api import contract
from trainjob_api.v1alpha1 import CheckpointSpec, Runtime
from trainjob_operator.core.ends.verdict import LOOK_TRIES, LOOK_WITHIN_S
from trainjob_operator.core.instruct import instruct
from trainjob_operator.core.make import as_made, is_plain, of_job
from trainjob_operator.core.model import PodPhase
from trainjob_operator.core.pods.naming import parse_slots

STORED = {"checkpoint": {"storage": "/checkpoints"}, "failure_policy": {"maxFailures": 0}}


def vanished(**fields: object) -> World:
    world = World.of(workers=2, **(STORED | fields)).run().tick(60)
    world.lose_pod(0)
    world.lose_pod(1)
    world.turn()
    return world


def test_the_job_does_not_fail_before_a_fresh_worker_has_looked() -> None:
    world = vanished()
    assert not world.status.finished and world.status.verdict is not None
    assert (world.status.verdict.reason, world.status.failures.counted) == (contract.REASON_LIMIT, 1)
    degraded = world.status.condition("Degraded")
    assert degraded is not None and (degraded.status, degraded.reason) == ("True", contract.REASON_CHECKING)
    assert not world.settle().status.finished


def test_a_container_that_was_started_again_after_all_ranks_had_ended_well_is_no_failure_of_the_job_yet() -> None:
    """Its agent had written the end record, perhaps, and knows nothing any more."""
    world = World.of(workers=2, **STORED).run().tick(60)
    world.sync(1, quiet=True, ranks=(ended(1, contract.END_OK, exit_code=0),))
    world.set_pod(0, restarts=1)
    world.sync(0, boot=2, quiet=True, ranks=(ended(0, contract.END_LOST),))
    world.turn()
    assert not world.status.finished and world.status.verdict is not None
    world.sync(1, checked=1, completed=True, run=1, progress={"position": 3, "step": 9, "time": 2.0})
    world.turn()
    assert world.status.holds("Complete")
    assert (world.status.progress.position, world.status.progress.step) == (3, 9), "as its end record has it"


def test_a_start_that_fails_after_the_only_workers_vanished_does_not_fail_the_job_before_a_look() -> None:
    """Training may have completed, and its end is what the budget has still allowed."""
    world = World.of(workers=1, **{**STORED, "failure_policy": {"maxFailures": 1}}).run().tick(60)
    world.lose_pod(0)
    world.turn()
    assert world.status.failures.counted == 1 and world.status.verdict is None
    world.tick(60)
    world.settle()
    world.set_pod(1, phase=PodPhase.RUNNING)
    world.fail_pod(1, 137)
    world.turn()
    assert not world.status.finished and world.status.verdict is not None
    assert world.status.failures.counted == 2


def test_a_container_that_was_started_again_while_others_trained_fails_the_job_at_once() -> None:
    world = World.of(workers=2, **STORED).run().tick(60).tick(1)
    world.set_pod(0, restarts=1)
    world.sync(0, boot=2, quiet=True, ranks=(ended(0, contract.END_LOST),))
    world.sync(1)
    world.turn()
    assert world.status.holds("Failed")


def test_a_container_that_was_started_again_before_the_others_were_heard_is_no_failure_of_the_job_yet() -> None:
    """All ranks may have ended well by then: the word of the last one is on its way."""
    world = World.of(workers=2, **STORED).run().tick(60).tick(1)
    world.set_pod(0, restarts=1)
    world.sync(0, boot=2, quiet=True, ranks=(ended(0, contract.END_LOST),))
    world.turn()
    assert not world.status.finished and world.status.verdict is not None
    world.sync(1, quiet=True, ranks=(ended(1, contract.END_OK, exit_code=0),), checked=1, completed=True, run=1)
    world.turn()
    assert world.status.holds("Complete")


def test_the_look_of_another_does_not_count_while_rank_0s_agent_may_still_write_the_end_record() -> None:
    world = World.of(workers=3, **STORED).run().tick(60)
    well = {slot: {"quiet": True, "ranks": (ended(slot, contract.END_OK, exit_code=0),)} for slot in (0, 2)}
    for slot, said in well.items():
        world.sync(slot, **said)
    world.lose_pod(1)
    world.turn()
    assert world.status.verdict is not None
    world.sync(2, **well[2], checked=1, run=1)
    world.turn()
    assert not world.status.finished
    world.sync(0, **well[0], checked=1, completed=True, run=1)
    world.turn()
    assert world.status.holds("Complete")


DEADLINE = {**STORED, "active_deadline_seconds": 100, "failure_policy": {"maxFailures": 3}}


def test_a_deadline_that_finds_no_worker_which_knows_better_waits_for_a_look_too() -> None:
    """Training may have completed, and the only pod that could say so is gone."""
    world = World.of(workers=1, **DEADLINE).run().tick(90)
    world.lose_pod(0)
    world.tick(30).turn()
    assert not world.status.finished and world.status.verdict is not None
    assert world.status.verdict.reason == contract.REASON_DEADLINE
    world.settle()
    world.start_pods()
    world.sync(world.only(), checked=1, completed=True, run=1)
    world.turn()
    assert world.status.holds("Complete")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_deadline_while_no_worker_is_heard_waits_for_a_look_too(workers: int) -> None:
    """The way to the operator is broken, and training goes on: it may be over by now."""
    world = World.of(workers=workers, **DEADLINE).run()
    world.mute = set(range(workers))
    world.tick(101).turn()
    assert not world.status.finished and world.status.verdict is not None
    world.sync(0, completed=True, run=1)
    world.turn()
    assert world.status.holds("Complete")


def test_a_deadline_while_one_worker_is_heard_that_trains_is_one_at_once() -> None:
    world = World.of(workers=2, **DEADLINE).run()
    world.mute = {0}
    world.tick(101).turn()
    failed = world.status.condition("Failed")
    assert failed is not None and (failed.status, failed.reason) == ("True", contract.REASON_DEADLINE)


def test_a_deadline_that_no_worker_ever_looks_into_stands_after_ten_minutes() -> None:
    world = World.of(workers=1, **DEADLINE).run().tick(90)
    world.lose_pod(0)
    world.tick(30).settle()
    due = world.turn().requeue_after
    assert due is not None and not world.tick(due.total_seconds()).settle().status.finished
    failed = world.tick(600).turn().status.condition("Failed")
    assert failed is not None and (failed.status, failed.reason) == ("True", contract.REASON_DEADLINE)


def test_a_deadline_in_the_middle_of_training_is_one_at_once() -> None:
    world = World.of(workers=2, **DEADLINE).run().tick(120)
    world.lose_pod(1)
    world.turn()
    failed = world.status.condition("Failed")
    assert failed is not None and (failed.status, failed.reason) == ("True", contract.REASON_DEADLINE)


def looking(**fields: object) -> World:
    """The worker that is to look is up."""
    world = vanished(**fields)
    world.start_pods()
    world.sync(world.only())
    world.turn()
    return world


def test_one_worker_is_enough_and_it_starts_nothing() -> None:
    world = looking()
    slot = world.only()
    assert world.status.slots == f"{slot}" and world.attempt.number == 1, "no attempt begins beyond the budget"
    word, why = instruct(world.job, world.agents, slot, world.pod(slot).uid)
    assert word == {"do": contract.DO_CHECK, "attempt": 1} and "completed" in why


def test_it_had_completed() -> None:
    world = looking()
    world.sync(world.only(), checked=1, completed=True, run=1)
    world.turn()
    assert world.status.holds("Complete") and world.status.verdict is None and world.attempt.number == 1


def test_it_had_not() -> None:
    world = looking()
    world.sync_all()
    world.turn()
    failed, failure = world.status.condition("Failed"), world.status.last_failure
    assert failed is not None and (failed.status, failed.reason) == ("True", contract.REASON_LIMIT)
    assert failure is not None and (failure.reason, failure.attempt) == (contract.REASON_POD_LOST, 1), (
        "the first cause stays"
    )
    assert world.status.failures.counted == 1 and world.attempt.number == 1


def test_a_look_after_an_earlier_attempt_does_not_count() -> None:
    world = looking()
    world.sync(world.only(), checked=0, run=1)
    world.turn()
    assert not world.status.finished


def test_storage_that_cannot_be_read_is_named_in_the_verdict() -> None:
    world = looking()
    world.sync(world.only(), checked=1, warning="The storage cannot be read: access denied")
    world.turn()
    failed = world.status.condition("Failed")
    assert failed is not None and "access denied" in failed.message and "maxFailures" in failed.message


def test_a_look_where_the_run_is_not_is_none_until_people_had_time_to_put_the_mount_back() -> None:
    """The template's volume was edited away: what the worker finds there is an empty folder, not a run without an
    end."""
    world = looking()
    assert world.attempt.run == 1
    world.sync(world.only(), checked=1)
    why = world.turn().why
    assert not world.status.finished and "nothing of run 1" in why and "mounted" in why
    world.sync(world.only(), checked=1, completed=True, run=1)
    world.turn()
    assert world.status.holds("Complete")


def test_a_run_that_nobody_finds_keeps_no_job_for_ever() -> None:
    world = looking()
    world.sync(world.only(), checked=1)
    world.turn()
    world.tick(LOOK_WITHIN_S + 1).turn()
    failed = world.status.condition("Failed")
    assert failed is not None and failed.reason == contract.REASON_LIMIT and "nothing of run 1" in failed.message


def nothing_found(world: World) -> bool:
    """The worker that looks finds nothing of the run; whether the job is over."""
    world.start_pods()
    world.sync(world.only(), checked=1)
    world.turn()
    return world.status.finished


def test_people_have_ten_minutes_from_when_a_look_found_nothing_however_late_it_came() -> None:
    world = vanished()
    world.settle()
    assert not nothing_found(world.tick(2 * LOOK_WITHIN_S)), "the cluster had no room for it until now"
    assert not nothing_found(world.tick(LOOK_WITHIN_S - 1))
    assert nothing_found(world.tick(2))


def test_people_have_ten_minutes_from_each_edit() -> None:
    world = looking()
    assert not nothing_found(world)
    world.tick(LOOK_WITHIN_S - 1).change_spec(suspend=True)
    assert not nothing_found(world)
    world.settle()
    assert world.status.verdict is not None
    world.finish_deletions()
    world.tick(3 * LOOK_WITHIN_S).turn()
    world.change_spec(suspend=False)
    world.settle()
    assert not nothing_found(world.tick(60)), "it looks anew, and may find nothing again"
    assert not nothing_found(world.tick(LOOK_WITHIN_S - 1))
    assert nothing_found(world.tick(2))


def test_an_edit_beside_the_look_gives_the_deadline_its_time_too() -> None:
    world = World.of(workers=1, **DEADLINE).run().tick(90)
    world.lose_pod(0)
    world.tick(30).settle()
    world.tick(LOOK_WITHIN_S - 1).change_spec(ttl_seconds_after_finished=60)
    world.turn()
    world.tick(LOOK_WITHIN_S - 1).turn()
    assert not world.status.finished
    world.tick(2).turn()
    assert world.status.holds("Failed")


def test_a_worker_that_breaks_before_it_has_looked_is_no_evidence() -> None:
    world = vanished()
    for _ in range(LOOK_TRIES - 1):
        world.start_pods()
        world.fail_pod(world.only(), 1)
        world.turn()
        assert not world.status.finished and world.status.failures.counted == 1
        world.tick(60).turn()
    world.start_pods()
    world.fail_pod(world.only(), 1)
    world.turn()
    failed, failure = world.status.condition("Failed"), world.status.last_failure
    assert failed is not None and failed.reason == contract.REASON_LIMIT and "could look" in failed.message
    assert failure is not None and failure.attempt == 1 and world.status.failures.counted == 1


def test_a_worker_that_is_taken_away_before_it_has_looked_is_replaced_however_often() -> None:
    world = vanished(failure_policy={"maxFailures": 0, "maxPreemptions": 0})
    for _ in range(2 * LOOK_TRIES):
        world.start_pods()
        world.fail_pod(world.only(), 143, disrupted=True)
        world.turn()
        world.tick(60).turn()
        assert not world.status.finished and world.status.failures.preemptions == 0


def test_a_suspended_job_looks_when_it_goes_on() -> None:
    world = vanished()
    world.change_spec(suspend=True)
    world.turn()
    assert world.status.slots == "" and world.status.verdict is not None
    world.change_spec(suspend=False)
    world.finish_deletions()
    world.turn()
    assert len(parse_slots(world.status.slots)) == 1


@pytest.mark.parametrize(
    "fields",
    [{"checkpoint": {}}, {"runtime": {"agent": "Disabled"}}, {"failure_policy": {"maxFailures": 1}}],
    ids=["no storage", "plain", "within the budget"],
)
def test_where_nothing_is_to_be_found(fields: dict[str, object]) -> None:
    assert vanished(**fields).status.verdict is None


def test_one_worker_that_is_left_would_know() -> None:
    world = World.of(workers=2, **STORED).run().tick(60)
    world.lose_pod(0)
    world.turn()
    assert world.status.holds("Failed")


def test_a_ranks_own_end_is_a_word() -> None:
    world = World.of(workers=1, **STORED).run().tick(60)
    world.break_rank(0, raised(0, "ValueError"))
    world.fail_pod(0, 1)
    world.turn()
    assert world.status.holds("Failed")


def test_an_edit_to_plain_mode_does_not_take_the_worker_away_that_is_to_look() -> None:
    """Without an agent nobody could look, and the job stood at CheckingCompletion for ever."""
    world = vanished()
    world.change_spec(runtime=Runtime(agent="Disabled"))
    world.settle()
    (slot,) = parse_slots(world.status.slots)
    assert not is_plain(of_job(world.job))
    world.set_pod(slot, phase=PodPhase.RUNNING, make=of_job(world.job))
    world.sync(slot, checked=1, run=1)
    world.turn()
    assert world.status.holds("Failed")


def test_the_look_reads_the_storage_to_which_the_attempt_had_saved() -> None:
    """An edit of it is for the next start, and there an end record stands on no account."""
    world = vanished()
    before = of_job(world.job)
    world.change_spec(checkpoint=CheckpointSpec(storage="/elsewhere"))
    world.settle()
    assert as_made(world.job).spec.checkpoint.storage == "/checkpoints" and of_job(world.job) == before


def test_an_edit_of_the_storage_while_the_attempt_ran_does_not_lead_the_look_astray() -> None:
    world = World.of(workers=1, **STORED).run().tick(60)
    world.change_spec(checkpoint=CheckpointSpec(storage=None))
    world.lose_pod(0)
    world.turn()
    assert world.status.verdict is not None and as_made(world.job).spec.checkpoint.storage == "/checkpoints"


BUCKET = {"storage": "s3://bucket/folder", "s3": {"endpointURL": "http://first:9000", "credentialsSecret": "first"}}


@pytest.mark.parametrize(
    "edit",
    [
        {"storage": "s3://bucket/folder", "s3": {"endpointURL": "http://second:9000", "credentialsSecret": "second"}},
        {"storage": "s3://bucket/folder", "s3": {"region": "eu-north-1"}},
        {"storage": "s3://other/folder", "s3": {"endpointURL": "http://first:9000", "credentialsSecret": "second"}},
        {"storage": "s3://bucket/folder"},
        {"storage": "/checkpoints"},
        {},
    ],
)
@pytest.mark.parametrize("pending", [False, True], ids=["training", "pending"])
def test_the_look_reaches_the_store_as_the_attempt_had_reached_it(edit: dict[str, object], pending: bool) -> None:
    """The same bucket at another endpoint is another bucket: there no end record stands."""
    world = World.of(workers=1, **{**STORED, "checkpoint": BUCKET}).run().tick(60)
    if not pending:
        world.change_spec(checkpoint=CheckpointSpec.model_validate(edit))
    world.lose_pod(0)
    world.turn()
    world.change_spec(checkpoint=CheckpointSpec.model_validate(edit))
    assert world.status.verdict is not None
    seen = as_made(world.job).spec.checkpoint.to_json()
    assert {key: seen[key] for key in BUCKET} == BUCKET


def test_credentials_that_were_changed_since_are_those_of_the_look() -> None:
    """Of the same place: the old ones may have expired."""
    world = World.of(workers=1, **{**STORED, "checkpoint": BUCKET}).run().tick(60)
    world.lose_pod(0)
    world.turn()
    fresh = {"endpointURL": "http://first:9000/", "credentialsSecret": "fresh", "caConfigMap": "fresh"}
    world.change_spec(checkpoint=CheckpointSpec.model_validate({**BUCKET, "s3": fresh}))
    assert as_made(world.job).spec.checkpoint == world.job.spec.checkpoint


def test_the_look_in_a_folder_needs_no_store_that_the_job_goes_to_next() -> None:
    """Its pod would wait for a Secret that is only to come."""
    world = vanished()
    world.change_spec(checkpoint=CheckpointSpec.model_validate(BUCKET))
    assert as_made(world.job).spec.checkpoint.s3 is None


def test_an_attempt_of_a_version_that_kept_no_word_of_it_is_looked_into_as_the_spec_says() -> None:
    world = World.of(workers=1, **{**STORED, "checkpoint": BUCKET}).run().tick(60)
    world.lose_pod(0)
    world.turn()
    before = world.attempt.model_copy(update={"s3": None})
    world.job = world.job.model_copy(update={"status": world.status.model_copy(update={"attempt": before})})
    world.change_spec(checkpoint=CheckpointSpec.model_validate({**BUCKET, "storage": "s3://other/folder"}))
    assert as_made(world.job).spec.checkpoint.to_json()["s3"] == BUCKET["s3"]
    assert as_made(world.job).spec.checkpoint.storage == BUCKET["storage"]


def test_a_deadline_that_a_late_start_meets_is_looked_into_however_long_ago_the_attempt_ended() -> None:
    world = World.of(workers=1, **{**DEADLINE, "active_deadline_seconds": 5000}).run().tick(60)
    world.lose_pod(0)
    world.turn()
    world.tick(5000).turn()
    assert world.status.verdict is not None
    assert not world.tick(1).turn().status.finished


# --- Before a group without agents begins -----------------------------------------------------------------------------

PLAIN = Runtime(agent="Disabled")
BUDGET = {**STORED, "failure_policy": {"maxFailures": 3}}


def edited_to_plain(*, lost: tuple[int, ...] = (0, 1)) -> World:
    """The attempt has ended, and who could tell how is gone; the next one is to have no agents."""
    world = World.of(workers=2, **BUDGET).run().tick(60)
    world.change_spec(runtime=PLAIN)
    for slot in lost:
        world.lose_pod(slot)
    world.turn()
    return world


def test_a_worker_looks_before_a_group_without_agents_would_train_anew_what_may_be_complete() -> None:
    world = edited_to_plain()
    world.tick(60).settle()
    assert world.attempt.number == 1 and not is_plain(of_job(world.job))
    degraded = world.status.condition("Degraded")
    assert degraded is not None and (degraded.status, degraded.reason) == ("True", contract.REASON_CHECKING)
    slot = world.only()
    world.start_pods()
    world.sync(slot)
    word, why = instruct(world.job, world.agents, slot, world.pod(slot).uid)
    assert word == {"do": contract.DO_CHECK, "attempt": 1} and "before the next attempt begins" in why
    world.sync(slot, checked=1, completed=True, run=1)
    world.turn()
    assert world.status.holds("Complete")


def test_where_it_had_not_completed_the_group_without_agents_begins() -> None:
    world = edited_to_plain()
    world.tick(60).settle()
    world.start_pods()
    world.sync_all()
    world.turn()
    assert world.status.verdict is None and world.status.failures.counted == 1
    world.finish_deletions()
    world.turn()
    assert world.attempt.number == 2 and is_plain(world.attempt.make)
    assert world.status.verdict is None and not world.status.holds("Failed")


def test_a_member_that_this_leader_has_not_heard_yet_is_asked_before_it_is_taken_down() -> None:
    """It may know that training is over: the one that knew better is gone, and the leader is new."""
    world = World.of(workers=2, **BUDGET).run().tick(60)
    world.change_spec(runtime=PLAIN)
    world.agents.clear()
    world.listening_since = world.now
    world.fail_pod(0, 137)
    world.turn()
    assert not world.pod(1).deleting and world.status.slots == "1"
    world.sync(1, attempt=1, quiet=True, checked=1, completed=True, run=1)
    world.turn()
    assert world.status.holds("Complete")


def test_an_edit_after_the_end_of_the_attempt_is_looked_into_too() -> None:
    world = World.of(workers=1, **BUDGET).run().tick(60)
    world.lose_pod(0)
    world.tick(60).settle()
    world.change_spec(runtime=PLAIN)
    world.settle()
    assert world.attempt.number == 1 and world.status.verdict is not None


@pytest.mark.parametrize("cause", ["a member denies it", "a rank's own end", "no storage", "suspended while it ran"])
def test_what_had_not_completed_for_certain_is_not_looked_into(cause: str) -> None:
    world = World.of(workers=2, **(BUDGET | ({"checkpoint": {}} if cause == "no storage" else {}))).run().tick(60)
    world.change_spec(runtime=PLAIN)
    if cause == "a rank's own end":
        world.break_rank(0, raised(0, "ValueError"))
    elif cause == "suspended while it ran":
        world.change_spec(suspend=True)
        world.turn()
        world.finish_deletions()
        world.change_spec(suspend=False)
    else:
        world.lose_pod(0)
    for _ in range(8):
        world.turn()
        world.finish_deletions()
        world.tick(10)
        assert world.status.verdict is None
    assert world.attempt.number == 2 and is_plain(world.attempt.make)


def test_back_to_agents_the_join_looks_and_nobody_else() -> None:
    world = edited_to_plain()
    world.change_spec(runtime=Runtime())
    world.tick(60).settle()
    assert world.status.verdict is None and len(parse_slots(world.status.slots)) == 2


def test_a_suspension_puts_the_look_off() -> None:
    world = edited_to_plain()
    world.change_spec(suspend=True)
    world.settle()
    assert world.status.verdict is None and world.status.slots == ""
    world.tick(3600)
    world.change_spec(suspend=False)
    world.finish_deletions()
    world.settle()
    assert world.status.verdict is not None and world.attempt.number == 1


def test_where_no_worker_can_look_the_group_without_agents_begins_all_the_same() -> None:
    """Its agent may be why the user edits: the image may not take one."""
    world = edited_to_plain()
    for _ in range(LOOK_TRIES):
        world.tick(60).turn()
        world.start_pods()
        world.fail_pod(world.only(), 1)
        world.turn()
    for _ in range(3):
        world.finish_deletions()
        world.tick(60).turn()
    assert world.attempt.number == 2 and is_plain(world.attempt.make) and world.status.verdict is None


def test_a_worker_that_never_comes_up_holds_the_group_for_ten_minutes() -> None:
    world = edited_to_plain()
    world.tick(1).settle()
    due = world.turn().requeue_after
    assert due is not None and world.attempt.number == 1
    world.tick(600).turn()
    world.finish_deletions()
    world.tick(1).turn()
    assert world.attempt.number == 2 and is_plain(world.attempt.make)


# --- Before a start whose checkpoints go elsewhere --------------------------------------------------------------------

ELSEWHERE = CheckpointSpec(storage="/elsewhere")


def edited_to_elsewhere(checkpoint: CheckpointSpec = ELSEWHERE) -> World:
    """Nobody is left who knows how the attempt ended, and the next one would not look where its end record stands."""
    world = World.of(workers=2, **BUDGET).run().tick(60)
    world.change_spec(checkpoint=checkpoint)
    world.lose_pod(0)
    world.lose_pod(1)
    world.turn()
    return world


@pytest.mark.parametrize("checkpoint", [ELSEWHERE, CheckpointSpec()], ids=["elsewhere", "nowhere"])
def test_a_worker_looks_before_agents_would_train_anew_elsewhere_what_may_be_complete(
    checkpoint: CheckpointSpec,
) -> None:
    world = edited_to_elsewhere(checkpoint)
    assert world.status.verdict is not None and world.status.verdict.reason is None
    world.settle()
    assert as_made(world.job).spec.checkpoint.storage == "/checkpoints"
    world.start_pods()
    world.sync(world.only(), checked=1, completed=True, run=1)
    world.turn()
    assert world.status.holds("Complete")


def test_where_it_had_not_completed_training_begins_elsewhere() -> None:
    world = edited_to_elsewhere()
    world.settle()
    world.start_pods()
    world.sync(world.only(), checked=1, run=1)
    world.turn()
    assert world.status.verdict is None
    world.run()
    assert (world.attempt.number, world.attempt.storage) == (2, "/elsewhere")


def test_back_where_it_was_the_join_looks_and_nobody_else() -> None:
    world = edited_to_elsewhere()
    world.change_spec(checkpoint=CheckpointSpec(storage="/checkpoints"))
    world.turn()
    assert world.status.verdict is None
    assert world.run().attempt.number == 2


def test_a_move_that_everyone_lived_through_is_not_looked_into() -> None:
    world = World.of(workers=2, **BUDGET).run().tick(60)
    world.change_spec(checkpoint=ELSEWHERE)
    world.ask_restart("now")
    world.turn()
    assert world.attempt.state == "Ended" and world.status.verdict is None
