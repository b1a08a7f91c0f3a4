"""What a turn costs grows with the job's size and no faster: counted in calls of functions, which no clock disturbs; of
a search through slots in those that it passes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from support.core import World
from trainjob_operator.core.decide import decide
from trainjob_operator.core.pods import naming

SMALL, LARGE = 100, 400


def calls(work: Callable[[], object]) -> int:
    """Of functions of Python and of C."""
    made = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return made


class Slot(int):
    """Whoever goes through slots in search of one calls this for each."""

    def __eq__(self, other: object) -> bool:
        return int(self) == other

    __hash__ = int.__hash__


@pytest.fixture(autouse=True)
def searches_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever slots the rules read."""
    sound = naming.parse_slots
    for module in [module for name, module in sys.modules.items() if name.startswith("trainjob_operator.")]:
        if getattr(module, "parse_slots", None) is sound:
            monkeypatch.setattr(module, "parse_slots", lambda text: type(sound(text))(map(Slot, sound(text))))


def training(workers: int, plain: bool) -> World:
    world = World.of(workers=workers, **({"runtime": {"agent": "Disabled"}} if plain else {}))
    if plain:
        world.settle()
        world.start_pods()
        world.settle()
    else:
        world.run()
    return world


@pytest.mark.parametrize("plain", [False, True], ids=["agents", "plain"])
@pytest.mark.parametrize("what", ["rests", "broke", "went", "suspended", "all went"])
def test_a_turn_of_a_job_four_times_as_large_costs_about_four_times_as_much(what: str, plain: bool) -> None:
    costs = []
    for workers in (SMALL, LARGE):
        world = training(workers, plain)
        slots = sorted(pod.slot for pod in world.pods.values())
        if what == "broke":
            world.fail_pod(slots[workers // 2])
        elif what == "went":
            world.lose_pod(slots[workers // 2])
        elif what == "all went":
            for slot in slots:
                world.lose_pod(slot)
        elif what == "suspended":
            world.change_spec(suspend=True)
        seen = world.observe()
        costs.append(calls(lambda seen=seen, world=world: decide(seen, world.now)))  # type: ignore[misc]
    assert costs[1] < 5 * costs[0], costs
