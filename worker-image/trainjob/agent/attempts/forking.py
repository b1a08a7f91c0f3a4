"""An attempt's ranks on this agent as processes: their places, folders and environment, and the forks.

Called by `attempt` once the join is answered and everything that ranks may ask for is there.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import List

from trainjob.agent.processes import rank_command
from trainjob.agent.processes.rank import Rank
from trainjob.agent.processes.rank_command import AttemptPlace, RankPlace
from trainjob.agent.processes.ranks import RankGroup
from trainjob.agent.site import Site
from trainjob.agent.wire.from_leader import Joined


@dataclass(frozen=True)
class Shape:
    """How large the attempt is, and which part of it is ours."""

    number: int
    index: int
    workers: int
    processes: int
    plain: bool
    """One process per rank; else one per worker, a launcher."""

    @property
    def here(self) -> int:
        """Processes that this agent starts."""
        return self.processes if self.plain else 1

    @property
    def world(self) -> int:
        """Processes that all agents start."""
        return self.workers * self.here


def new_ranks(shape: Shape) -> List[Rank]:
    """Ours, not started."""
    return [Rank(shape.index * shape.here + local, local) for local in range(shape.here)]


def tmp_of(site: Site, number: int) -> str:
    """TMPDIR of the ranks of an attempt: on the volume of the staging area, so that what is saved there is moved."""
    return os.path.join(site.config.work_dir, "tmp", str(number))


def make_folders(site: Site, number: int) -> None:
    """Those of this attempt, and nothing of attempts before: their ranks are reaped, or died with their agent."""
    tmp = tmp_of(site, number)
    older = os.path.dirname(tmp)
    for name in os.listdir(older) if os.path.isdir(older) else ():
        _remove(os.path.join(older, name))
    os.makedirs(tmp, exist_ok=True)
    os.makedirs(os.path.join(site.config.work_dir, "logs"), exist_ok=True)


def remove_tmp(site: Site, number: int) -> None:
    """Its ranks are reaped."""
    shutil.rmtree(tmp_of(site, number), ignore_errors=True)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        os.unlink(path)


def place_of(site: Site, shape: Shape, run: int, answer: Joined, socket: str) -> AttemptPlace:
    """What all ranks of the attempt on this agent share."""
    return AttemptPlace(
        shape.number,
        run,
        site.config.spec.storage,
        answer.master_addr,
        answer.master_port,
        socket,
        site.socket_folder,
        tmp_of(site, shape.number),
        site.return_file,
    )


def fork_all(site: Site, group: RankGroup, shape: Shape, shared: AttemptPlace, argv: List[str]) -> None:
    """All ranks, without a pause between: either all are started, or an error ends those that were. Raises
    CannotRun, OSError.
    """
    for rank in group.ranks:
        place = RankPlace(
            rank.rank, rank.local_rank, shape.world, shape.here, shape.index, shape.workers, shape.processes
        )
        env = rank_command.environment(os.environ, site.config.command, place, shared)
        log = os.path.join(site.config.work_dir, "logs", f"rank-{rank.rank}.log")
        group.start(rank, argv, env, log, f"r{rank.rank:0{max(2, len(str(shape.world - 1)))}d} | ")
