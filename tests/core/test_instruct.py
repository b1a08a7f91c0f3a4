"""The word for one agent, from the committed job alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from support.core import T0, World, make_job
from trainjob_api import contract
from trainjob_api.v1alpha1 import Attempt, Condition, HistoryEntry, TrainJobStatus
from trainjob_operator.agents.report_fields import instruction
from trainjob_operator.core.ends.causes import PLANNED_GRACE_S
from trainjob_operator.core.instruct import instruct
from trainjob_operator.core.model import AgentView


def agent(slot: int, address: str = "10.0.0.9:7000") -> AgentView:
    return AgentView(slot=slot, pod_uid=f"uid-{slot}", boot=1, heard_at=T0, address=address)


def attempt(state: Any = "Running", end_cause: str | None = None, **fields: Any) -> Attempt:
    values = {
        "number": 4,
        "state": state,
        "started_at": T0,
        "members": "1,3",
        "workers": 2,
        "world_size": 8,
        "cause": "Started",
        "end_cause": end_cause,
    }
    return Attempt(**values | fields)


def finished(type_: str) -> TrainJobStatus:
    return TrainJobStatus(
        slots="1",
        conditions=[Condition(type=type_, status="True", reason="Why", message="text", last_transition_time=T0)],
    )


AGENTS = {1: agent(1, "10.0.0.1:7000"), 3: agent(3)}


@pytest.mark.parametrize(
    ("status", "slot", "expected"),
    [
        (finished("Complete"), 1, {"do": "exit", "exit_code": contract.EXIT_OK}),
        (finished("Failed"), 1, {"do": "exit", "exit_code": contract.EXIT_JOB_FAILED}),
        (finished("Failed"), 7, {"do": "exit", "exit_code": contract.EXIT_JOB_FAILED}),
        (TrainJobStatus(slots="1"), 2, {"do": "exit", "exit_code": contract.EXIT_REMOVED}),
        (TrainJobStatus(slots="1"), 1, {"do": "hold", "grace_s": 0.0}),
        (
            TrainJobStatus(slots="1,3", attempt=attempt()),
            3,
            {"do": "run", "attempt": 4, "index": 1, "workers": 2, "processes": 4, "leader": "10.0.0.1:7000"},
        ),
        (TrainJobStatus(slots="1,3-4", attempt=attempt()), 4, {"do": "hold"}),
        (TrainJobStatus(slots="1,3", attempt=attempt("Ended", "KilledBySignal")), 1, {"do": "hold", "grace_s": 0.0}),
        (
            TrainJobStatus(slots="1,3", attempt=attempt("Ended", "Scaled")),
            1,
            {"do": "hold", "grace_s": PLANNED_GRACE_S},
        ),
        (
            TrainJobStatus(slots="", attempt=attempt("Ended", "Suspended")),
            1,
            {"do": "exit", "exit_code": contract.EXIT_REMOVED, "grace_s": PLANNED_GRACE_S},
        ),
    ],
)
def test_word(status: TrainJobStatus, slot: int, expected: dict[str, Any]) -> None:
    word, why = instruct(make_job(status), AGENTS, slot, f"uid-{slot}")
    assert expected.items() <= word.items()
    assert why


@pytest.mark.parametrize("agents", [{}, {1: agent(1, address="")}])
def test_waits_while_the_leader_is_unknown(agents: dict[int, AgentView]) -> None:
    job = make_job(TrainJobStatus(slots="1,3", attempt=attempt()))
    assert instruct(job, agents, 3, "uid-3")[0] == {"do": "wait"}


def test_another_pod_of_the_slot_is_not_told_to_run() -> None:
    job = make_job(TrainJobStatus(slots="1,3", attempt=attempt()))
    assert instruct(job, AGENTS, 3, "uid-of-a-zombie")[0]["do"] == "wait"


def test_agents_of_a_job_that_is_being_deleted_leave() -> None:
    job = make_job(TrainJobStatus(slots="1"))
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"deletion_timestamp": T0})})
    assert instruct(job, {}, 1, "uid-1")[0]["exit_code"] == contract.EXIT_REMOVED


def test_while_pods_start_their_agents_hold() -> None:
    world = World.of(workers=2)
    world.turn()
    world.start_pods()
    world.sync(0)
    assert instruct(world.job, world.agents, 0, world.pod(0).uid)[0]["do"] == "hold"


def learned(slot: int, modules: str) -> AgentView:
    return replace(agent(slot), forks={"modules": modules})


@pytest.mark.parametrize(
    "of_attempt",
    [attempt(), attempt("Ended", "PodLost")],
    ids=["a spare beside an attempt", "who comes in the place of a worker that was lost"],
)
def test_who_was_in_no_attempt_yet_is_told_what_the_members_have_learned(of_attempt: Attempt) -> None:
    agents = {1: AGENTS[1], 3: learned(3, "pandas"), 4: learned(4, "from who knows where")}
    job = make_job(TrainJobStatus(slots="1,3-4", attempt=of_attempt))
    words = {slot: instruct(job, agents, slot, f"uid-{slot}")[0] for slot in (1, 3, 4)}
    assert words[4] == {"do": "hold", "grace_s": 0.0, "learned": "pandas"}
    assert [word.get("learned") for word in (words[1], words[3])] == [None, None], "they have learned themselves"
    assert "learned" not in instruct(job, AGENTS, 4, "uid-4")[0]


def test_a_word_with_all_that_can_be_learned_can_be_acknowledged() -> None:
    """Else its agent would be answered at once, for ever."""
    job = make_job(TrainJobStatus(slots="1,3-4", attempt=attempt()))
    word, _ = instruct(job, {3: learned(3, "x" * contract.MODULES_LIMIT)}, 4, "uid-4")
    assert len(word["learned"]) == contract.MODULES_LIMIT
    assert instruction(dict(word)) == word


def test_members_agree_on_the_attempt() -> None:
    world = World.of(workers=4, processes_per_worker=2).run()
    words = [instruct(world.job, world.agents, slot, world.pod(slot).uid)[0] for slot in range(4)]
    assert [word["index"] for word in words] == [0, 1, 2, 3]
    assert {(word["attempt"], word["workers"], word["processes"], word["leader"]) for word in words} == {
        (1, 4, 2, "10.0.0.0:7000")
    }


@pytest.mark.parametrize(("causes", "spares"), [((), None), (("KilledBySignal",), None), (("OutOfMemory", "x"), True)])
def test_after_an_end_for_lack_of_memory_agents_spare_it(causes: tuple[str, ...], spares: bool | None) -> None:
    history = [
        HistoryEntry(attempt=1, cause="Started", end_cause=cause, started_at=T0, world_size=8) for cause in causes
    ]
    status = TrainJobStatus(slots="1,3", attempt=attempt(), history=history)
    word, _ = instruct(make_job(workers=2).model_copy(update={"status": status}), AGENTS, 3, "uid-3")
    assert word.get("spare_memory") is spares


def test_rank_0s_agent_hears_how_far_the_attempts_before_came_and_nobody_else_does() -> None:
    history = [
        HistoryEntry(attempt=n, cause="Started", end_cause="x", started_at=T0, world_size=8, position=position)
        for n, position in ((2, 4), (3, 7))
    ]
    status = TrainJobStatus(slots="1,3", attempt=attempt(), history=history)
    words = [instruct(make_job(status), AGENTS, slot, f"uid-{slot}")[0] for slot in (1, 3)]
    assert [word.get("reached") for word in words] == [7, None]
    first = TrainJobStatus(slots="1,3", attempt=attempt())
    assert instruct(make_job(first), AGENTS, 1, "uid-1")[0]["reached"] == 0


def test_rank_0s_agent_hears_of_the_trackers_as_they_are_now() -> None:
    world = World.of(workers=2, checkpoint={"storage": "/c"}, tracking=["csv"]).run()

    def told() -> list[object]:
        return [instruct(world.job, world.agents, slot, world.pod(slot).uid)[0].get("tracking") for slot in (0, 1)]

    assert told() == [["csv"], None]
    world.change_spec(tracking=["mlflow=http://m:5000"])
    assert world.turn().actions == () and world.attempt.number == 1 and told() == [["mlflow=http://m:5000"], None]
    world.change_spec(tracking=[])
    assert told() == [None, None]
