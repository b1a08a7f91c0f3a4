"""Verdicts on a job that hangs, by virtual time: since when it hangs stays true however long the question takes, and
ranks that get their time anew are looked at as for the first time.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from support.background import no_fault
from support.bare_site import bare_site
from support.virtual_time import passes, run_virtual
from trainjob.agent.barriers.collectives import Collectives
from trainjob.agent.barriers.history import History
from trainjob.agent.barriers.reports import Facts
from trainjob.agent.committing.commits import Commits
from trainjob.agent.hangs.inquiry import STACKS_WAIT_S, Inquiry
from trainjob.agent.hangs.silence import LATE_S
from trainjob.agent.hangs.watch import EVERY_S, Watch
from trainjob.agent.wire.arrive import Arrive, Callers
from trainjob.agent.wire.from_leader import Fail, FromLeader, Stacks
from trainjob_api import contract

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


@pytest.mark.parametrize("end", ["stopped", "ended"])
def test_nobody_is_named_while_ranks_wait_for_one_that_its_agent_ended_or_that_has_ended(end: str) -> None:
    """A stopped one keeps the others waiting for a while: nobody hangs, what they wait for is known."""

    async def story() -> None:
        told: list[FromLeader] = []
        site = bare_site(None, None)
        history = History(None, 1, 1, 0, no_fault)
        commits = Commits(site, lambda index, word: None, 1, 1, ())
        job = Collectives(site, lambda indices, word: told.append(word), FACTS, commits, history)
        job.hangs.after(LIMIT_S)
        await passes(1)
        for index in (0, 1):
            job.arrived(index, report(1, index))
        await passes(LIMIT_S / 2)
        job.arrived(0, report(2, 0))
        await passes(LIMIT_S / 2 - 1)
        (job.stopped if end == "stopped" else job.ended)(1, 1, "is gone")
        await passes(4 * LIMIT_S)
        assert job.hangs.report is None and not any(isinstance(word, Stacks) for word in told)
        refused = [word for word in told if isinstance(word, Fail)]
        assert [(word.n, word.about) for word in refused] == [(2, (1,))]
        job.close()
        commits.close()
        history.close()

    run_virtual(story())


FACTS = Facts(attempt=1, run=1, workers=2, processes=1, plain=True, base_position=0, base_parent=None)


def report(n: int, rank: int) -> Arrive:
    return Arrive(
        n, contract.KIND_REPORT, (Callers((rank,)),), waited_s=0.0, row={"metrics": {}} if rank == 0 else None
    )
