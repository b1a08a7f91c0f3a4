"""The answer to a person who asks where the ranks are: bounded as a report is, and one question at a time."""

from __future__ import annotations

import asyncio
from typing import Any, List

from trainjob.agent.hangs.asked import Asked
from trainjob.agent.hangs.inquiry import Answers
from trainjob_api import contract


class Ranks:
    """Answers each inquiry with the same words, after a moment."""

    def __init__(self, words: str) -> None:
        self._words = words
        self.inquiries = 0

    async def ask(self, ranks: Any, ranks_each: int) -> Answers:
        self.inquiries += 1
        await asyncio.sleep(0)
        return Answers({rank: f"{rank} {self._words}" for rank in ranks}, {}, {}, {})


async def settled(asked: Asked) -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def asked_of(ranks: Any, changes: List[None]) -> Asked:
    def fault(*_: Any) -> None:
        raise AssertionError("a fault")

    return Asked(ranks, lambda: (4, 2), lambda: changes.append(None), fault)


def test_the_answer_is_bounded_in_bytes() -> None:
    """A file's name may be of any script: a coordinator that refused the report would hear nothing more."""

    async def run() -> None:
        changes: List[None] = []
        asked = asked_of(Ranks("\u8a13\u7df4" * contract.ASKED_STACKS_LIMIT), changes)
        asked.want("a")
        await settled(asked)
        assert asked.report is not None and changes == [None]
        size = len(asked.report["stacks"].encode())
        assert contract.ASKED_STACKS_LIMIT - 4 < size <= contract.ASKED_STACKS_LIMIT

    asyncio.run(run())


def test_of_many_questions_at_once_only_the_newest_is_put_to_the_ranks_that_wait() -> None:
    async def run() -> None:
        changes: List[None] = []
        ranks = Ranks("somewhere")
        asked = asked_of(ranks, changes)
        for number in range(50):
            asked.want(f"q{number}")
            await asyncio.sleep(0) if number == 0 else None
        await settled(asked)
        assert asked.report is not None and asked.report["request"] == "q49"
        assert (ranks.inquiries, changes) == (2, [None]), "the first was on its way"

    asyncio.run(run())


def answer_to(request: str, words: str = "somewhere") -> str:
    async def run() -> str:
        asked = asked_of(Ranks(words), [])
        asked.want(request)
        await settled(asked)
        assert asked.report is not None and asked.report["request"] == request
        return asked.report["stacks"]

    return asyncio.run(run())


def test_of_ranks_that_are_named_all_threads_are_told_and_of_no_others() -> None:
    assert answer_to("q@1,3-9") == "rank 1: 1 somewhere\nrank 3: 3 somewhere"
    assert answer_to("q@4") == "no such rank: there are 4, from 0 on"
    assert answer_to("q") == answer_to("q@") == answer_to("q@rank one"), "somebody's own word is a question like any"


def test_each_rank_that_is_named_has_its_share_of_the_room_and_of_that_the_end() -> None:
    told = answer_to("q@0-3", "x\n" * contract.ASKED_STACKS_LIMIT + "main")
    assert told.count("\nmain") == 4 and told.count("bytes before this are not shown") == 4
    assert contract.ASKED_STACKS_LIMIT * 0.95 < len(told.encode()) <= contract.ASKED_STACKS_LIMIT
