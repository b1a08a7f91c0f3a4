"""Verdicts on a job that hangs, by virtual time: since when it hangs stays true however long the question takes, and
ranks that get their time anew are looked at as for the first time.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from support.background import no_fault
from support.virtual_time import passes, run_virtual
from trainjob.agent.hangs.inquiry import STACKS_WAIT_S, Inquiry
from trainjob.agent.hangs.silence import LATE_S
from trainjob.agent.hangs.watch import EVERY_S, Watch

LIMIT_S = 30.0


class Job:
    """It took a step at 0 and hangs; no agent answers. At each verdict: when it was told, and since when it hangs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.busy = False
        self.told: list[tuple[float, float]] = []
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(time, "time", loop.time)
        self.watch = Watch(Inquiry(lambda index, word: None), lambda: self.busy, lambda now: 0.0, no_fault)
        self.watch.ranks = lambda: (2, 1)
        self.watch.after(LIMIT_S)
        self.watch.step()

        def changed() -> None:
            if self.watch.report is not None:
                self.told.append((loop.time(), self.watch.report["since"]))

        self.watch.changed = changed


def test_since_when_and_each_doubling_stay_true_while_agents_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        job = Job(monkeypatch)
        await passes(200)
        job.watch.close()
        assert STACKS_WAIT_S + EVERY_S > LATE_S
        first = LIMIT_S + EVERY_S
        assert job.told == [(first * times + STACKS_WAIT_S, 0.0) for times in (1, 2, 4)]

    run_virtual(story())


def test_ranks_that_were_excused_are_told_of_after_the_limit_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        job = Job(monkeypatch)
        await passes(40.5)
        job.busy = True
        await passes(10)
        job.busy = False
        await passes(40)
        job.watch.close()
        assert job.told == [(33.0, 0.0), (50 + LIMIT_S + EVERY_S + STACKS_WAIT_S, 50.0)]

    run_virtual(story())


def test_an_answer_to_what_has_changed_meanwhile_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        job = Job(monkeypatch)
        await passes(LIMIT_S + EVERY_S + STACKS_WAIT_S / 2)
        job.watch.sign()
        await passes(LIMIT_S)
        job.watch.close()
        assert job.told == []

    run_virtual(story())
