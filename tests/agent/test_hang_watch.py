"""Rank 0's agent looks whether the job hangs: its verdict follows the limit as it is edited."""

from __future__ import annotations

import asyncio

import pytest

from support.virtual_time import run_virtual
from trainjob.agent.hangs.inquiry import Inquiry
from trainjob.agent.hangs.watch import Watch
from trainjob.agent.wire import from_leader
from trainjob.agent.wire.from_leader import FromLeader
from trainjob.agent.wire.from_member import StacksAre

STACK = 'Thread 0x1 (most recent call first):\n  File "train.py", line 1 in load\n'


class Job:
    """One rank, whose agent says at once where it stands, or after `answers_after_s`."""

    def __init__(self, answers_after_s: float = 0.0) -> None:
        self.answers_after_s = answers_after_s
        self.asked = 0
        self.inquiry = Inquiry(self.tell)
        self.watch = Watch(self.inquiry, lambda: False, lambda now: 0.0, self.fault)
        self.watch.ranks = lambda: (1, 1)
        self.watch.step()

    def tell(self, index: int | None, word: FromLeader) -> None:
        assert isinstance(word, from_leader.Stacks)
        self.asked += 1
        loop = asyncio.get_running_loop()
        loop.call_later(self.answers_after_s, self.inquiry.came, 0, StacksAre(word.request, {0: STACK}, "node-0"))

    def fault(self, error: BaseException) -> None:
        raise AssertionError(error)


@pytest.mark.parametrize(("limit", "stands"), [(0.0, False), (None, False), (300.0, False), (30.0, True)])
def test_a_verdict_that_the_new_limit_does_not_cover_is_taken_back(limit: float | None, stands: bool) -> None:
    async def main() -> None:
        job = Job()
        job.watch.after(60.0)
        await asyncio.sleep(65.0)
        assert job.watch.report is not None
        said: list[None] = []
        job.watch.changed = lambda: said.append(None)
        job.watch.after(limit)
        assert (job.watch.report is not None) == stands and len(said) == (0 if stands else 1)
        if limit == 300.0:
            await asyncio.sleep(300.0 - 65.0 - 2.0)
            assert job.watch.report is None
            await asyncio.sleep(6.0)
            assert job.watch.report is not None, "said again by the new limit, though not twice the silence has passed"
        job.watch.close()

    run_virtual(main())


def test_the_same_limit_once_more_changes_nothing() -> None:
    async def main() -> None:
        job = Job()
        job.watch.after(60.0)
        await asyncio.sleep(65.0)
        for _ in range(10):
            job.watch.after(60.0)
            await asyncio.sleep(1.0)
        assert job.watch.report is not None and job.asked == 1
        job.watch.close()

    run_virtual(main())


def test_a_limit_that_is_raised_while_ranks_are_asked_counts() -> None:
    async def main() -> None:
        job = Job(answers_after_s=1.5)
        job.watch.after(60.0)
        await asyncio.sleep(61.5)
        assert job.asked == 1 and job.watch.report is None
        job.watch.after(600.0)
        await asyncio.sleep(10.0)
        assert job.watch.report is None
        job.watch.close()

    run_virtual(main())
