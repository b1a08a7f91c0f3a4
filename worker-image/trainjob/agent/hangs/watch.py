"""Rank 0's agent: looks each second whether the job hangs (`silence`), asks where all ranks stand before it says so,
and keeps the verdict until a step comes.

Made by `collectives`. What follows of a verdict is the operator's to decide (spec.hang.action).
"""

from __future__ import annotations

import asyncio
import time
from typing import Callable, Optional, Tuple

from trainjob.agent.background import Background, OnFault
from trainjob.agent.hangs import grouping, sentence
from trainjob.agent.hangs.calls import parting
from trainjob.agent.hangs.early import Early
from trainjob.agent.hangs.inquiry import Answers, Inquiry
from trainjob.agent.hangs.silence import Silence
from trainjob_api import contract

EVERY_S = 1.0


class Watch:
    """One per attempt."""

    def __init__(
        self, inquiry: Inquiry, busy: Callable[[], bool], excused: Callable[[float], float], on_fault: OnFault
    ) -> None:
        """`busy`: something else is known to keep the ranks (one has ended, a worker is unreached, a boundary);
        `excused`: seconds that went into checkpoints so far, by the loop's time.
        """
        self._inquiry = inquiry
        self._busy = busy
        self._excused = excused
        self._background = Background(on_fault)
        self._loop = asyncio.get_running_loop()
        self._silence = Silence(self._loop.time())
        self._judged: Tuple[Optional[float], float] = (None, 0.0)
        """The silence that was judged last: since when, and how long it was then."""
        self._judging: Optional[asyncio.Task[None]] = None
        self._early = Early(self._silence)
        self.report: Optional[contract.HangReport] = None
        """What is told, while it is so."""
        self.changed: Callable[[], None] = lambda: None
        self.served: Callable[[], bool] = lambda: False
        """All ranks have called the same, and wait for what agents do for them."""
        self.ranks: Callable[[], tuple[int, int]] = lambda: (0, 1)
        """How many there are, and how many each worker has."""
        self._background.spawn(self._run())

    def close(self) -> None:
        """The attempt is over."""
        self._background.cancel()

    def after(self, seconds: Optional[float]) -> None:
        """The limit as the coordinator says it; None: learned; 0: no verdicts."""
        if seconds == self._silence.after_s:
            return
        self._silence.after_s = seconds
        self._judged = (None, 0.0)
        self._early = Early(self._silence)
        if not self._is_hang():
            self._take_back()

    def step(self) -> None:
        """A report() was released, or rows of log() came."""
        now = self._loop.time()
        self._silence.step(now, self._excused(now))
        self._take_back()

    def sign(self) -> None:
        """A call of all ranks was released, whichever."""
        self._silence.sign(self._loop.time())
        self._take_back()

    def _is_hang(self) -> bool:
        limit = self._silence.limit
        return limit is not None and self._silent_s() > limit

    def _silent_s(self) -> float:
        now = self._loop.time()
        return self._silence.silent_s(now, self._excused(now))

    def _take_back(self) -> None:
        if self.report is not None:
            self.report = None
            self.changed()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            now = self._loop.time()
            hangs = self._silence.look(now, self._excused(now))
            if self._busy():
                self._silence.pardon(now)
            elif self._judging is not None and not self._judging.done():
                continue
            # Beside the looks: it takes seconds where an agent does not answer.
            elif hangs and self._is_due():
                self._judging = self._background.task(self._judge())
            elif not hangs and not self.served() and self._early.is_due(self._silent_s()):
                self._judging = self._background.task(self._prove())

    def _is_due(self) -> bool:
        """Again each time that the silence has doubled: ranks may have moved on to where they really stand still."""
        since, silent_s = self._judged
        return since != self._silence.since or self._silent_s() >= 2 * silent_s

    async def _judge(self) -> None:
        since = self._silence.since
        self._judged = since, self._silent_s()
        found = await self._ask()
        if not self._is_news(since) and self._is_hang():
            self._tell(found, early=not self._silence.is_sure)

    async def _prove(self) -> None:
        """Before the limit: whether two looks show that nothing can go on."""
        since, silent_s = self._silence.since, self._silent_s()
        found = await self._ask()
        if self._is_news(since) or self.served() or self._is_hang():
            return
        seen = self._early.looked(silent_s, found)
        if seen is not None:
            self._tell(found, early=not self._early.acts(seen, silent_s))
        else:
            self._take_back()

    async def _ask(self) -> Answers:
        total, each = self.ranks()
        return await self._inquiry.ask(range(total), each)

    def _is_news(self, since: float) -> bool:
        """Whether something was seen of the ranks meanwhile, or nobody knows what was."""
        now = self._loop.time()
        self._silence.look(now, self._excused(now))
        return self._silence.since != since or self._busy()

    def _tell(self, found: Answers, early: bool = False) -> None:
        since = self._silence.since
        if sentence.is_debugged(found.stacks):
            self._silence.pardon(self._loop.time())
            return
        moment = time.time() - (self._loop.time() - since)
        when = time.strftime("%H:%M UTC", time.gmtime(moment))
        said = sentence.verdict(found.stacks, found.places, when, parting(found.calls))
        self.report = {
            "since": moment,
            "ranks": list(said.ranks[: contract.HANG_RANKS_LIMIT]),
            "message": said.message[: contract.MESSAGE_LIMIT],
            "stacks": "\n".join(grouping.lines(found.stacks))[: contract.STACKS_LIMIT],
            "early": early,
        }
        self.changed()
