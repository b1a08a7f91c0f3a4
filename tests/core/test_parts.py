"""How long each part of a recovery took: clocks of different machines are never compared, and no part is negative."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from support.core import T0, World, ended, seconds
from trainjob_api import contract
from trainjob_api.contract import BeginReport
from trainjob_api.v1alpha1 import Attempt, PartsMs
from trainjob_operator.core import parts
from trainjob_operator.core.model import AgentView

ATTEMPT = Attempt(number=2, state="Running", started_at=T0, members="0-1", workers=2, world_size=2, cause="x")


def said(slot: int, told_s: float, *, clock_ahead_s: float = 0.0, **ends: int) -> AgentView:
    """An agent that heard `run` so many seconds after the attempt's begin, and whose machine's clock is wrong."""
    offset = timedelta(seconds=-clock_ahead_s)
    told = (T0 + timedelta(seconds=told_s)).timestamp() + clock_ahead_s
    begin: Any = {"told": told, **ends}
    return AgentView(
        slot=slot, pod_uid=f"uid-{slot}", boot=1, heard_at=T0, address="h:1", clock_offset=offset, begin=begin
    )


def test_parts_end_with_the_last_member_and_steps_begin_with_the_first() -> None:
    found = parts.merged(
        ATTEMPT,
        [
            said(0, 0.010, stopped=5, joined=20, forked=25, group=60, restored=70, first_step=90),
            said(1, 0.020, stopped=30, joined=31, forked=32, group=55, restored=56, first_step=95),
        ],
        2,
    )
    assert found == PartsMs(decided=20, stopped=30, joined=1, forked=1, group=23, restored=5, first_step=20)
    assert parts.first_step_ms(found) == 100


def test_wrong_clocks_of_machines_do_not_matter() -> None:
    right = [said(0, 0.01, stopped=5, forked=25), said(1, 0.02, stopped=6, forked=26)]
    wrong = [
        said(0, 0.01, clock_ahead_s=3600.0, stopped=5, forked=25),
        said(1, 0.02, clock_ahead_s=-3600.0, stopped=6, forked=26),
    ]
    assert parts.merged(ATTEMPT, right, 2) == parts.merged(ATTEMPT, wrong, 2)


def test_a_part_is_over_when_all_have_told_it() -> None:
    found = parts.merged(ATTEMPT, [said(0, 0.0, stopped=5, joined=9), said(1, 0.0, stopped=6)], 2)
    assert (found.stopped, found.joined) == (6, None)


def test_a_new_operator_that_heard_one_member_forgets_nothing() -> None:
    full = parts.merged(ATTEMPT, [said(0, 0.0, stopped=5), said(1, 0.0, stopped=8)], 2)
    known = ATTEMPT.model_copy(update={"parts_ms": full})
    assert parts.merged(known, [said(0, 0.0, stopped=5)], 2) == full
    assert parts.merged(known, [], 2) == full


def test_a_break_is_timed_from_the_ranks_end_to_the_first_new_step() -> None:
    """The rank ended 40 ms before its agent's word led to a decision; then the agents tell of the new attempt."""
    world = World.of(workers=2).run().tick(60)
    broke = world.now
    world.now += seconds(0.04)
    world.break_rank(1, ended(1, contract.END_SIGNAL, signal=9, at=broke))
    world.turn()
    assert world.attempt.number == 2
    assert world.attempt.parts_ms == PartsMs(detected=40, waited=0)
    for slot in (0, 1):
        begin = BeginReport(told=world.now.timestamp() + 0.015, stopped=10, joined=20, forked=22, first_step=80)
        world.agents[slot] = replace(world.agents[slot], attempt=2, joined=True, quiet=False, ranks=(), begin=begin)
    world.turn()
    expected = PartsMs(detected=40, waited=0, decided=15, stopped=10, joined=10, forked=2, first_step=58)
    assert world.attempt.parts_ms == expected
    world.tick(5)
    world.break_rank(1, ended(1, contract.END_SIGNAL, signal=9, at=world.now))
    world.turn()
    assert [entry.parts_ms for entry in world.status.history] == [None, expected]


def test_the_clock_alone_is_no_reason_to_write() -> None:
    world = World.of(workers=2).run().tick(60)
    world.turn()
    before = world.status
    for slot in (0, 1):
        begin = BeginReport(told=world.attempt.started_at.timestamp(), stopped=0, first_step=80)
        world.agents[slot] = replace(world.agents[slot], begin=begin)
    assert world.turn().status == before


numbers = st.integers(-5, 10**15) | st.just(2**60)
begins = st.fixed_dictionaries(
    {},
    optional={
        "told": st.floats(allow_nan=True) | st.floats(T0.timestamp() - 5, T0.timestamp() + 5),
        **dict.fromkeys((*parts.AGENTS_PARTS, "first_step"), numbers),
    },
)


@given(st.lists(begins, max_size=3), st.integers(1, 3))
def test_no_part_is_negative_whatever_agents_say(told: list[Any], members: int) -> None:
    views = [replace(said(slot, 0.0), begin=begin) for slot, begin in enumerate(told)]
    found = parts.merged(ATTEMPT, views, members)
    assert all(value is None or 0 <= value <= 4 * parts.LONGEST_MS for value in found.model_dump().values())
    PartsMs.model_validate_json(found.model_dump_json())
