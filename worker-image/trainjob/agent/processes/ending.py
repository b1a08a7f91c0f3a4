"""A rank that has raised ends, also when a thread that is no daemon, or a library's clean-up, keeps its process.

Called by `attempt` with a rank's own word that an exception ends it.
"""

from __future__ import annotations

import asyncio
from typing import Callable, Optional

from trainjob.agent.processes.rank import Rank
from trainjob.agent.processes.reaper import Process, kill_group
from trainjob.agent.processes.stacks import stack_of

ENDING_S = 10.0
"""From a rank's exception to its end, which clean-up (wandb.finish()) may take."""


async def see_it_end(
    number: int, process: Rank, speaker: Optional[int], folder: str, say: Callable[[str], None]
) -> None:
    """Kill it if it does not end. `speaker`: the process that speaks as this rank behind a launcher, which sees it
    end; None: the rank is the process that we started, and its group goes with it.
    """
    found = Process.of(process.pid if speaker is None else speaker)
    if process.gone is not None:
        await asyncio.wait([process.gone], timeout=ENDING_S)
    if process.ended_at is not None or found is None or not found.is_there():
        return
    stack = await stack_of(number, found.pid, folder)
    if process.ended_at is not None or not found.is_there():
        return
    say(
        f"rank {number} raised an exception and has not ended within {ENDING_S:g} s: it is killed. Likely a thread "
        f"that is no daemon, or a library's clean-up at exit. It stands here:\n{stack}"
    )
    if speaker is None:
        kill_group(found.pid)
    else:
        found.kill()
