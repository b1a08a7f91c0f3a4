"""What is told of a hang before the limit, by virtual time: two looks that prove it, and never one that does not."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from support.background import no_fault
from support.virtual_time import VirtualLoop, passes, run_virtual
from trainjob.agent.hangs.early import ACTS_S
from trainjob.agent.hangs.evidence import APART_S
from trainjob.agent.hangs.inquiry import Inquiry
from trainjob.agent.hangs.silence import EARLY_S, FLOOR_S, UNPACED_LIMIT_S, UNPACED_S
from trainjob.agent.hangs.watch import Watch
from trainjob.agent.processes.stacks import CUT
from trainjob.agent.processes.vitals import NOT_QUIET, Quiet
from trainjob.agent.wire import from_leader
from trainjob.agent.wire.from_leader import FromLeader
from trainjob.agent.wire.from_member import StacksAre
from trainjob_api.contract import HangReport

LIB = "/usr/lib/python3.12/site-packages"


def stack(*frames: tuple[str, int, str]) -> str:
    lines = ["Current thread 0x00007f3c2b5fa740 [python3] (most recent call first):"]
    return "\n".join([*lines, *(f'  File "{file}", line {line} in {function}' for file, line, function in frames)])


REDUCES = stack((f"{LIB}/torch/distributed/distributed_c10d.py", 2810, "all_reduce"), ("/work/train.py", 41, "main"))
REPORTS = stack(("/trainjob/lib/trainjob/session/calls.py", 80, "report"), ("/work/train.py", 60, "main"))
LOADS = stack(("/work/train.py", 88, "load_batch"), ("/work/train.py", 40, "main"))
SAVES = stack((f"{LIB}/torch/distributed/checkpoint/state_dict_saver.py", 9, "save"), ("/work/train.py", 50, "main"))
COMPILES = stack((f"{LIB}/torch/_inductor/async_compile.py", 9, "wait"), ("/work/train.py", 50, "main"))
RESTS, WAITS = Quiet(4.9, 4.9), Quiet(4.9, 0.0)


class Job:
    """Ranks that stand as they are told to stand; their agents answer at once."""

    def __init__(self, *ranks: tuple[str, Quiet], pace_s: float = 1.0, steps: int = 6) -> None:
        self.ranks = list(ranks)
        self.asked: list[float] = []
        self.told: list[tuple[float, HangReport | None]] = []
        self.served = False
        self.inquiry = Inquiry(self._answer)
        self.watch = Watch(self.inquiry, lambda: False, lambda now: 0.0, no_fault)
        self.watch.ranks = lambda: (len(self.ranks), 1)
        self.watch.served = lambda: self.served
        self.watch.changed = lambda: self.told.append((round(self._now), self.watch.report))
        self.pace_s, self.steps = pace_s, steps
        self.began = 0.0

    async def train(self) -> Job:
        for _ in range(self.steps):
            await asyncio.sleep(self.pace_s)
            self.watch.step()
        self.began = asyncio.get_running_loop().time()
        return self

    async def silent(self, seconds: float) -> Job:
        await passes(seconds)
        self.watch.close()
        return self

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time() - self.began

    def _answer(self, index: int | None, word: FromLeader) -> None:
        assert isinstance(word, from_leader.Stacks) and index is not None
        if index == 0:
            self.asked.append(self._now)
        text, quiet = self.ranks[index]
        answer = StacksAre(word.request, {index: text}, f"node-{index}", {index: quiet})
        asyncio.get_running_loop().call_later(0.1, self.inquiry.came, index, answer)


def after(seconds: float, *ranks: tuple[str, Quiet], pace_s: float = 1.0, steps: int = 6) -> Job:
    async def story() -> Job:
        job = await Job(*ranks, pace_s=pace_s, steps=steps).train()
        return await job.silent(seconds)

    return run_virtual(story())


def test_ranks_in_different_collectives_are_told_after_fifteen_seconds() -> None:
    job = after(20, (REDUCES, WAITS), (REPORTS, WAITS))
    ((moment, told),) = job.told
    assert EARLY_S <= moment <= EARLY_S + 2 and told is not None and told["early"] and len(job.asked) == 2
    assert "rank 0 waits in all_reduce (train.py:41)" in told["message"], told
    assert "rank 1 waits in report (train.py:60)" in told["message"], told


def test_a_job_of_slow_steps_is_given_five_of_them() -> None:
    assert after(99, (REDUCES, WAITS), (REPORTS, WAITS), pace_s=20).told == []
    assert len(after(103, (REDUCES, WAITS), (REPORTS, WAITS), pace_s=20).told) == 1


def test_a_rank_that_waits_for_something_of_its_own_is_named() -> None:
    job = after(20, (REDUCES, WAITS), (REDUCES, WAITS), (LOADS, RESTS))
    ((moment, told),) = job.told
    assert moment <= EARLY_S + 2 and told is not None and told["ranks"] == [2] and told["early"]


def test_nothing_is_proven_by_a_stack_of_which_a_part_is_missing() -> None:
    """What is taken for its main thread may be another."""
    for cut in (f"[900{CUT}\n{REPORTS}", f"{REPORTS}\n..."):
        assert after(FLOOR_S - 10, (REDUCES, RESTS), (cut, RESTS)).told == []


def test_nothing_ends_an_attempt_early_but_ranks_that_all_wait_for_each_other_for_a_minute() -> None:
    both = after(ACTS_S + 8, (REDUCES, RESTS), (REPORTS, RESTS)).told
    assert [told["early"] for _, told in both if told is not None][-1] is False
    assert min(at for at, told in both if told is not None and not told["early"]) >= ACTS_S
    alone = after(FLOOR_S + 10, (REDUCES, WAITS), (LOADS, RESTS)).told
    settled = [at for at, told in alone if told is not None and not told["early"]]
    assert settled and min(settled) >= FLOOR_S


def test_ranks_whose_other_threads_work_are_told_early_and_never_ended_for_it() -> None:
    """A backward pass that compiles in autograd's thread, servers of RPC: the main threads stand still meanwhile."""
    told = [word for _, word in after(FLOOR_S - 10, (REDUCES, RESTS), (REPORTS, WAITS)).told if word is not None]
    assert told and all(word["early"] for word in told)


def test_what_took_long_before_is_given_longer_before_an_attempt_is_ended() -> None:
    async def story() -> Job:
        job = await Job((REDUCES, RESTS), (REPORTS, RESTS), steps=10).train()
        job.ranks = [(REDUCES, NOT_QUIET), (REPORTS, NOT_QUIET)]
        await passes(80)
        job.watch.step()
        job.ranks = [(REDUCES, RESTS), (REPORTS, RESTS)]
        return await job.silent(115)

    told = [word for _, word in run_virtual(story()).told if word is not None]
    assert told and all(word["early"] for word in told)


@pytest.mark.parametrize(
    "ranks",
    [
        ((REDUCES, WAITS), (LOADS, WAITS)),
        ((REDUCES, NOT_QUIET), (REPORTS, WAITS)),
        ((REDUCES, WAITS), (LOADS, NOT_QUIET)),
        ((LOADS, RESTS), (LOADS, RESTS)),
        ((REDUCES, WAITS), ("gives no stack within 1 s: process state R", RESTS)),
        ((SAVES, RESTS), (SAVES, RESTS)),
        ((REDUCES, WAITS), (COMPILES, RESTS)),
        ((LOADS, RESTS),),
        ((REDUCES, Quiet(2.0, 2.0)), (REPORTS, Quiet(2.0, 2.0))),
    ],
    ids=["reads by pieces", "busy wait", "C call", "all load", "no stack", "saves", "compiles", "one rank", "too near"],
)
def test_before_the_limit_there_is_no_verdict_on_ranks_that_may_be_at_work(
    ranks: tuple[tuple[str, Quiet], ...],
) -> None:
    job = after(FLOOR_S - 10, *ranks)
    assert job.told == [] and 2 <= len(job.asked) <= 12, "it is looked, and more and more rarely"


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_before_five_pauses_ranks_that_wait_for_each_other_are_told_after_a_minute(steps: int) -> None:
    job = after(UNPACED_S + 5, (REDUCES, RESTS), (REPORTS, RESTS), steps=steps)
    ((moment, told),) = job.told
    assert UNPACED_S <= moment <= UNPACED_S + 2 and told is not None and told["early"]
    assert min(job.asked) >= UNPACED_S - APART_S - 1, "ranks that start are left alone"


def test_before_five_pauses_other_threads_may_still_compile_for_those_that_wait() -> None:
    assert after(UNPACED_LIMIT_S - 5, (REDUCES, WAITS), (REPORTS, WAITS), steps=2).told == []
    assert after(3600, (REDUCES, WAITS), (REPORTS, WAITS), steps=0).told == []


@pytest.mark.parametrize("rank", [(LOADS, NOT_QUIET), (REDUCES, NOT_QUIET), (COMPILES, RESTS)])
def test_before_five_pauses_a_long_silence_is_told_whatever_ranks_do_and_stands(rank: tuple[str, Quiet]) -> None:
    job = after(3 * UNPACED_LIMIT_S, (REDUCES, WAITS), rank, steps=3)
    assert job.told and all(word is not None and word["early"] for _, word in job.told)
    assert UNPACED_LIMIT_S <= job.told[0][0] <= UNPACED_LIMIT_S + 2


@pytest.mark.parametrize("steps", [0, 3, 6])
def test_a_rank_in_one_long_sleep_is_given_as_long_as_the_shortest_limit(steps: int) -> None:
    """`time.sleep(10 ** 6)` under an `if rank == 1`, while the others wait in a backward pass."""
    asleep = (LOADS, RESTS._replace(sleeps=True))
    assert after(FLOOR_S - 10, (REDUCES, RESTS), asleep, steps=steps).told == []
    told = [word for _, word in after(FLOOR_S + 150, (REDUCES, RESTS), asleep, steps=steps).told]
    assert told and told[0] is not None and told[0]["ranks"] == [1]
    assert steps == 6 or told[0]["early"], "without a pace of the job's own it ends nothing"


GETS = stack(
    ("/trainjob/lib/trainjob/session/connection.py", 9, "receive"),
    ("/trainjob/lib/trainjob/session/line.py", 9, "restore"),
    ("/trainjob/lib/trainjob/session/calls.py", 9, "get_checkpoint"),
    ("/work/train.py", 20, "main"),
)
READS = stack(
    ("/usr/lib/python3.12/ssl.py", 9, "read"),
    ("/trainjob/lib/trainjob/checkpoint/stores/s3.py", 9, "read"),
    ("/trainjob/lib/trainjob/session/checkpoint.py", 9, "open"),
    ("/work/train.py", 20, "main"),
)


@pytest.mark.parametrize("restores", [GETS, READS])
@pytest.mark.parametrize("other", [REDUCES, None])
def test_ranks_that_wait_for_a_checkpoint_are_at_work(restores: str, other: str | None) -> None:
    assert after(3600, (other or restores, RESTS), (restores, RESTS), steps=0).told == []


def test_before_five_pauses_a_rank_alone_is_given_as_long_as_a_limit_would() -> None:
    assert after(FLOOR_S - 10, (REDUCES, WAITS), (LOADS, RESTS), steps=2).told == []
    told = after(2 * FLOOR_S, (REDUCES, WAITS), (LOADS, RESTS), steps=2).told
    assert told and min(at for at, _ in told) >= FLOOR_S


def test_before_five_pauses_nothing_ends_an_attempt_before_the_shortest_limit() -> None:
    told = after(FLOOR_S + 200, (REDUCES, RESTS), (REPORTS, RESTS), steps=2).told
    settled = [at for at, word in told if word is not None and not word["early"]]
    assert settled and min(settled) >= FLOOR_S


@pytest.mark.parametrize(("given", "first"), [(8.0, UNPACED_S), (600.0, 600.0)])
def test_a_limit_counts_from_the_first_step_on_and_what_is_proven_before_it(given: float, first: float) -> None:
    async def story() -> Job:
        job = Job((REDUCES, RESTS), (REPORTS, RESTS))
        job.watch.after(given)
        return await job.silent(first + 5)

    told = run_virtual(story()).told
    assert told and first <= told[0][0] <= first + 2


def test_ranks_that_move_on_between_the_looks_are_at_work() -> None:
    async def story() -> Job:
        job = await Job((REDUCES, WAITS), (REPORTS, WAITS)).train()
        for line in range(100):
            job.ranks[1] = (REPORTS.replace('train.py", line 60', f'train.py", line {60 + line}'), WAITS)
            await passes(APART_S / 2)
        job.watch.close()
        return job

    assert run_virtual(story()).told == []


def test_a_rank_that_stirs_again_takes_the_word_back() -> None:
    async def story() -> Job:
        job = await Job((REDUCES, WAITS), (LOADS, RESTS)).train()
        await passes(20)
        job.ranks[1] = (LOADS, NOT_QUIET)
        return await job.silent(40)

    told = run_virtual(story()).told
    assert len(told) == 2 and told[0][1] is not None and told[1][1] is None


def test_what_took_long_before_is_given_longer_to_a_rank_alone() -> None:
    async def story() -> Job:
        job = await Job((REDUCES, WAITS), (LOADS, NOT_QUIET), steps=10).train()
        await passes(40)
        job.ranks[1] = (LOADS, RESTS)
        job.watch.step()
        return await job.silent(59)

    assert run_virtual(story()).told == []


def test_while_agents_work_on_a_call_of_all_ranks_nobody_is_looked_at() -> None:
    async def story() -> Job:
        job = await Job((REPORTS, RESTS), (REPORTS, RESTS)).train()
        job.served = True
        return await job.silent(200)

    assert run_virtual(story()).asked == []


def test_an_agent_that_was_frozen_for_a_minute_and_a_clock_that_jumps_say_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> Job:
        job = await Job((REDUCES, WAITS), (REPORTS, WAITS)).train()
        loop, offset = asyncio.get_running_loop(), 0.0
        monkeypatch.setattr(time, "time", lambda: loop.time() + offset)
        for at in range(20):
            offset += 86400.0 * (-1) ** at
            await passes(12 if at % 2 else 8)
            assert isinstance(loop, VirtualLoop)
            loop.stall(60)
        job.watch.close()
        return job

    assert run_virtual(story()).told == []


@pytest.mark.parametrize("seed", range(20))
def test_half_an_hour_of_tenfold_jitter_brings_no_verdict(seed: int) -> None:
    draw = random.Random(seed)

    async def story() -> Job:
        job = await Job((REDUCES, WAITS), (LOADS, NOT_QUIET)).train()
        usual = draw.choice([0.05, 1.0, 10.0])
        passed = 0.0
        while passed < 1800:
            late = draw.randrange(2)
            job.ranks = [(REDUCES, WAITS), (REDUCES, WAITS)]
            job.ranks[late] = (LOADS, NOT_QUIET)
            pause = usual * (10 if draw.random() < 0.1 else draw.uniform(0.5, 1.5))
            await asyncio.sleep(pause)
            passed += pause
            job.watch.step()
        job.watch.close()
        return job

    assert run_virtual(story()).told == []
