"""Rank 0's agent: when ranks wait too long, names the missing ones with their stacks, on every side that waits.

Made by `collectives`; the stacks come from the agents that own the missing ranks.
"""

from __future__ import annotations

import asyncio
import re
from typing import Callable, Dict, Iterable, List, Optional, Set

from trainjob.agent.background import Background, OnFault
from trainjob.agent.barriers.barrier import Warn
from trainjob.agent.barriers.calls import CALL_NAMES, ranks_text
from trainjob.agent.wire import from_leader
from trainjob.agent.wire.from_leader import Tell
from trainjob.agent.wire.from_member import StacksAre

STACKS_WAIT_S = 2.0
"""For the other agents' answers; each takes up to a second itself."""
NAMED = 8
"""Ranks whose stacks are asked for in one warning: at 512 ranks the first few say it."""


_IN_TORCH = re.compile(r"/torch/(autograd/graph|nn/parallel/distributed|distributed/[^\"]*)\.py\"")
"""Where a rank stands whose torch collective waits for others: a backward pass, DDP's buffers, a call of its own."""


def advice(stacks: Iterable[str]) -> List[str]:
    """What to do where the missing ranks may wait in torch for those that wait here."""
    if not any(_IN_TORCH.search(stack) for stack in stacks):
        return []
    return [
        "They stand in a backward pass or in torch.distributed. If that waits for the ranks that wait here: do all "
        "ranks have as many batches? drop_last=True in the DataLoader makes them even, "
        "torch.distributed.algorithms.join.Join lets them be uneven."
    ]


class Missing:
    """One warning at a time."""

    def __init__(self, tell: Tell, on_fault: OnFault) -> None:
        self._tell = tell
        self._background = Background(on_fault)
        self._task: Optional[asyncio.Task[None]] = None
        self._request = 0
        self._stacks: Dict[int, str] = {}
        self._owing: Set[int] = set()
        self._came = asyncio.Event()

    def close(self) -> None:
        """The attempt is over."""
        self._background.cancel()

    def name(self, warning: Warn, ranks_each: int, current: Callable[[], int]) -> None:
        """Collect the stacks and tell all who wait, unless the call is over by then. `current`: the collective that
        is open.
        """
        if self._task is None or self._task.done():
            self._task = self._background.task(self._name(warning, ranks_each, current))

    def stacks_are(self, index: int, word: StacksAre) -> None:
        """An agent's answer."""
        if word.request == self._request:
            self._stacks.update(word.stacks)
            self._owing.discard(index)
            self._came.set()

    async def _name(self, warning: Warn, ranks_each: int, current: Callable[[], int]) -> None:
        named = warning.missing[:NAMED]
        await self._collect(named, ranks_each)
        if current() != warning.n:
            return
        call = CALL_NAMES.get(warning.kind, warning.kind)
        lines: List[str] = [
            f"{ranks_text(warning.waiting)} waited {warning.waited_s:.0f} s in {call} (collective {warning.n}) for "
            f"{ranks_text(warning.missing)}:"
        ]
        lines += [f"rank {rank}: {self._stacks.get(rank, 'its agent does not answer')}" for rank in named]
        lines += advice(self._stacks.get(rank, "") for rank in named)
        self._tell(None, from_leader.Missing(warning.waiting, "\n".join(lines)))

    async def _collect(self, ranks: tuple[int, ...], ranks_each: int) -> None:
        self._request += 1
        self._stacks = {}
        self._owing = {rank // ranks_each for rank in ranks}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STACKS_WAIT_S
        for index in sorted(self._owing):
            mine = tuple(rank for rank in ranks if rank // ranks_each == index)
            self._tell(index, from_leader.Stacks(self._request, mine))
        while self._owing:
            self._came.clear()
            try:
                await asyncio.wait_for(self._came.wait(), max(0.0, deadline - loop.time()))
            except asyncio.TimeoutError:
                return
