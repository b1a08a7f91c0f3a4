"""Progress, checkpoints and the run, as the agents tell them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta

import pytest

from support.core import T0, World, is_steady, raised, seconds
from trainjob_api import contract
from trainjob_api.contract import CheckpointReport
from trainjob_operator.core.groups.agents import LAST_WORD_S
from trainjob_operator.core.progress import has_progressed


def test_the_first_report_is_written_at_once_the_next_after_ten_seconds() -> None:
    world = World.of(workers=2).run().tick(60)
    world.report(1, total_steps=4, epoch=0, metrics={"loss": 0.5}, time=1.0)
    world.turn()
    progress = world.status.progress
    assert (progress.position, progress.step, progress.percent, progress.metrics, progress.last_report_time) == (
        1,
        1,
        25,
        {"loss": 0.5},
        world.now,
    )
    world.tick(3).report(2)
    decision = world.turn()
    assert decision.status.progress == progress
    assert decision.progress_after == seconds(7)
    world.tick(7).turn()
    assert (world.status.progress.position, world.status.progress.step) == (2, 2)
    assert is_steady(world)


def test_a_minute_of_reports_is_six_writes() -> None:
    world = World.of(workers=1).run()
    writes = 0
    for position in range(1, 121):
        before = world.status
        world.tick(0.5).report(position, metrics={"loss": 1 / position})
        world.turn()
        writes += world.status != before
    assert 5 <= writes <= 7


def test_time_alone_is_no_progress() -> None:
    world = World.of(workers=1).run()
    world.report(1, time=1.0)
    world.turn()
    world.tick(60).report(1, time=60.0)
    assert is_steady(world)


def test_at_an_attempts_end_the_newest_is_taken() -> None:
    world = World.of(workers=2).run().tick(60)
    world.report(1)
    world.turn()
    world.tick(1).report(5)
    world.break_rank(1, raised(1, "ValueError"))
    world.turn()
    assert world.status.progress.position == 5
    assert (world.status.history[-1].position, world.status.failures.since_progress) == (5, 0)


def test_position_is_a_high_water_mark() -> None:
    world = World.of(workers=2).run().tick(60)
    world.report(5)
    world.break_rank(1, raised(1, "ValueError"))
    world.turn()
    world.run().tick(60)
    world.report(4)
    world.turn()
    assert (world.status.progress.position, world.status.progress.step) == (5, 4)
    world.break_rank(1, raised(1, "ValueError"))
    world.turn()
    assert world.status.failures.since_progress == 1, "report 4 had been reached before"


def test_an_end_waits_for_the_leader_who_knows_of_progress() -> None:
    """A worker that breaks again and again, but after a new report each time, is not replaced for breaking without
    progress.
    """
    world = World.of(workers=2).run().tick(60)
    for position in (3, 6, 9):
        world.tick(1).break_rank(1, raised(1, "ValueError"), unheard=True)
        decision = world.turn()
        assert (world.attempt.state, decision.requeue_after) == ("Running", seconds(LAST_WORD_S)), "not known yet"
        world.tick(0.01).report(position)
        world.turn()
        assert (world.status.history[-1].position, world.status.failures.since_progress) == (position, 0)
        world.run()
    assert world.status.slots == "0-1" and world.status.failures.counted == 3


def test_an_end_does_not_wait_for_a_leader_for_ever() -> None:
    world = World.of(workers=2).run().tick(60).tick(1)
    world.break_rank(1, raised(1, "ValueError"), unheard=True)
    world.turn()
    assert world.attempt.number == 1
    world.tick(LAST_WORD_S).turn()
    assert (world.attempt.number, world.status.failures.since_progress) == (2, 1)


@pytest.mark.parametrize(
    "case", ["the leader's own rank", "progress is known", "the leader has spoken since", "the leader's pod is gone"]
)
def test_an_end_that_nobody_can_say_more_of_is_acted_upon_at_once(case: str) -> None:
    world = World.of(workers=2).run().tick(60)
    if case == "progress is known":
        world.report(1)
    world.tick(1)
    broken = 0 if case == "the leader's own rank" else 1
    world.break_rank(broken, raised(broken, "ValueError", at=world.now), unheard=case != "the leader has spoken since")
    if case == "the leader's pod is gone":
        world.lose_pod(0)
    world.turn()
    assert world.status.failures.counted == 1


def test_words_about_an_older_attempt_do_not_enter() -> None:
    world = World.of(workers=1).run().tick(60)
    world.report(7)
    world.sync(0, attempt=0)
    world.turn()
    assert world.status.progress.position == 0


def test_broken_numbers_are_left_out() -> None:
    world = World.of(workers=1).run().tick(60)
    world.report(
        10**400, metrics={"nan": float("nan"), "inf": float("inf"), "x" * 500: 1.0} | {f"m{i}": 0.0 for i in range(40)}
    )
    world.turn()
    metrics = world.status.progress.metrics
    assert (world.status.progress.position, world.status.progress.step, len(metrics)) == (
        0,
        None,
        contract.METRICS_LIMIT,
    )
    assert max(map(len, metrics)) == 64


def test_run_and_source_are_written_as_soon_as_known() -> None:
    world = World.of(workers=2).run()
    assert world.attempt.run == 1
    world.sync(0, resumed_from="/data/ml/digits/checkpoints/1-1-4")
    world.turn()
    assert world.attempt.resumed_from == "/data/ml/digits/checkpoints/1-1-4"


def test_ranks_run_when_every_member_has_joined() -> None:
    world = World.of(workers=2)
    for _ in range(2):
        world.turn()
        world.start_pods()
        world.sync_all()
    world.sync(1, joined=False)
    world.turn()
    assert (world.attempt.running_at, world.status.phase) == (None, "Starting")
    world.tick(1).sync(1, joined=True)
    world.turn()
    assert (world.attempt.running_at, world.status.phase) == (T0 + seconds(1), "Running")


def test_checkpoints_are_shown() -> None:
    world = World.of(workers=1).run()
    latest = CheckpointReport(id="1-1-3", step=3, uri="/data/1-1-3", time=world.now.timestamp(), bytes=10)
    world.sync(
        0, latest=latest, best=CheckpointReport(id="1-1-2"), checkpoint_count=2, clock_offset=timedelta(seconds=3)
    )
    world.turn()
    shown = world.status.checkpoint
    assert shown.latest is not None and shown.best is not None
    assert (shown.latest.id, shown.latest.bytes, shown.latest.time, shown.best.id, shown.count) == (
        "1-1-3",
        10,
        world.now,
        "1-1-2",
        2,
    )
    world.tick(60).sync(0, clock_offset=timedelta(seconds=4))
    assert is_steady(world)


def test_reports_and_checkpoints_together_are_one_write_in_ten_seconds() -> None:
    world = World.of(workers=1).run()
    moments = []
    for tick in range(1, 241):
        before = world.status
        if tick % 3 == 0:
            world.report(tick, metrics={"loss": 1 / tick})
        elif tick % 3 == 1:
            world.sync(0, latest=CheckpointReport(id=f"1-1-{tick}", time=0.0, bytes=1), checkpoint_count=tick)
        world.tick(0.5).turn()
        if world.status != before:
            moments.append(world.now)
    gaps = [(after - before).total_seconds() for before, after in itertools.pairwise(moments)]
    assert 10 <= len(moments) <= 13 and min(gaps[1:]) >= 10


@pytest.mark.parametrize(
    ("score", "metrics", "shown"),
    [
        (None, {"accuracy": 0.5, "loss": 0.123456}, "loss=0.1235"),
        ("accuracy", {"loss": 0.1, "accuracy": 0.987654}, "accuracy=0.9877"),
        ("absent", {"b": 1e-9, "a": 2.0}, "b=1e-09"),
        (None, {}, None),
    ],
)
def test_one_metric_is_shown(score: str | None, metrics: dict[str, float], shown: str | None) -> None:
    world = World.of(workers=1, checkpoint={"scoreAttribute": score}).run()
    world.report(1, metrics=metrics)
    world.tick(10).turn()
    assert world.status.progress.summary == shown


def test_the_one_metric_is_the_loss_also_where_it_is_no_number() -> None:
    world = World.of(workers=1).run()
    seen = {"metric": "loss", "value": "NaN", "step": 3, "position": 0, "count": 1}
    world.report(1, metrics={"accuracy": 0.5}, non_finite=seen)
    world.tick(10).turn()
    assert world.status.progress.summary == "loss=nan"
    world.report(2, metrics={"accuracy": 0.5, "loss": 0.25}, non_finite=seen)
    world.tick(10).turn()
    assert world.status.progress.summary == "loss=0.25"


def test_what_was_reported_stays_on_display_until_the_next_attempt_reports() -> None:
    world = World.of(workers=1).run()
    world.report(7, total_steps=9, metrics={"loss": 0.5})
    world.turn()
    shown = world.status.progress
    assert (shown.step, shown.metrics, shown.last_report_time) == (7, {"loss": 0.5}, world.now)
    world.break_rank(0, raised(0, "ValueError"))
    world.turn()
    world.tick(30).run()
    assert world.attempt.number == 2
    world.sync(0, progress={"position": 5, "step": None, "metrics": {}, "time": 0.0})
    world.turn()
    assert world.status.progress.model_copy(update={"written_at": shown.written_at}) == shown, "nothing was reported"
    world.tick(60)
    world.report(6, metrics={"loss": 0.6})
    world.turn()
    assert (world.status.progress.step, world.status.progress.last_report_time) == (6, world.now)


def test_the_moment_of_the_last_report_is_the_reports_and_not_that_of_its_writing() -> None:
    """Who looks at ranks that stand still counts from it."""
    world = World.of(workers=1).run().tick(60)
    world.report(1, time=world.now.timestamp())
    world.turn()
    world.tick(4)
    reported = world.now
    world.report(2, time=reported.timestamp())
    world.turn()
    world.tick(6).turn()
    assert (world.status.progress.step, world.status.progress.last_report_time) == (2, reported)
    assert is_steady(world)


@pytest.mark.parametrize("off_s", [-3600.0, 3600.0])
def test_a_moment_that_cannot_be_is_that_of_its_writing(off_s: float) -> None:
    world = World.of(workers=1).run().tick(60)
    world.report(1, time=world.now.timestamp() + off_s)
    world.turn()
    assert world.status.progress.last_report_time == world.now


def test_the_moment_is_by_our_clock() -> None:
    world = World.of(workers=1).run().tick(60)
    world.report(1, time=world.now.timestamp() - 3605)
    view = world.agents[0]
    world.agents[0] = replace(view, clock_offset=timedelta(hours=1))
    world.turn()
    assert world.status.progress.last_report_time == world.now - seconds(5)


def test_a_job_that_begins_from_a_checkpoint_has_reported_nothing_yet() -> None:
    """`tj run --resume-from`, or the same name again: the status is new, and the position is that of the checkpoint."""
    world = World.of(workers=1).run()
    world.sync(0, progress={"position": 20, "step": None, "metrics": {}, "time": 0.0})
    world.turn()
    assert (world.status.progress.position, world.status.progress.last_report_time) == (0, None)
    assert not has_progressed(world.status)
    world.tick(60)
    world.sync(0, progress={"position": 21, "step": None, "metrics": {}, "time": 9.0})
    world.turn()
    assert (world.status.progress.position, world.status.progress.last_report_time) == (21, world.now)


@pytest.mark.parametrize("lost", [0, 1])
def test_what_rank_0s_agent_told_counts_though_the_pod_is_gone(lost: int) -> None:
    """Within ten seconds after a write it is not written yet."""
    world = World.of(workers=2).run().tick(60)
    world.report(5)
    world.turn()
    world.tick(1).report(6)
    world.turn()
    assert world.status.progress.position == 5
    world.lose_pod(lost)
    world.turn()
    assert (world.status.history[-1].position, world.status.failures.since_progress) == (6, 0)


def test_what_was_told_of_an_older_attempt_is_no_progress_of_this_one() -> None:
    world = World.of(workers=2).run().tick(60)
    world.report(5)
    world.sync(0, attempt=0)
    world.lose_pod(0)
    world.turn()
    assert (world.status.progress.position, world.status.failures.since_progress) == (0, 1)


def test_how_long_a_step_takes_is_shown_with_the_digits_that_a_person_reads() -> None:
    world = World.of(workers=1).run()
    world.report(1, seconds_per_step=0.0123456789)
    world.turn()
    assert world.status.progress.seconds_per_step == 0.01235
    world.report(2, seconds_per_step=None)
    world.tick(10).turn()
    assert world.status.progress.seconds_per_step is None
