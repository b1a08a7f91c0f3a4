"""Rank 0's agent: a person asks where the ranks are (`tj stack` of a cluster's job); each question is put to all
ranks once.

Made by `collectives`. The answer is told until the coordinator asks no more: it has it then.
"""

from __future__ import annotations

import asyncio
from typing import Callable, Optional, Tuple

from trainjob.agent.background import Background, OnFault
from trainjob.agent.hangs import grouping
from trainjob.agent.hangs.inquiry import Inquiry
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
            found = await self._inquiry.ask(range(total), each)
        if request == self._request:
            self.report = {"request": request, "stacks": _bounded("\n".join(grouping.lines(found.stacks)))}
            self._changed()


def _bounded(text: str) -> str:
    """In bytes: a coordinator refuses a report that is too large."""
    return text.encode("utf-8", "replace")[: contract.ASKED_STACKS_LIMIT].decode("utf-8", "ignore")
