"""Somebody asks where the ranks are: rank 0's agent alone is told, once, and status keeps the answer."""

from __future__ import annotations

import pytest

from support.core import World, is_steady
from trainjob_api import contract
from trainjob_api.contract import Instruction
from trainjob_operator.agents.report_fields import clean
from trainjob_operator.core.instruct import instruct

ANSWER = "rank 0, 1: train.py:7 main"


def told(world: World, slot: int) -> Instruction:
    return instruct(world.job, world.agents, slot, world.pod(slot).uid)[0]


def asking(request: str = "a") -> World:
    world = World.of(workers=2).run()
    world.annotate({contract.ANNOTATION_STACKS: request})
    world.settle()
    return world


def test_the_question_goes_to_rank_0s_agent_until_its_answer_is_in_status() -> None:
    world = asking()
    assert told(world, 0)["stacks"] == "a" and "stacks" not in told(world, 1)
    world.sync(0, stacks={"request": "a", "stacks": ANSWER})
    world.turn()
    stacks = world.status.stacks
    assert stacks is not None and (stacks.request, stacks.attempt, stacks.stacks) == ("a", 1, ANSWER)
    assert "stacks" not in told(world, 0) and is_steady(world)


def test_an_answer_to_another_question_is_none() -> None:
    world = asking("b")
    world.sync(0, stacks={"request": "a", "stacks": ANSWER})
    world.turn()
    assert world.status.stacks is None and told(world, 0)["stacks"] == "b"


def test_a_second_question_replaces_the_answer() -> None:
    world = asking()
    for request in ("a", "b"):
        world.annotate({contract.ANNOTATION_STACKS: request})
        world.sync(0, stacks={"request": request, "stacks": ANSWER + request})
        world.turn()
        assert world.status.stacks is not None and world.status.stacks.stacks == ANSWER + request


def test_a_long_question_counts_with_its_beginning() -> None:
    world = asking("x" * 1000)
    assert told(world, 0)["stacks"] == "x" * contract.STACKS_REQUEST_LIMIT


@pytest.mark.parametrize("request_", ["\x1b[2Jx\x00y\u202e", "\ud7ff\ue000xy", "[2J\nxy"])
def test_of_a_question_only_what_can_be_shown_counts(request_: str) -> None:
    """An agent's words lose what a terminal would act on: the answer to any question must still be its answer."""
    world = asking(request_)
    word = told(world, 0)["stacks"]
    assert word.isprintable() and clean(word, len(word)) == word and word.endswith("xy")
    world.sync(0, stacks={"request": word, "stacks": ANSWER})
    world.turn()
    assert world.status.stacks is not None and is_steady(world) and "stacks" not in told(world, 0)


def test_nobody_is_asked_before_an_attempt_runs() -> None:
    world = World.of(workers=2)
    world.annotate({contract.ANNOTATION_STACKS: "a"})
    world.settle()
    assert world.status.stacks is None and "stacks" not in instruct(world.job, {}, 0, "uid")[0]
