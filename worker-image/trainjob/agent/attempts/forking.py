"""An attempt's ranks on this agent as processes: their places, folders and environment, and the forks.

Called by `attempt` once the join is answered and everything that ranks may ask for is there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from typing import List

from trainjob.agent import rank_places
from trainjob.agent.config import AgentConfig
from trainjob.agent.mpi import proof
from trainjob.agent.processes import rank_command
from trainjob.agent.processes.rank import Rank
from trainjob.agent.processes.rank_command import AttemptPlace, RankPlace
from trainjob.agent.processes.ranks import RankGroup
from trainjob.agent.site import Site
from trainjob.agent.wire.from_leader import Joined
from trainjob.agent.wire.rank_calls import LONGEST_NAME, SOCKET_PATH_LIMIT

ROOM_LEFT = 0.2
"""Of the volume: with less, what earlier attempts left in TMPDIR goes, whoever named it."""


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
    return [Rank(rank, local) for local, rank in enumerate(rank_places.ranks_of(shape.index, shape.here))]


def tmp_of(site: Site) -> str:
    """TMPDIR of the ranks: on the volume of the staging area, so that what is saved there is moved. What a script
    names itself (a data set, a cache) is found again by the next attempt, and on one machine by all ranks.
    """
    return site.config.shared_tmp or os.path.join(site.config.work_dir, "tmp")


def recycled_of(config: AgentConfig) -> str:
    """Where files of a former checkpoint wait for the next one to be written over."""
    return os.path.join(config.work_dir, "recycled")


def tmpdir_of(site: Site) -> str:
    """The same as the ranks are told it: through a short link where paths of sockets below it would be too long, since
    a loader whose workers cannot hand over their first batch waits for it for ever.
    """
    tmp = tmp_of(site)
    enough = len(os.fsencode(tmp)) + len(LONGEST_NAME) - len("/t") <= SOCKET_PATH_LIMIT
    return tmp if enough else os.path.join(site.socket_folder, "t")


def make_tmp(site: Site) -> str:
    """TMPDIR of the ranks, as they are told it. Raises OSError."""
    tmp, told = tmp_of(site), tmpdir_of(site)
    os.makedirs(tmp, exist_ok=True)
    if told != tmp:
        with contextlib.suppress(FileExistsError):
            os.symlink(os.path.abspath(tmp), told)
    return told


def make_folders(site: Site) -> None:
    """What an attempt needs. Of attempts before only what they named themselves is there: see `remove_leftovers`."""
    make_tmp(site)
    remove_leftovers(site)
    os.makedirs(os.path.join(site.config.work_dir, "logs"), exist_ok=True)


def remove_leftovers(site: Site) -> None:
    """The ranks of this worker are reaped, or died with its agent: the temporary files whose names Python made up for
    them go. Where the volume is short of room and no other worker uses the folder, all of it goes, and what waits to be
    written over.
    """
    tmp, mark = tmp_of(site), _mark(site)
    short = _is_short_of_room(tmp)
    if short:
        shutil.rmtree(recycled_of(site.config), ignore_errors=True)
    everything = short and site.config.shared_tmp is None
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(tmp):
            if everything or mark in name:
                _remove(os.path.join(tmp, name))


def _mark(site: Site) -> str:
    """In short: paths of sockets have few characters."""
    return f"_{site.config.pod_uid[:6]}_"


def _is_short_of_room(folder: str) -> bool:
    try:
        room = os.statvfs(folder)
    except OSError:
        return False
    return room.f_bavail < room.f_blocks * ROOM_LEFT


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        os.unlink(path)


def place_of(site: Site, shape: Shape, run: int, answer: Joined, socket: str, secret: str) -> AttemptPlace:
    """What all ranks of the attempt on this agent share."""
    return AttemptPlace(
        shape.number,
        run,
        site.config.spec.storage,
        answer.master_addr,
        answer.master_port,
        socket,
        site.socket_folder,
        tmpdir_of(site),
        _mark(site),
        site.return_file,
        answer.hosted,
        site.starter.asks,
        proof.key_of(secret),
        recycled_of(site.config) if site.config.spec.recycle else "",
    )


def local_world_size(site: Site, shape: Shape) -> int:
    """How many ranks share this node, as they see it."""
    return shape.world if _of_machine(site, shape) else shape.here


def _of_machine(site: Site, shape: Shape) -> bool:
    return site.config.machine_ranks and shape.plain


def fork_all(site: Site, group: RankGroup, shape: Shape, shared: AttemptPlace, argv: List[str]) -> None:
    """All ranks, without a pause between: either all are started, or an error ends those that were. Raises
    CannotRun, OSError.
    """
    local, logs = local_world_size(site, shape), os.path.join(site.config.work_dir, "logs")
    digits = max(2, len(str(shape.world - 1)))
    for rank in group.ranks:
        place = RankPlace(rank.rank, rank.local_rank, shape.world, local, shape.index, shape.workers, shape.processes)
        if _of_machine(site, shape):
            place = place._replace(local_rank=rank.rank, node_rank=0)
        # The first one of this agent tells what its script imports, wherever it stands on the machine.
        told = shared if rank.local_rank == 0 else shared._replace(learn="")
        env = rank_command.environment(os.environ, site.config.command, place, told)
        log = os.path.join(logs, f"rank-{rank.rank}.log")
        group.start(rank, argv, env, log, f"r{rank.rank:0{digits}d} | ")
