"""Rank 0's agent asks the others where their ranks stand. One question at a time; whoever does not answer in time is
left out.

Made by `collectives`; used where ranks are missing (`barriers.missing`), and where a job hangs (`watch`).
"""

from __future__ import annotations

import asyncio
from typing import Dict, NamedTuple, Sequence, Set, Tuple

from trainjob.agent import rank_places
from trainjob.agent.background import within
from trainjob.agent.processes.vitals import Quiet
from trainjob.agent.wire import from_leader
from trainjob.agent.wire.from_leader import Tell
from trainjob.agent.wire.from_member import StacksAre
from trainjob_api.recorded_calls import Call

STACKS_WAIT_S = 2.0
"""For the other agents' answers; each takes up to a second itself."""
NO_ANSWER = "its agent does not answer"


class Answers(NamedTuple):
    """By rank."""

    stacks: Dict[int, str]
    places: Dict[int, str]
    """Node or pod."""
    quiet: Dict[int, Quiet]
    """Of those that were looked at before."""
    calls: Dict[int, Tuple[Call, ...]]
    """Of those that tell their collectives."""


class Inquiry:
    """One per attempt."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._asking = asyncio.Lock()
        self._request = 0
        self._answers = Answers({}, {}, {}, {})
        self._owing: Set[int] = set()
        self._came = asyncio.Event()

    def came(self, index: int, word: StacksAre) -> None:
        """An agent's answer."""
        if word.request == self._request:
            self._answers.stacks.update(word.stacks)
            self._answers.places.update(dict.fromkeys(word.stacks, word.place))
            self._answers.quiet.update(word.quiet)
            self._answers.calls.update(word.calls)
            self._owing.discard(index)
            self._came.set()

    async def ask(self, ranks: Sequence[int], ranks_each: int) -> Answers:
        """Takes STACKS_WAIT_S at most; every rank has an entry."""
        async with self._asking:
            self._request += 1
            self._answers = Answers(dict.fromkeys(ranks, NO_ANSWER), {}, {}, {})
            by_worker = rank_places.by_worker(ranks, ranks_each)
            self._owing = set(by_worker)
            loop = asyncio.get_running_loop()
            deadline = loop.time() + STACKS_WAIT_S
            for index, mine in by_worker.items():
                self._tell(index, from_leader.Stacks(self._request, mine))
            while self._owing:
                self._came.clear()
                try:
                    await within(self._came.wait(), max(0.0, deadline - loop.time()))
                except asyncio.TimeoutError:
                    break
            return self._answers
