"""A join has an end and a word: workers that cannot reach rank 0's agent are named, and wait no longer for ever."""

from __future__ import annotations

from support.core import World, is_steady, raised, seconds
from trainjob_api import contract
from trainjob_operator.core.ends.unreached import SAID_AFTER_S, UNREACHED_S
from trainjob_operator.core.model import DeletePod
from trainjob_operator.core.pods.naming import parse_slots


def joining(workers: int = 3, **fields: object) -> World:
    """Attempt 1 has begun, and nobody has joined it."""
    world = World.of(workers=workers, **fields)
    world.turn()
    world.start_pods()
    world.sync_all()
    world.turn()
    for slot in range(workers):
        world.sync(slot, attempt=1, quiet=True, joined=False)
    assert world.attempt.state == "Running" and world.attempt.running_at is None
    return world


def miss(world: World, *slots: int, for_s: float) -> None:
    """These say that they have not reached rank 0's agent for so long."""
    for slot in slots:
        world.sync(slot, lost_peers=(0,), unreached_s=for_s)


def degraded(world: World) -> tuple[str, str]:
    condition = world.status.condition("Degraded")
    assert condition is not None
    return condition.reason, condition.message


def test_who_cannot_reach_whom_is_said_first() -> None:
    world = joining().tick(20)
    miss(world, 1, 2, for_s=SAID_AFTER_S - 1)
    after_s = world.turn().requeue_after
    assert degraded(world)[0] == contract.REASON_HEALTHY and after_s == seconds(1)
    world.tick(1).turn()
    reason, message = degraded(world)
    assert reason == contract.REASON_PEERS_UNREACHABLE
    assert message.startswith("digits-1, digits-2 cannot reach the agent of digits-0 at 10.0.0.0:7000: ")
    assert "NetworkPolicy" in message and world.attempt.state == "Running"
    assert world.status.reason == contract.REASON_PEERS_UNREACHABLE
    assert is_steady(world)


def test_it_ends_counted_and_says_whom() -> None:
    world = joining().tick(20)
    miss(world, 1, 2, for_s=SAID_AFTER_S)
    after_s = world.turn().requeue_after
    assert after_s is not None and after_s <= seconds(UNREACHED_S - SAID_AFTER_S)
    world.tick(UNREACHED_S - SAID_AFTER_S - 0.001).turn()
    assert world.attempt.state == "Running"
    world.tick(0.001).turn()
    assert (world.attempt.state, world.attempt.end_cause) == ("Ended", contract.REASON_PEERS_UNREACHABLE)
    failure = world.status.last_failure
    assert failure is not None and failure.message.startswith("digits-1, digits-2 cannot reach the agent of digits-0")
    assert (world.status.failures.counted, world.status.failures.early_in_row) == (1, 1)


def test_a_job_whose_workers_never_reach_each_other_fails() -> None:
    world = joining(failure_policy={"maxFailures": 1})
    for number in (1, 2):
        for slot in range(3):
            world.sync(slot, attempt=number, quiet=True, joined=False)
        miss(world, 1, 2, for_s=UNREACHED_S)
        world.turn()
        assert (world.attempt.number, world.attempt.state) == (number, "Ended")
        for slot in range(3):
            world.sync(slot, lost_peers=(), unreached_s=0.0)
        world.tick(60).turn()
    failed = world.status.condition("Failed")
    assert failed is not None and (failed.status, failed.reason) == ("True", contract.REASON_LIMIT)
    assert world.status.reason == contract.REASON_PEERS_UNREACHABLE, "the column names the first cause"


def test_the_only_one_that_others_do_not_share_the_trouble_of_is_replaced_away_from_its_node() -> None:
    world = joining()
    miss(world, 2, for_s=UNREACHED_S)
    decision = world.turn()
    assert world.status.slots == "0-1,3" and world.status.failures.avoid_nodes == ["node-2"]
    assert [action.name for action in decision.actions if isinstance(action, DeletePod)] == []
    failure = world.status.last_failure
    assert failure is not None and (failure.pod, failure.node) == ("digits-2", "node-2")
    assert any(event.reason == "WorkerReplaced" for event in decision.events)


def test_one_that_nobody_reaches_is_replaced_at_the_second_time() -> None:
    """One policy that keeps all apart looks the same: no pod, and nothing that it holds, is given up at once for it."""
    world = joining()
    miss(world, 1, 2, for_s=UNREACHED_S)
    world.turn()
    assert world.status.slots == "0-2" and world.status.failures.strikes == {"0": 1}
    for slot in range(3):
        world.sync(slot, lost_peers=(), unreached_s=0.0)
    world.tick(60).turn()
    for slot in range(3):
        world.sync(slot, attempt=2)
    miss(world, 1, 2, for_s=UNREACHED_S)
    world.turn()
    assert world.status.slots == "1-2" and world.status.failures.avoid_nodes == ["node-0"]
    world.tick(60).turn()
    assert world.status.slots == "1-3"


def test_who_has_missed_it_for_a_moment_less_counts_along() -> None:
    """They never begin to miss it at the very same moment."""
    world = joining()
    miss(world, 1, for_s=UNREACHED_S)
    miss(world, 2, for_s=UNREACHED_S - 0.5)
    world.turn()
    assert world.status.slots == "0-2" and world.status.failures.strikes == {"0": 1}


def again(world: World, member: int) -> None:
    """The next attempt begins, and its second worker misses rank 0's agent."""
    for _ in range(3):
        world.tick(5)
        world.start_pods()
        for slot in parse_slots(world.status.slots):
            if f"digits-{slot}" in world.pods:
                world.sync(slot, lost_peers=(), unreached_s=0.0)
        world.turn()
    for slot in parse_slots(world.attempt.members):
        world.sync(slot, attempt=world.attempt.number)
    miss(world, member, for_s=UNREACHED_S)
    world.turn()


def test_of_two_workers_one_is_replaced_after_the_other() -> None:
    """The budget of failures without progress is three: both have had their turn by then."""
    world = joining(workers=2)
    miss(world, 1, for_s=UNREACHED_S)
    world.turn()
    assert world.status.slots == "0,2" and world.status.failures.avoid_nodes == ["node-1"]
    again(world, 2)
    assert (world.status.slots, world.status.failures.avoid_nodes) == ("2", ["node-1", "node-0"])
    world.tick(5).turn()
    assert world.status.slots == "2-3"


def test_of_two_workers_that_hold_the_only_checkpoint_none_is_given_up_at_once() -> None:
    world = joining(workers=2)
    progress = world.status.progress.model_copy(update={"position": 7})
    world.job = world.job.model_copy(update={"status": world.status.model_copy(update={"progress": progress})})
    miss(world, 1, for_s=UNREACHED_S)
    world.turn()
    assert (world.status.slots, world.status.failures.strikes) == ("0-1", {"1": 1})
    again(world, 1)
    assert world.status.slots == "0" and world.status.failures.avoid_nodes == ["node-1"]


def test_several_on_one_node_put_the_node_in_doubt() -> None:
    world = joining(workers=4)
    for slot in (2, 3):
        world.set_pod(slot, node="node-9")
    miss(world, 2, 3, for_s=UNREACHED_S)
    world.turn()
    assert world.status.failures.avoid_nodes == ["node-9"]


def test_who_came_after_all_is_waited_for_no_longer() -> None:
    world = joining().tick(20)
    miss(world, 1, 2, for_s=60)
    world.turn()
    world.sync(1, lost_peers=(), unreached_s=0.0)
    world.sync(2, lost_peers=(), unreached_s=0.0)
    world.turn()
    assert degraded(world)[0] == contract.REASON_HEALTHY
    world.tick(3600).turn()
    assert world.attempt.state == "Running"


def test_a_blip_late_in_a_long_join_ends_nothing() -> None:
    """Storage answers slowly, and then a link breaks for a moment."""
    world = joining().tick(3600)
    miss(world, 1, for_s=2)
    world.turn()
    assert world.attempt.state == "Running"


def test_once_the_ranks_run_links_between_agents_end_nothing() -> None:
    world = World.of(workers=3).run().tick(60)
    world.sync_all()
    miss(world, 1, 2, for_s=3600)
    world.tick(3600).turn()
    assert world.attempt.state == "Running" and degraded(world)[0] == contract.REASON_HEALTHY


def test_the_word_of_rank_0s_agent_alone_is_none_of_who_cannot_reach_it() -> None:
    """It waits also for one that takes its time before it asks to join."""
    world = joining().tick(20)
    world.sync(0, lost_peers=(1, 2), unreached_s=3600.0)
    world.tick(3600).turn()
    assert world.attempt.state == "Running" and degraded(world)[0] == contract.REASON_HEALTHY


def test_the_end_of_a_rank_says_more() -> None:
    world = joining()
    miss(world, 1, for_s=UNREACHED_S)
    world.break_rank(2, raised(2, "ValueError"))
    world.turn()
    assert world.attempt.end_cause == contract.REASON_USER_ERROR


def test_a_startup_deadline_is_not_held_up_by_it() -> None:
    world = joining(startup_deadline_seconds=30)
    world.tick(20)
    miss(world, 1, 2, for_s=SAID_AFTER_S)
    world.turn()
    world.tick(30).turn()
    failed = world.status.condition("Failed")
    assert failed is not None and failed.reason == contract.REASON_STARTUP_DEADLINE
