"""Where a job's time went: each millisecond in one place, whatever happens; and in the right one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.core import World, ended, is_steady, seconds
from trainjob_api import contract
from trainjob_api.v1alpha1 import Goodput
from trainjob_operator.core import accounting
from trainjob_operator.core.accounting import Work, deal
from trainjob_operator.core.parts import LONGEST_MS

times = st.integers(-(10**6), 10**6)


@given(
    st.integers(0, 10**6),
    st.sampled_from(["starting", "down", "suspended"]),
    st.builds(Work, began=st.none() | times, checkpoint=times, stalled=times, saved=st.none() | times, idle=times),
    st.none() | times,
    st.booleans(),
)
def test_every_millisecond_is_dealt_out_once(
    total: int, before: str, work: Work, broke: int | None, loses: bool
) -> None:
    parts = deal(total, before, work, broke=broke, loses=loses)
    assert sum(parts.values()) == total and min(parts.values()) >= 0


def test_what_was_done_since_the_newest_checkpoint_is_lost() -> None:
    work = Work(began=1_000, checkpoint=200, saved=7_000)
    parts = deal(10_000, "starting", work, broke=9_000, loses=True)
    assert {name: value for name, value in parts.items() if value} == {
        "starting": 1_000,
        "checkpoint_stall": 200,
        "productive": 5_800,
        "lost": 2_000,
        "down": 1_000,
    }


def test_time_without_work_since_the_newest_checkpoint_costs_none_of_what_was_saved() -> None:
    """Ranks stand still from 8 s on, and the job is stopped at 100 s."""
    work = Work(began=1_000, checkpoint=500, stalled=92_000, saved=7_000, idle=92_000)
    parts = deal(100_000, "starting", work, loses=True)
    assert {name: value for name, value in parts.items() if value} == {
        "starting": 1_000,
        "checkpoint_stall": 500,
        "stalled": 92_000,
        "productive": 5_500,
        "lost": 1_000,
    }


def test_without_a_checkpoint_all_is_lost_and_nothing_once_it_is_complete() -> None:
    assert deal(10_000, "starting", Work(began=0), loses=True)["lost"] == 10_000
    assert deal(10_000, "starting", Work(began=0), loses=False)["productive"] == 10_000


def begins(world: World, after_s: float, **effort: int) -> None:
    """The members' agents tell that their ranks could step so long after the attempt's begin."""
    told: Any = {"told": world.attempt.started_at.timestamp(), "restored": round(after_s * 1000), "first_step": 10**7}
    for slot, view in list(world.agents.items()):
        heard: Any = {"checkpoint": 0, "stalled": 0, **effort} if effort else view.effort
        world.agents[slot] = replace(view, begin=told, effort=heard)


def books(world: World) -> dict[str, float]:
    """Those places that hold anything."""
    found = world.status.goodput
    assert found is not None
    return {name: value for name, value in found.seconds.model_dump().items() if value}


def test_a_failure_costs_what_was_not_saved_and_the_time_until_ranks_step_again() -> None:
    world = World.of(workers=2)
    world.turn()
    world.tick(3).run()
    begins(world, 2.0, saved=52_000, checkpoint=1_000)
    world.now += seconds(62)
    broke = world.now
    world.now += seconds(0.5)
    world.break_rank(1, ended(1, contract.END_SIGNAL, signal=9, at=broke))
    world.report(5)
    world.turn()
    assert books(world) == {
        "starting": 5.0,
        "productive": 49.0,
        "checkpoint_stall": 1.0,
        "lost": 10.0,
        "down": 0.5,
    }
    for slot in (0, 1):
        world.sync(slot, attempt=2, joined=True, quiet=False, ranks=(), effort=None)
    begins(world, 4.5)
    world.tick(15)
    world.report(6)
    world.turn()
    assert books(world)["down"] == 5.0
    assert books(world)["productive"] == 49.0 + 10.5
    found = world.status.goodput
    assert isinstance(found, Goodput)
    assert (found.summary, found.largest_loss) == ("73.9%", "lost")


def test_time_in_which_ranks_hang_is_not_productive() -> None:
    """Also where there were too few steps to know a usual one."""
    world = World.of(workers=2).run()
    begins(world, 0.0, stalled=0)
    world.tick(100)
    world.sync(0, hang={
        "since": world.now.timestamp() - 70, "message": "rank 0 waits", "ranks": [], "stacks": "...", "early": True
    })  # fmt: skip
    world.turn()
    assert books(world)["stalled"] == 70.0


def hangs(world: World, since_s_ago: float | None) -> None:
    """Rank 0's agent tells that ranks hang since then; None: it takes that back."""
    hang: Any = None
    if since_s_ago is not None:
        since = world.now.timestamp() - since_s_ago
        hang = {"since": since, "message": "rank 0 waits", "ranks": [], "stacks": "...", "early": True}
    world.sync(0, hang=hang)


def test_a_short_hang_that_is_over_stays_in_the_books() -> None:
    """The agent counts no pause of under a minute: what was shown of one, and its rest, are stalled all the same."""
    world = World.of(workers=2).run()
    begins(world, 0.0, stalled=0)
    world.tick(100)
    hangs(world, 20)
    world.turn()
    assert books(world) == {"productive": 80.0, "stalled": 20.0}
    world.tick(25)
    hangs(world, None)
    world.turn()
    assert books(world) == {"productive": 80.0, "stalled": 45.0}
    world.tick(15)
    world.report(5)
    world.turn()
    assert books(world) == {"productive": 95.0, "stalled": 45.0}
    world.tick(10)
    hangs(world, 10)  # one more, in the same words
    world.turn()
    assert books(world) == {"productive": 95.0, "stalled": 55.0}
    world.tick(20)
    world.report(6)
    hangs(world, 30)
    world.turn()
    assert books(world) == {"productive": 95.0, "stalled": 75.0}
    world.report(7)
    hangs(world, 30)
    world.turn()  # a word that comes again
    assert books(world) == {"productive": 95.0, "stalled": 75.0}
    world.tick(5)
    world.break_rank(1, ended(1, contract.END_SIGNAL, signal=9, at=world.now))
    world.turn()
    assert books(world) == {"lost": 95.0, "stalled": 80.0}


@pytest.mark.parametrize("agent_counts", [False, True])
def test_a_hang_that_ends_an_attempt_costs_none_of_what_was_saved(agent_counts: bool) -> None:
    world = World.of(workers=2).run()
    begins(world, 0.0, saved=40_000, stalled=0)
    world.tick(45)
    hangs(world, 0)
    world.turn()
    world.tick(55)
    if agent_counts:
        begins(world, 0.0, saved=40_000, stalled=55_000, idle=55_000)
    world.break_rank(1, ended(1, contract.END_SIGNAL, signal=9, at=world.now))
    world.report(5)
    world.turn()
    assert books(world) == {"productive": 40.0, "lost": 5.0, "stalled": 55.0}


def test_a_hang_that_its_agent_counts_too_is_counted_once() -> None:
    world = World.of(workers=2).run()
    begins(world, 0.0, stalled=0)
    world.tick(100)
    hangs(world, 70)
    world.turn()
    world.tick(30)
    hangs(world, None)
    begins(world, 0.0, stalled=99_000)
    world.turn()
    assert books(world) == {"productive": 30.0, "stalled": 100.0}


def test_suspended_time_is_its_own_and_outside_the_ratio() -> None:
    world = World.of(workers=1).run().tick(60)
    begins(world, 0.0, saved=60_000)
    world.turn()
    world.change_spec(suspend=True)
    world.turn()
    world.finish_deletions()
    world.tick(1000).turn()
    world.change_spec(suspend=False)
    world.turn()
    assert books(world) == {"productive": 60.0, "suspended": 1000.0}
    assert world.status.goodput is not None and world.status.goodput.ratio == 1.0


def test_a_job_that_completes_has_lost_nothing_and_its_books_are_closed() -> None:
    world = World.of(workers=1).run()
    begins(world, 1.0)
    world.tick(30)
    world.sync(0, completed=True)
    world.turn()
    assert books(world) == {"starting": 1.0, "productive": 29.0}
    world.tick(500).turn()
    assert books(world) == {"starting": 1.0, "productive": 29.0}


def test_time_alone_is_no_reason_to_write() -> None:
    world = World.of(workers=2).run().tick(60)
    assert is_steady(world)
    begins(world, 1.0, saved=5_000, checkpoint=900)
    assert is_steady(world)


def test_what_breaks_at_its_imports_has_lost_no_steps() -> None:
    """Nothing is known of a script that no rank has got through yet: soon after the start that are its imports."""
    world = World.of(workers=1).run().tick(4)
    world.break_rank(0, ended(0, contract.END_SIGNAL, signal=9, at=world.now))
    world.turn()
    assert "lost" not in books(world)
    assert books(world)["starting"] == 4.0


def test_a_script_that_never_reports_works_from_the_start_of_its_ranks() -> None:
    world = World.of(workers=1).run()
    world.tick(100)
    world.change_spec(suspend=True)
    world.turn()
    assert books(world) == {"lost": 100.0}, "nothing of it is known to be saved"


@pytest.mark.parametrize("seconds", [2.0 * LONGEST_MS / 1000, 1e308])
def test_books_that_say_more_than_anybody_has_lived_are_cut_to_thirty_years(seconds: float) -> None:
    world = World.of(workers=1).run().tick(60)
    found = world.status.goodput
    assert found is not None
    settled = found.model_copy(update={"settled": found.settled.model_copy(update={"stalled": seconds})})
    world.job = world.job.model_copy(update={"status": world.status.model_copy(update={"goodput": settled})})
    world.change_spec(suspend=True)
    world.turn()
    assert books(world)["stalled"] == LONGEST_MS / 1000


def test_places_are_those_of_the_schema() -> None:
    assert set(accounting.LOSSES) | {"productive", "suspended"} == set(deal(0, "down", Work()))
