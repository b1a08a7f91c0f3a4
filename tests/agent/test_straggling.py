"""Who keeps the others waiting: the rule, against loops as they are (virtual time), the ones that are slow and the ones
that only look so.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from trainjob.agent.pace.straggling import LATE_S, Straggling, behind, parts, sentence
from trainjob.agent.wire.from_member import PaceOf
from trainjob.session.pace import Moment, Pace


@dataclass
class Part:
    """What a rank does in one step, in seconds."""

    data: float = 0.0
    cpu: float = 0.05
    blocked: float = 0.0
    """Neither at work nor in a collective, as far as anybody sees: stopped, queued, in a sleep of its own."""
    after: float = 0.0
    """Processor time between the collective and the next batch, while the others wait for it in the next one."""


Loop = Callable[[int, int], Part]
"""Rank, step -> its part."""


@dataclass
class Job:
    """Ranks whose steps end together: each takes as long as the slowest does."""

    world: int
    loop: Loop
    queued: Callable[[int], float] = lambda rank: 0.0
    stopped: Callable[[int], float] = lambda rank: 0.0
    disk: Callable[[int], float] = lambda rank: 0.0
    by_loader: bool = True
    device: bool = False
    ever: set[int] = field(default_factory=set)
    """Ranks that were told at any time."""

    def run(self, seconds: float, most: int = 200_000) -> Straggling:
        rule, paces = Straggling(), [Pace() for _ in range(self.world)]
        now, step = 0.0, 0
        while now < seconds and step < most:
            mine = [self.loop(rank, step) for rank in range(self.world)]
            took = [part.data + part.cpu + part.blocked + part.after for part in mine]
            step_s = max(took)
            now += step_s
            for rank, part in enumerate(mine):
                rest = Moment(step_s - part.data, part.cpu + part.after)
                told = paces[rank].step(part.data, rest, True)
                if told is not None:
                    told = told._replace(by_loader=self.by_loader, device=self.device)
                    kernel = self.queued(rank), self.stopped(rank), self.disk(rank)
                    rule.came(now, self.world, {rank: PaceOf(*told, *kernel)})
                    self.ever |= set(rule.told)
            step += 1
        return rule

    def ever_told(self, seconds: float, most: int = 200_000) -> set[int]:
        """At any time of the run."""
        self.run(seconds, most)
        return self.ever


def jittered(seed: int, factor: float) -> Callable[[], float]:
    rng = random.Random(seed)
    return lambda: rng.uniform(1.0, factor)


# --- Those that are slow ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [2, 3, 4, 8, 64])
def test_a_rank_that_computes_longer_is_named(world: int) -> None:
    slow = world - 1
    job = Job(world, lambda rank, step: Part(cpu=0.1 if rank == slow else 0.05))
    found = job.run(60).told
    assert list(found) == [slow]
    assert found[slow].share == pytest.approx(0.5, abs=0.02)
    assert "computing" in sentence(found[slow], "node-b")


def test_a_rank_whose_batches_come_late_is_named_with_its_loader() -> None:
    found = Job(4, lambda rank, step: Part(data=0.04 if rank == 2 else 0.001)).run(60).told
    assert list(found) == [2]
    assert "its data loader" in sentence(found[2], "node-b") and "node-b" in sentence(found[2], "node-b")


def test_loading_that_is_slow_now_and_then_is_slow() -> None:
    """One batch in ten takes a second: the median of its batches says nothing of it."""
    found = Job(4, lambda rank, step: Part(data=1.0 if rank == 1 and step % 10 == 0 else 0.001)).run(120).told
    assert list(found) == [1]


def test_a_rank_that_waits_for_a_processor_is_named() -> None:
    job = Job(4, lambda rank, step: Part(blocked=0.05 if rank == 3 else 0.0), queued=lambda r: 0.5 * (r == 3))
    found = job.run(60).told
    assert list(found) == [3]
    assert "free processor" in sentence(found[3], "")


def test_a_crowded_machine_names_nobody() -> None:
    """Each rank waits for a processor for most of its time, now the one more, now the other."""
    rng = random.Random(5)
    job = Job(
        4, lambda rank, step: Part(cpu=0.005, blocked=0.05 * rng.random()), queued=lambda r: rng.uniform(0.2, 0.9)
    )
    assert not job.ever_told(1800, most=6_000)


def test_a_rank_that_is_stopped_and_continued_is_named() -> None:
    """Half a second of each: one step in ten takes eleven times as long."""
    job = Job(
        4,
        lambda rank, step: Part(blocked=0.5 if rank == 1 and step % 10 == 0 else 0.0),
        stopped=lambda r: 0.5 * (r == 1),
    )
    found = job.run(120).told
    assert list(found) == [1]
    assert "stopped" in sentence(found[1], "")


def test_a_slow_disk_is_named() -> None:
    job = Job(4, lambda rank, step: Part(blocked=0.05 if rank == 1 else 0.0), disk=lambda r: 0.5 * (r == 1))
    found = job.run(60).told
    assert list(found) == [1] and "disk" in sentence(found[1], "")


def test_all_ranks_of_a_slow_node_are_named() -> None:
    job = Job(16, lambda rank, step: Part(cpu=0.08 if rank >= 12 else 0.05))
    assert sorted(job.run(60).told) == [12, 13, 14, 15]


def test_rank_0_of_a_loop_over_a_loader_is_named() -> None:
    assert list(Job(4, lambda rank, step: Part(cpu=0.1 if rank == 0 else 0.05)).run(60).told) == [0]


def test_a_rank_that_is_slow_through_jitter_is_named() -> None:
    """All steps vary threefold; one rank takes twice as long on average."""
    draw = jittered(3, 3.0)
    found = Job(8, lambda rank, step: Part(cpu=0.02 * draw() * (2.5 if rank == 5 else 1.0))).run(180).told
    assert list(found) == [5]


def test_short_and_long_steps() -> None:
    for usual in (0.0005, 2.0):
        job = Job(4, lambda rank, step, usual=usual: Part(cpu=usual * (1.5 if rank == 1 else 1.0)))
        assert list(job.run(40 * max(1.0, usual * 8)).told) == [1], usual


# --- Those that only look so --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_s", [0.02, 0.2, 2.0])
@pytest.mark.parametrize("world", [2, 4, 16])
def test_half_an_hour_of_tenfold_jitter_names_nobody(world: int, step_s: float) -> None:
    """And an hour of steps of up to 20 s: a window has eight."""
    draw = jittered(world, 10.0)
    job = Job(world, lambda rank, step: Part(data=0.1 * step_s * draw(), cpu=step_s * draw()))
    assert not job.ever_told(1800 if step_s < 1 else 3600, most=20_000 // world)


def test_rank_0_that_evaluates_alone_is_no_straggler() -> None:
    """For 20 steps' time, each 50 steps, with all its processor; the others wait."""
    job = Job(4, lambda rank, step: Part(after=1.0 if rank == 0 and step % 50 == 49 else 0.0))
    assert not job.ever_told(400)


def test_rank_0_that_evaluates_between_reports_is_no_straggler() -> None:
    """A loop without a prepared loader: a step lies between two report()s, and rank 0 does more in each."""
    job = Job(4, lambda rank, step: Part(cpu=2.0, after=2.0 if rank == 0 else 0.0), by_loader=False)
    assert not job.ever_told(400)


def test_another_rank_of_such_a_loop_is() -> None:
    job = Job(4, lambda rank, step: Part(cpu=2.0, after=2.0 if rank == 3 else 0.0), by_loader=False)
    assert list(job.run(900).told) == [3]


def test_a_slow_first_step_says_nothing() -> None:
    """One rank compiles for two minutes."""
    job = Job(4, lambda rank, step: Part(cpu=120.0 if rank == 2 and step == 0 else 0.05))
    assert not job.ever_told(240)


def test_a_checkpoint_that_takes_its_time_says_nothing() -> None:
    """All wait for it in report(); rank 0 has written it."""
    job = Job(
        4, lambda rank, step: Part(blocked=10.0 if step % 100 == 0 else 0.0, after=0.5 * (rank == 0 and not step % 100))
    )
    assert not job.ever_told(400)


def test_batches_of_unequal_length_say_nothing() -> None:
    """Sentences of 1 to 10 times the shortest, drawn anew for each rank and step."""
    draw = jittered(11, 10.0)
    assert not Job(8, lambda rank, step: Part(cpu=0.01 * draw())).ever_told(1800, most=5_000)


def test_a_little_slower_is_not_told() -> None:
    assert not Job(4, lambda rank, step: Part(cpu=0.055 if rank == 1 else 0.05)).ever_told(300)


def test_ranks_that_differ_all_by_nature_are_judged_by_their_spread() -> None:
    """A pipeline whose parts take 50 to 64 ms: the last one is no outlier among these."""
    assert not Job(8, lambda rank, step: Part(cpu=0.05 + 0.002 * rank)).ever_told(300)


def test_one_slow_window_is_not_told() -> None:
    job = Job(4, lambda rank, step: Part(cpu=0.1 if rank == 1 and 300 <= step < 350 else 0.05))
    assert not job.ever_told(60)


def test_a_device_that_spins_says_nothing_of_its_host() -> None:
    """Processor time of a rank on a GPU is that of waiting too; only batches that the device waited for count."""
    job = Job(4, lambda rank, step: Part(cpu=0.1 if rank == 1 else 0.05), queued=lambda r: 0.5 * (r == 1), device=True)
    assert not job.ever_told(120)
    slow = Job(4, lambda rank, step: Part(data=0.05 if rank == 1 else 0.0), device=True)
    assert list(slow.run(120).told) == [1]


def test_a_sleep_of_its_own_is_not_seen_and_not_told() -> None:
    """What is neither work nor loading could as well be a collective."""
    assert not Job(4, lambda rank, step: Part(blocked=0.05 if rank == 1 else 0.0)).ever_told(120)


# --- How it is told -----------------------------------------------------------------------------------------------------


def pace(steps: int, work_s: float = 0.5, **other: float) -> PaceOf:
    return PaceOf(steps, 1.0, 0.0, work_s, 0.0, 8, True)._replace(**other)


def test_it_takes_two_windows_to_tell_and_two_to_take_back() -> None:
    rule = Straggling()
    slow = {0: pace(8), 1: pace(8, 0.9)}
    assert not rule.came(0.0, 2, slow) and not rule.told
    assert rule.came(8.0, 2, {rank: each._replace(steps=16) for rank, each in slow.items()})
    assert list(rule.told) == [1]
    even = {0: pace(24), 1: pace(24)}
    assert not rule.came(16.0, 2, even) and list(rule.told) == [1]
    assert rule.came(24.0, 2, {rank: each._replace(steps=32) for rank, each in even.items()})
    assert not rule.told


def test_a_slow_window_between_good_ones_begins_the_count_anew() -> None:
    rule = Straggling()
    for at, slow in enumerate([True, False, True, False, True], start=1):
        rule.came(float(at), 2, {0: pace(8 * at), 1: pace(8 * at, 0.9 if slow else 0.5)})
    assert not rule.told


def test_ranks_whose_windows_end_elsewhere_are_not_compared_with_the_others() -> None:
    rule = Straggling()
    for at in range(1, 4):
        assert not rule.came(float(at), 2, {0: pace(16 * at), 1: pace(16 * at + 8, 0.9)})
    assert not rule.told


def test_one_of_many_that_says_nothing_is_not_waited_for() -> None:
    rule = Straggling()
    for at in range(1, 4):
        rule.came(at * LATE_S * 2, 5, {0: pace(8 * at), 1: pace(8 * at, 0.9), 2: pace(8 * at), 3: pace(8 * at)})
        rule.came(at * LATE_S * 2 + LATE_S, 5, {})
    assert list(rule.told) == [1]


def test_what_is_told_again_over_a_new_connection_counts_once() -> None:
    rule = Straggling()
    slow = {0: pace(8), 1: pace(8, 0.9)}
    for _ in range(3):
        rule.came(0.0, 2, slow)
    assert not rule.told


def test_a_window_without_time_is_all_wait() -> None:
    assert parts(PaceOf(8, 0.0, 0.0, 0.0, 0.0, 8)).wait == 1.0
    assert behind({0: pace(8)}) == {}
