"""Ranks that hang, as the rules see it: told where that is wished, ended where that is, counted once."""

from __future__ import annotations

import pytest

from support.core import World, is_steady, raised, seconds
from trainjob_api import contract
from trainjob_api.contract import HangReport
from trainjob_api.v1alpha1 import Hang
from trainjob_operator.core.ends.failures import COMMUNICATION_WAIT_S
from trainjob_operator.core.instruct import instruct
from trainjob_operator.core.model import CreatePod

MESSAGE = (
    "rank 0 waits in report (train.py:60) since 14:02 UTC; rank 1 (b) is in train.py:88 load_batch. Look at rank 1."
)


def hang(world: World, *ranks: int, ago_s: float = 300, stacks: str = "rank 0: ...") -> HangReport:
    since = world.now.timestamp() - ago_s
    return {"since": since, "ranks": list(ranks), "message": MESSAGE, "stacks": stacks, "early": False}


def degraded(world: World) -> tuple[str, str, str]:
    condition = world.status.condition("Degraded")
    assert condition is not None
    return condition.status, condition.reason, condition.message


def test_by_default_it_is_told_and_nothing_ends() -> None:
    world = World.of(workers=2).run()
    world.sync(0, hang=hang(world, 1))
    decision = world.turn()
    assert degraded(world) == ("True", contract.REASON_HANG, MESSAGE)
    assert [(event.reason, event.message) for event in decision.events] == [(contract.REASON_HANG, MESSAGE)]
    assert world.attempt.state == "Running" and world.status.failures.counted == 0
    assert world.status.reason == contract.REASON_HANG and world.status.hang is not None
    assert (world.status.hang.ranks, world.status.hang.stacks, world.status.hang.attempt) == ([1], "rank 0: ...", 1)
    assert is_steady(world)
    world.sync(0, hang=None)
    world.turn()
    assert degraded(world)[:2] == ("False", contract.REASON_HEALTHY)
    assert world.status.hang.message == MESSAGE, "the last verdict stays for `tj hang`"


def test_with_restart_the_attempt_ends_counted_once_and_begins_anew() -> None:
    world = World.of(workers=2, hang={"action": "Restart"}).run()
    world.sync(0, hang=hang(world, 1))
    decision = world.turn()
    failure = world.status.last_failure
    assert failure is not None and world.status.hang is not None
    assert (failure.reason, failure.rank, failure.pod, failure.victims) == (contract.REASON_HANG, 1, "digits-1", 1)
    assert failure.message == MESSAGE and world.status.failures.counted == 1
    assert [event.message for event in decision.events if event.reason == contract.REASON_HANG] == [MESSAGE]
    assert world.attempt.number == 2 and world.attempt.cause == contract.REASON_HANG
    world.turn()
    assert world.status.failures.counted == 1, "what was said of attempt 1 is stale"


def test_what_is_seen_before_the_limit_is_told_and_ends_nothing() -> None:
    world = World.of(workers=2, hang={"action": "Restart"}).run()
    world.sync(0, hang={**hang(world, 1, ago_s=15), "early": True})
    decision = world.turn()
    assert [(event.reason, event.message) for event in decision.events] == [(contract.REASON_HANG, MESSAGE)]
    assert world.attempt.state == "Running" and degraded(world)[1] == contract.REASON_HANG and is_steady(world)
    world.sync(0, hang=hang(world, 1))
    world.turn()
    assert world.status.failures.counted == 1 and world.attempt.number == 2


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_collective_that_runs_into_its_time_out_names_the_rank_that_did_not_come(goes_on: bool) -> None:
    world = World.of(workers=2).run()
    world.sync(0, hang=hang(world, 1))
    world.turn()
    if goes_on:
        world.sync(0, hang=None)
        world.turn()
    world.break_rank(0, raised(0, "RuntimeError", "Timed out waiting 1800000ms", communication=True, at=world.now))
    world.turn()
    world.tick(COMMUNICATION_WAIT_S + 1).sync(1)
    world.turn()
    failure = world.status.last_failure
    assert failure is not None and failure.reason == contract.REASON_COMMUNICATION
    assert failure.message.endswith(f"Timed out waiting 1800000ms (before that: {MESSAGE})") is not goes_on


def test_the_worker_of_one_rank_that_hangs_twice_is_replaced() -> None:
    world = World.of(workers=2, hang={"action": "Restart"}).run()
    world.sync(0, hang=hang(world, 1))
    world.turn()
    world.sync(0, hang=None)
    world.run().tick(600)
    world.sync(0, hang=hang(world, 1))
    decision = world.turn()
    assert decision.actions == (CreatePod(slot=2, avoid_nodes=("node-1",)),)


@pytest.mark.parametrize("ranks", [(), (0, 1)])
def test_where_no_single_rank_is_to_blame_no_worker_is(ranks: tuple[int, ...]) -> None:
    world = World.of(workers=2, hang={"action": "Restart"}).run()
    world.sync(0, hang=hang(world, *ranks))
    world.turn()
    assert world.status.failures.counted == 1 and world.status.failures.strikes == {}


def test_off_means_off() -> None:
    world = World.of(workers=2, hang={"action": "Off"}).run()
    world.sync(1, hang=hang(world, 1))
    world.turn()
    assert degraded(world)[1] == contract.REASON_HEALTHY and world.status.hang is None


def test_a_stopped_ranks_own_agent_is_believed_before_rank_0s() -> None:
    world = World.of(workers=2).run()
    world.sync(0, hang=hang(world))
    world.sync(1, hang={**hang(world, 1, stacks=""), "message": "rank 1 (b): its process is stopped"})
    world.turn()
    assert degraded(world)[2] == "rank 1 (b): its process is stopped"


@pytest.mark.parametrize(
    ("spec", "told"),
    [({}, None), ({"action": "Off"}, 0.0), ({"afterSeconds": 90}, 90.0), ({"afterSeconds": 9, "action": "Off"}, 0.0)],
)
def test_rank_0s_agent_hears_the_limit(spec: dict[str, object], told: float | None) -> None:
    world = World.of(workers=2, hang=spec).run()
    words = [instruct(world.job, world.agents, slot, world.agents[slot].pod_uid)[0] for slot in (0, 1)]
    assert [word.get("hang_after_s") for word in words] == [told, None]


@pytest.mark.parametrize("edit", ["a higher limit", "Restart with a higher limit"])
def test_a_verdict_of_a_lower_limit_ends_nothing(edit: str) -> None:
    """Rank 0's agent takes it back as it hears of the new one."""
    first = "Restart" if edit == "a higher limit" else "Report"
    world = World.of(workers=2, hang={"action": first, "afterSeconds": 60}).run()
    world.change_spec(hang=Hang.model_validate({"action": "Restart", "afterSeconds": 600}))
    world.sync(0, hang=hang(world, 1, ago_s=61))
    decision = world.turn()
    assert world.attempt.number == 1 and degraded(world)[1] == contract.REASON_HEALTHY
    assert decision.requeue_after is not None and decision.requeue_after <= seconds(600 - 61)
    world.tick(600 - 61 - 1).turn()
    assert world.attempt.number == 1
    world.tick(1).turn()
    assert (world.attempt.number, world.attempt.cause) == (2, contract.REASON_HANG)


def test_a_stopped_process_waits_for_no_limit() -> None:
    world = World.of(workers=2, hang={"action": "Restart", "afterSeconds": 600}).run()
    world.sync(1, hang=hang(world, 1, ago_s=6, stacks=""))
    world.turn()
    assert (world.attempt.number, world.attempt.cause) == (2, contract.REASON_HANG)
