"""Ranks that keep the others waiting, as the rules see it: told; replaced at a checkpoint where that is wished, once."""

from __future__ import annotations

from core.test_drains import runs, training
from support.core import World, is_steady
from trainjob_api import contract
from trainjob_api.contract import StragglersReport
from trainjob_operator.core import boundaries
from trainjob_operator.core.model import CreatePod

MESSAGE = "Rank 1 (node-1) keeps the others waiting for 40% of each step (1 s), most of it with its data loader."


def slow(world: World, *ranks: int, message: str = MESSAGE) -> StragglersReport:
    shares = {"data": 0.5, "compute": 0.4, "held": 0.0, "wait": 0.1}
    told = [{"rank": rank, "behind": 0.4 - rank / 100, **shares} for rank in ranks]
    return {"since": world.now.timestamp() - 10, "message": message, "ranks": told}  # type: ignore[typeddict-item]


def degraded(world: World) -> tuple[str, str]:
    condition = world.status.condition("Degraded")
    assert condition is not None
    return condition.status, condition.reason


def test_it_is_told_once_and_nothing_ends() -> None:
    world = training()
    runs(world, 0, stragglers=slow(world, 1))
    decision = world.turn()
    assert degraded(world) == ("True", contract.REASON_STRAGGLER)
    assert [(event.type, event.reason, event.message) for event in decision.events] == [
        ("Warning", contract.REASON_STRAGGLER, MESSAGE)
    ]
    view = world.status.stragglers
    assert view is not None and view.attempt == 1 and [each.rank for each in view.ranks] == [1]
    assert (view.ranks[0].pod, view.ranks[0].node) == (world.pod(1).name, world.pod(1).node), "by what Kubernetes says"
    assert world.attempt.state == "Running" and world.status.boundary is None and is_steady(world)
    runs(world, 0, stragglers=None)
    world.turn()
    assert degraded(world) == ("False", contract.REASON_HEALTHY)
    assert world.status.stragglers == view, "the newest verdict stays for `tj hang`"


def test_off_hears_nothing() -> None:
    world = training(hang={"action": "Off"})
    runs(world, 0, stragglers=slow(world, 1))
    world.turn()
    assert degraded(world) == ("False", contract.REASON_HEALTHY) and world.status.stragglers is None


def test_what_another_than_the_agent_of_rank_0_says_counts_for_nothing() -> None:
    world = training()
    runs(world, 1, stragglers=slow(world, 0))
    world.turn()
    assert world.status.stragglers is None


def test_a_rank_that_no_worker_has_is_told_without_a_pod() -> None:
    world = training()
    runs(world, 0, stragglers=slow(world, 900))
    world.turn()
    assert world.status.stragglers is not None and world.status.stragglers.ranks[0].pod is None


def replaced(world: World, rank: int, cause: str = contract.REASON_STRAGGLER) -> None:
    """The boundary is reached, and the attempt ends there."""
    boundary = world.status.boundary
    assert boundary is not None and boundary.cause == cause
    runs(world, 0, stragglers=slow(world, rank), boundary=boundaries.token(boundary))


def test_where_it_is_wished_its_worker_is_replaced_at_a_checkpoint_and_nothing_counts() -> None:
    world = training(3, hang={"replaceStragglers": True})
    runs(world, 0, stragglers=slow(world, 1, 2))
    node = world.pod(1).node
    world.turn()
    assert world.attempt.state == "Running", "it waits for a checkpoint"
    replaced(world, 1)
    decision = world.turn()
    assert world.status.failures.counted == 0 and world.status.failures.preemptions == 0
    assert world.status.slots == "0,2-3" and world.status.failures.avoid_nodes == [node]
    assert world.status.replaced_ranks == [1] and world.status.history[-1].end_cause == contract.REASON_STRAGGLER
    assert [action.avoid_nodes for action in decision.actions if isinstance(action, CreatePod)] == [(node,)]


def test_a_rank_that_is_as_slow_elsewhere_is_not_replaced_again() -> None:
    world = training(2, hang={"replaceStragglers": True})
    world.job = world.job.model_copy(update={"status": world.status.model_copy(update={"replaced_ranks": [1]})})
    runs(world, 0, stragglers=slow(world, 1))
    world.turn()
    assert world.status.boundary is None and degraded(world) == ("True", contract.REASON_STRAGGLER)


def test_a_suspension_is_not_outrun() -> None:
    world = training(2, hang={"replaceStragglers": True})
    runs(world, 0, stragglers=slow(world, 1))
    world.turn()
    world.change_spec(suspend=True)
    world.turn()
    assert world.status.boundary is not None and world.status.boundary.cause == contract.REASON_SUSPENDED


def test_it_goes_on_when_the_rank_is_no_longer_slow() -> None:
    world = training(2, hang={"replaceStragglers": True})
    runs(world, 0, stragglers=slow(world, 1))
    world.turn()
    assert world.status.boundary is not None
    runs(world, 0, stragglers=None)
    world.turn()
    assert world.status.boundary is None and world.attempt.number == 1 and world.attempt.state == "Running"
