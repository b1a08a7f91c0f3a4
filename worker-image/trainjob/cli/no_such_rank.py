"""`tj logs --rank` with ranks that a job has not: refused, with those that it has. Here and on a cluster alike."""

from __future__ import annotations

from trainjob.cli.errors import CommandError
from trainjob.launch.outcome.log_choice import Selection
from trainjob_api.contract import CLI_USAGE


def check(name: str, asked: str, selection: Selection, size: int) -> None:
    """`asked`: as it was typed; `size`: how many ranks there are. Raises CommandError if none of them is meant."""
    if selection.ranks is None or any(rank < size for rank in selection.ranks):
        return
    raise CommandError(
        f"{name} has rank 0 alone: no rank {asked}"
        if size == 1
        else f"{name} has {size} ranks, from 0 to {size - 1}: none of {asked} is among them",
        next_step="give ranks such as 0,3-5, or all",
        code=CLI_USAGE,
    )
