"""Rank 0's agent: a person asks where the ranks are (`tj stack` of a cluster's job); each question is put to all
ranks once.

Made by `collectives`. The answer is told until the coordinator asks no more: it has it then.
"""

from __future__ import annotations

import asyncio
from typing import Callable, FrozenSet, List, Mapping, Optional, Tuple

from trainjob.agent import rank_names
from trainjob.agent.background import Background, OnFault
from trainjob.agent.hangs import grouping
from trainjob.agent.hangs.inquiry import Inquiry
from trainjob.agent.processes.stacks import tail
from trainjob_api import contract


class Asked:
    """One per attempt."""

    def __init__(
        self, inquiry: Inquiry, ranks: Callable[[], Tuple[int, int]], changed: Callable[[], None], on_fault: OnFault
    ) -> None:
        """`ranks`: how many there are, and how many each worker has."""
        self._inquiry = inquiry
        self._ranks = ranks
        self._changed = changed
        self._background = Background(on_fault)
        self._asking = asyncio.Lock()
        self._request: Optional[str] = None
        self.report: Optional[contract.StacksReport] = None
        """What is told, while it is asked."""

    def close(self) -> None:
        """The attempt is over."""
        self._background.cancel()

    def want(self, request: Optional[str]) -> None:
        """The coordinator's newest word; None: nobody asks."""
        if request == self._request:
            return
        self._request, self.report = request, None
        if request is not None:
            self._background.spawn(self._ask(request))

    async def _ask(self, request: str) -> None:
        async with self._asking:
            if request != self._request:
                return  # another one came while the ranks were asked
            total, each = self._ranks()
            named = _named(request)
            ranks = range(total) if named is None else sorted(named.intersection(range(total)))
            found = await self._inquiry.ask(ranks, each)
        if request == self._request:
            lines = grouping.lines(found.stacks) if named is None else _whole(found.stacks, total)
            self.report = {"request": request, "stacks": _bounded("\n".join(lines))}
            self._changed()


def _named(request: str) -> Optional[FrozenSet[int]]:
    """Ranks of which all threads are wanted; None: all ranks, those together in one."""
    _, of, ranks = request.partition(contract.STACKS_OF)
    try:
        return rank_names.parse(ranks) if of else None
    except ValueError:
        return None  # somebody's own word: whoever asks gets an answer


def _whole(stacks: Mapping[int, str], total: int) -> List[str]:
    """Each rank has an equal share of the room: its end, where the main thread is."""
    if not stacks:
        return [f"no such rank: there are {total}, from 0 on"]
    share = contract.ASKED_STACKS_LIMIT // len(stacks) - len("rank 00000:\n[00000 bytes before this are not shown]\n")
    return grouping.each({rank: tail(text, max(share, 0)) for rank, text in stacks.items()})


def _bounded(text: str) -> str:
    """In bytes: a coordinator refuses a report that is too large."""
    return text.encode("utf-8", "replace")[: contract.ASKED_STACKS_LIMIT].decode("utf-8", "ignore")
