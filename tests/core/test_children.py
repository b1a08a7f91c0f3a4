"""Which pod is what to a job, and whose agent speaks for it."""

from __future__ import annotations

from dataclasses import replace

from support.core import World
from trainjob_operator.core.children import sort_children


def test_an_agent_speaks_for_the_slot_of_its_pod_and_for_no_other() -> None:
    world = World.of(workers=2).run()
    observed = world.observe()
    swapped = replace(world.agents[1], pod_uid=world.pod(0).uid)
    kids = sort_children(replace(observed, agents={0: world.agents[0], 1: swapped}))
    assert kids.agent(kids.live[0]) == world.agents[0] and kids.agent(kids.live[1]) is None


def test_slots_rise_above_a_foreign_pods_and_so_does_the_next() -> None:
    world = World.of(workers=2)
    world.pods["digits-5"] = replace(
        World.of(workers=1).run().pod(0), slot=5, name="digits-5", uid="theirs", owned=False
    )
    world.turn()
    assert (world.status.slots, world.status.next_slot) == ("6-7", 8)
