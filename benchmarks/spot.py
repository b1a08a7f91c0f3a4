"""What machines that come and go yield: an elastic job beside jobs of one size, in the simulator.

    PYTHONPATH=tests python -m benchmarks.spot [--minutes M] [--seeds N] [--static N ...]

A trace says for how many workers there is room, 8 to 64, changing every 20 to 120 s; who loses its place is told 30 s
before. The control loop and the agents' state machines are the real ones, the ranks are puppets: a step takes a second
at any size, each tenth is saved, and a step is worth as much as there are workers. The figure is the share of what all
the room there was could have yielded. Time is virtual, so figures do not depend on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from benchmarks.figures import Figure
from support.simulation import Simulation, manifest
from support.virtual_time import run_virtual

LEAST, MOST = 8, 64
CHANGES_S = (20.0, 120.0)
SAVE_EVERY = 10
NAME = "digits"


@dataclass
class Worth(list[int]):
    """Steps of rank 0 as `Training.steps` has them, with the size that made each: one made again counts once."""

    sim: Simulation | None = None
    sizes: dict[int, int] = field(default_factory=dict)

    def append(self, step: int) -> None:
        """Rank 0 made it."""
        assert self.sim is not None
        newest = max(self.sim.world.groups.values(), key=lambda group: group.attempt)
        self.sizes = {known: size for known, size in self.sizes.items() if known < step}
        self.sizes[step] = len(newest.members)


def trace(seed: int, seconds: float) -> list[tuple[float, int]]:
    """(from when on, for how many workers there is room), ascending; the last entry is the end."""
    rng, at, room = random.Random(seed), 0.0, (LEAST + MOST) // 2
    found = []
    while at < seconds:
        found.append((at, room))
        at += rng.uniform(*CHANGES_S)
        room = min(MOST, max(LEAST, room + rng.choice((-24, -16, -8, -4, 4, 8, 16, 24))))
    return [*found, (seconds, room)]


def run(seed: int, seconds: float, spec: dict[str, Any]) -> float:
    """The share of the room's worth that a job with that spec makes of it."""
    rooms = trace(seed, seconds)
    could = sum(room * (until - since) for (since, room), (until, _) in pairwise(rooms))
    return run_virtual(_run(seed, rooms, spec)) / could


async def _run(seed: int, rooms: list[tuple[float, int]], spec: dict[str, Any]) -> int:
    async with Simulation(seed) as sim:
        training = sim.world.training(NAME)
        training.length, training.every = 10**9, SAVE_EVERY
        worth = Worth(sim=sim)
        training.steps = worth
        rng = random.Random(f"who goes {seed}")
        begun = asyncio.get_running_loop().time()
        for number, (since, room) in enumerate(rooms[:-1]):
            await asyncio.sleep(max(0.0, begun + since - asyncio.get_running_loop().time()))
            sim.checker.raise_failure()
            sim.world.capacity = room
            _reclaim(sim, rng, room)
            if number == 0:
                sim.cluster.create_job(manifest(NAME, failurePolicy={"maxPreemptions": -1}, **spec))
        await asyncio.sleep(max(0.0, begun + rooms[-1][0] - asyncio.get_running_loop().time()))
        return sum(worth.sizes.values())


def _reclaim(sim: Simulation, rng: random.Random, room: int) -> None:
    """Pods that have no room any more are evicted."""
    there = [agent for agent in sim.world.agents.values() if agent.alive and not _goes(sim, agent)]
    for agent in rng.sample(there, max(0, len(there) - room)):
        sim.world.evict_pod(agent)


def _goes(sim: Simulation, agent: Any) -> bool:
    return "deletionTimestamp" in sim.world.pod(agent.namespace, agent.pod_name)["metadata"]


def main() -> int:
    """Prints a line for each way."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spot", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="length of the trace (default: 30)")
    parser.add_argument("--seeds", type=int, default=3, help="how many traces (default: 3)")
    parser.add_argument("--static", type=int, nargs="+", default=[8, 16, 24, 32, 48, 64], help="sizes of the others")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    elastic = {"minWorkers": LEAST, "maxWorkers": MOST, "shrinkAfterSeconds": 5, "growAfterSeconds": 30}
    ways = {"spot_elastic": {"workers": MOST, "elastic": elastic}}
    ways |= {f"spot_static_{size}": {"workers": size} for size in args.static}
    for name, spec in ways.items():
        shares = [run(seed, 60.0 * args.minutes, spec) for seed in range(args.seeds)]
        print(Figure(name, "of the room", shares).line(), *(f"{share:.3f}" for share in shares), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
