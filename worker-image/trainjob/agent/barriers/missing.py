"""Rank 0's agent: when ranks wait too long, names the missing ones with their stacks, on every side that waits.

Made by `collectives`; the stacks come from the agents that own the missing ranks.
"""

from __future__ import annotations

import asyncio
import re
from typing import Callable, Iterable, List, Optional, Sequence

from trainjob.agent.background import Background, OnFault
from trainjob.agent.barriers.barrier import Warn
from trainjob.agent.call_names import CALL_NAMES, by_rank_0_alone
from trainjob.agent.hangs import grouping
from trainjob.agent.hangs.inquiry import Inquiry
from trainjob.agent.processes.stacks import MORE
from trainjob.agent.rank_names import ranks_text
from trainjob.agent.wire import from_leader
from trainjob.agent.wire.from_leader import Tell

NAMED = 8
"""Ranks whose stacks are asked for in one warning: at 512 ranks the first few say it."""


_IN_TORCH = re.compile(r"/torch/(autograd/graph|nn/parallel/distributed|distributed/[^\"]*)\.py\"")
"""Where a rank stands whose torch collective waits for others: a backward pass, DDP's buffers, a call of its own."""


_LIGHTNING_SAVES = re.compile(
    r"/(pytorch_lightning|lightning/pytorch)/trainer/trainer\.py\", line \d+ in save_checkpoint"
)


def advice(stacks: Iterable[str], call: str, waiting: Sequence[int]) -> List[str]:
    """What to do where the missing ranks may wait in torch for those that wait here, in that call."""
    found = [stack for stack in stacks if _IN_TORCH.search(stack)]
    if not found:
        return []
    if any(_LIGHTNING_SAVES.search(stack) for stack in found):
        return [
            "Lightning's trainer.save_checkpoint() waits for all ranks: call it on every rank (rank 0 alone writes), "
            "and give report() the checkpoint on rank 0."
        ]
    alone = by_rank_0_alone(call, waiting)
    return [
        *([alone] if alone else []),
        "They stand in a backward pass or in torch.distributed. If that waits for the ranks that wait here: do all "
        "ranks have as many batches? prepare_data_loader() deals the samples out evenly, "
        "torch.distributed.algorithms.join.Join lets them be uneven.",
    ]


def told(rank: int, text: str) -> str:
    """Where a missing rank is, and its stacks, the main thread's first."""
    mine = grouping.users(grouping.main_thread(text))
    if mine is None or text.endswith(MORE):
        return f"rank {rank}: {text}"
    return f"rank {rank} is in {mine.place} {mine.function}\n{grouping.main_first(text)}"


class Missing:
    """One warning at a time."""

    def __init__(self, tell: Tell, inquiry: Inquiry, on_fault: OnFault) -> None:
        self._tell = tell
        self._inquiry = inquiry
        self._background = Background(on_fault)
        self._task: Optional[asyncio.Task[None]] = None

    def close(self) -> None:
        """The attempt is over."""
        self._background.cancel()

    def name(self, warning: Warn, ranks_each: int, current: Callable[[], int]) -> None:
        """Collect the stacks and tell all who wait, unless the call is over by then. `current`: the collective that
        is open.
        """
        if self._task is None or self._task.done():
            self._task = self._background.task(self._name(warning, ranks_each, current))

    async def _name(self, warning: Warn, ranks_each: int, current: Callable[[], int]) -> None:
        named = warning.missing[:NAMED]
        stacks = (await self._inquiry.ask(named, ranks_each)).stacks
        if current() != warning.n:
            return
        call = CALL_NAMES.get(warning.kind, warning.kind)
        lines: List[str] = [
            f"{ranks_text(warning.waiting)} waited {warning.waited_s:.0f} s in {call} (collective {warning.n}) for "
            f"{ranks_text(warning.missing)}:"
        ]
        lines += [told(rank, stacks[rank]) for rank in named]
        lines += advice(stacks.values(), call, warning.waiting)
        self._tell(None, from_leader.Missing(warning.waiting, "\n".join(lines)))
