"""This rank's place as the torch side sees it: the process group where there is one, else the agent's word."""

from __future__ import annotations

import os
from dataclasses import dataclass

from trainjob.session import calls
from trainjob_api import contract


@dataclass(frozen=True)
class Place:
    """Ranks of the job and of this worker."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


def place() -> Place:
    """Raises NotInWorkerError where there is neither a process group nor an agent."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        rank, world_size = dist.get_rank(), dist.get_world_size()
        local_rank = int(os.environ.get(contract.ENV_LOCAL_RANK, rank))
        return Place(rank, world_size, local_rank, int(os.environ.get(contract.ENV_LOCAL_WORLD_SIZE, world_size)))
    context = calls.get_context()
    return Place(context.rank, context.world_size, context.local_rank, context.local_world_size)
