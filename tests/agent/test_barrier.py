"""The leader's collectives as a state machine: each rule once, and all orders of arriving, ending, staging and
timing out.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainjob.agent.barriers.barrier import (
    ADMITTING,
    ARRIVING,
    STOPPED_PATIENCE_S,
    Admit,
    Barrier,
    Commit,
    Fail,
    Persist,
    Release,
    Stage,
    Warn,
)
from trainjob.agent.barriers.calls import Arrival
from trainjob_api import contract

REPORT, BARRIER = contract.KIND_REPORT, contract.KIND_BARRIER


def barrier(world_size: int = 2, agents: int | None = None, warn_s: float = 60.0) -> Barrier:
    return Barrier(world_size, range(agents if agents is not None else world_size), warn_s)


def call(rank: int, n: int = 1, kind: str = REPORT, **fields: Any) -> Arrival:
    return Arrival(rank, n, kind, **fields)


def test_the_last_arrival_releases_all() -> None:
    b = barrier(3)
    assert b.arrive(0, call(2)) == []
    assert b.arrive(0, call(0)) == []
    assert b.missing() == (1,)
    assert b.arrive(1, call(1)) == [Release(1, REPORT, stop=False, saved=False)]
    assert b.current == 0


def test_stop_from_any_rank_reaches_all() -> None:
    b = barrier()
    b.arrive(0, call(0, stop=True))
    assert b.arrive(0, call(1)) == [Release(1, REPORT, stop=True, saved=False)]


def test_a_checkpoint_of_different_steps_is_refused() -> None:
    b = barrier(3)
    b.arrive(0, call(0, mode=contract.UPLOAD_ASYNC, step=6))
    b.arrive(0, call(1, step=None))
    (fail,) = b.arrive(0, call(2, step=5))
    assert isinstance(fail, Fail) and fail.reason == contract.FAIL_MISMATCH and fail.ranks == fail.about == (0, 1, 2)
    assert "rank 2 at step 5; rank 0 at step 6" in fail.message and "leave step= out" in fail.message
    b.arrive(0, call(0, 2, mode=contract.UPLOAD_ASYNC, step=7))
    b.arrive(0, call(1, 2))
    assert b.arrive(0, call(2, 2, step=7)) == [Admit(2)], "ranks that give none, or the same"


def test_metrics_of_different_steps_are_the_ranks_own() -> None:
    b = barrier()
    b.arrive(0, call(0, step=6))
    assert b.arrive(0, call(1, step=5)) == [Release(1, REPORT, stop=False, saved=False)]


def test_one_rank_alone_is_a_world() -> None:
    assert barrier(1).arrive(0, call(0)) == [Release(1, REPORT, False, False)]


def test_a_repeated_arrival_of_a_released_call_is_answered_again_to_that_rank_alone() -> None:
    b = barrier()
    b.arrive(0, call(0))
    b.arrive(0, call(1))
    assert b.arrive(1, call(1)) == [Release(1, REPORT, False, False, ranks=(1,))]


def test_a_repeated_arrival_of_an_open_call_changes_nothing() -> None:
    b = barrier()
    b.arrive(0, call(0))
    assert b.arrive(5, call(0)) == []
    assert b.missing() == (1,)


def test_a_repeated_arrival_of_a_failed_call_fails_again() -> None:
    b = barrier()
    b.arrive(0, call(0))
    b.ended(1, "was killed by signal 9 (SIGKILL)")
    (failed,) = b.arrive(1, call(0))
    assert isinstance(failed, Fail) and failed.ranks == (0,) and failed.reason == contract.FAIL_RANK_GONE


def test_the_end_of_a_missing_rank_fails_those_who_wait_at_once() -> None:
    b = barrier(3)
    b.arrive(0, call(0))
    b.arrive(0, call(2))
    (failed,) = b.ended(1, "ended with exit code 0")
    assert isinstance(failed, Fail)
    assert (failed.ranks, failed.reason, failed.about) == ((0, 2), contract.FAIL_RANK_GONE, (1,))
    assert failed.message.startswith(
        "rank 1 ended with exit code 0, but ranks 0, 2 wait for it in report() (collective 1 of this attempt)."
    )


def test_a_report_that_rank_0_alone_has_called_is_asked_about() -> None:
    why = "report() is called by all ranks: does it stand under `if rank == 0:`, or has rank 0 fewer batches?"
    b = barrier(2)
    b.arrive(0, call(0))
    (failed,) = b.ended(1, "ended with exit code 0")
    assert isinstance(failed, Fail) and failed.message.endswith(why)
    killed = barrier(2)
    killed.arrive(0, call(0))
    (failed,) = killed.ended(1, "was killed by signal 9 (SIGKILL)")
    assert isinstance(failed, Fail) and why not in failed.message
    later = barrier(2)
    later.arrive(0, call(0))
    later.arrive(0, call(1))
    later.arrive(0, call(0, 2))
    (failed,) = later.ended(1, "ended with exit code 0")
    assert isinstance(failed, Fail) and why not in failed.message, "both have called it once"


def test_calling_when_a_rank_is_gone_already_fails_at_once() -> None:
    b = barrier(2)
    assert b.ended(1, "ended with exit code 0") == []
    (failed,) = b.arrive(0, call(0, kind=BARRIER))
    assert isinstance(failed, Fail) and failed.ranks == (0,) and "barrier()" in failed.message


def test_a_rank_that_dies_while_it_waits_fails_the_others_that_wait() -> None:
    b = barrier(3)
    b.arrive(0, call(0))
    b.arrive(0, call(1))
    (failed,) = b.ended(1, "was killed by signal 9 (SIGKILL)")
    assert isinstance(failed, Fail) and failed.ranks == (0,) and failed.about == (1,)
    (late,) = b.arrive(0, call(2))
    assert isinstance(late, Fail) and late.ranks == (2,)


def test_a_rank_that_dies_waiting_alone_leaves_a_clean_table() -> None:
    b = barrier(2)
    b.arrive(0, call(1))
    assert b.ended(1, "was killed by signal 9 (SIGKILL)") == []
    (failed,) = b.arrive(1, call(0))
    assert isinstance(failed, Fail) and failed.about == (1,)


def test_an_end_after_the_last_arrival_does_not_undo_a_save() -> None:
    b = barrier(2)
    b.arrive(0, call(0, mode=contract.UPLOAD_ASYNC))
    b.arrive(0, call(1))
    assert b.ended(1, "was killed by signal 9 (SIGKILL)") == []
    b.admitted(1)
    b.staged(0, 1)
    b.staged(1, 1)
    b.persisted(0, 1)
    assert b.persisted(1, 1) == [Release(1, REPORT, stop=False, saved=True)]


def test_different_calls_are_a_mismatch_for_all() -> None:
    b = barrier(3)
    b.arrive(0, call(0, 3, REPORT))
    (failed,) = b.arrive(0, call(1, 3, BARRIER))
    assert isinstance(failed, Fail) and failed.ranks == (0, 1) and failed.reason == contract.FAIL_MISMATCH
    assert "rank 0 called report() as collective 3; rank 1 called barrier() as collective 3" in failed.message
    (late,) = b.arrive(0, call(2, 3, REPORT))
    assert isinstance(late, Fail) and late.ranks == (2,)


def test_the_call_after_a_failed_one_can_succeed() -> None:
    b = barrier(2)
    b.arrive(0, call(0, 1, REPORT))
    b.arrive(0, call(1, 1, BARRIER))
    b.arrive(1, call(0, 2))
    assert b.arrive(1, call(1, 2)) == [Release(2, REPORT, False, False)]


def test_a_time_out_names_who_did_not_call() -> None:
    b = barrier(3)
    b.arrive(10, call(0, timeout_s=5))
    b.arrive(11, call(2, timeout_s=1))
    assert b.deadline() == 12
    assert b.tick(11.9) == []
    (failed,) = b.tick(12)
    assert isinstance(failed, Fail) and (failed.ranks, failed.reason, failed.about) == (
        (0, 2),
        contract.FAIL_TIMEOUT,
        (1,),
    )
    assert "waited 1 s (the time-out of rank 2) for rank 1" in failed.message


def test_warnings_name_the_missing_again_and_again() -> None:
    b = barrier(3, warn_s=60)
    b.arrive(0, call(1))
    assert b.deadline() == 60
    assert b.tick(60) == [Warn(1, REPORT, missing=(0, 2), waiting=(1,), waited_s=60)]
    assert b.tick(61) == []
    assert b.tick(120) == [Warn(1, REPORT, missing=(0, 2), waiting=(1,), waited_s=120)]
    b.arrive(121, call(0))
    b.arrive(121, call(2))
    assert b.deadline() is None


def test_a_checkpoint_is_admitted_staged_and_persisted_by_all_before_anyone_is_answered() -> None:
    b = barrier(4, agents=2)
    for rank in range(3):
        b.arrive(0, call(rank))
    assert b.arrive(0, call(3, mode=contract.UPLOAD_ASYNC)) == [Admit(1)]
    assert b.staged(0, 1) == []
    assert b.admitted(1) == [Stage(1, (0, 1))]
    assert b.staged(1, 1) == []
    assert b.staged(1, 1) == []
    assert b.staged(0, 1) == [Persist(1, (0, 1))]
    assert b.persisted(0, 1) == []
    assert b.persisted(1, 1) == [Release(1, REPORT, stop=False, saved=True)]


def test_sync_waits_for_the_commit() -> None:
    b = barrier(1, agents=1)
    b.arrive(0, call(0, mode=contract.UPLOAD_SYNC))
    b.admitted(1)
    b.staged(0, 1)
    assert b.persisted(0, 1) == [Commit(1)]
    assert b.committed(1) == [Release(1, REPORT, False, True)]


def test_sync_tells_why_it_cannot_be_stored() -> None:
    b = barrier(1, agents=1)
    b.arrive(0, call(0, mode=contract.UPLOAD_SYNC))
    b.admitted(1)
    b.staged(0, 1)
    b.persisted(0, 1)
    (failed,) = b.commit_failed(1, "the disk is full")
    assert isinstance(failed, Fail) and failed.reason == contract.FAIL_STORAGE and failed.ranks == (0,)


def test_an_agent_that_cannot_stage_fails_the_report_for_all() -> None:
    b = barrier(2)
    b.arrive(0, call(0, mode=contract.UPLOAD_ASYNC))
    b.arrive(0, call(1, mode=contract.UPLOAD_ASYNC))
    b.admitted(1)
    b.staged(0, 1)
    (failed,) = b.stage_failed(1, 1, "no such directory")
    assert isinstance(failed, Fail) and (failed.ranks, failed.reason) == ((0, 1), contract.FAIL_STAGING)
    assert b.staged(1, 1) == []


def test_a_rank_that_left_inside_report_is_the_cause_of_files_that_are_gone() -> None:
    b = barrier(2)
    b.arrive(0, call(0, mode=contract.UPLOAD_ASYNC))
    b.arrive(0, call(1, mode=contract.UPLOAD_ASYNC))
    b.admitted(1)
    assert b.ended(1, "ended with exit code 0") == [], "what it gave may be whole"
    (failed,) = b.stage_failed(1, 1, "no such directory")
    assert isinstance(failed, Fail) and (failed.ranks, failed.about) == ((0,), (1,))
    assert failed.reason == contract.FAIL_RANK_GONE
    assert "rank 1 ended with exit code 0" in failed.message and "no such directory" in failed.message


@pytest.mark.parametrize("refused", ["another worker cannot", "all of it is refused", "no room"])
def test_a_rank_that_left_is_not_the_cause_of_what_is_no_fault_of_its_files(refused: str) -> None:
    b = barrier(2)
    b.arrive(0, call(0, mode=contract.UPLOAD_ASYNC))
    b.arrive(0, call(1, mode=contract.UPLOAD_ASYNC))
    b.admitted(1)
    b.ended(0, "ended with exit code 0")
    if refused == "all of it is refused":
        (failed,) = b.refused(1, refused)
    else:
        (failed,) = b.stage_failed(
            1 if refused == "another worker cannot" else 0, 1, refused, full=refused == "no room"
        )
    assert isinstance(failed, Fail) and failed.message == refused
    assert failed.reason == (contract.FAIL_FULL if refused == "no room" else contract.FAIL_STAGING)


def test_an_agent_that_comes_back_is_asked_again_for_what_it_owes() -> None:
    b = barrier(2)
    b.arrive(0, call(0, mode=contract.UPLOAD_ASYNC))
    b.arrive(0, call(1))
    assert b.rejoined(1) == []
    b.admitted(1)
    b.staged(0, 1)
    assert b.rejoined(1) == [Stage(1, (1,))]
    assert b.rejoined(0) == []
    b.staged(1, 1)
    assert b.rejoined(0) == [Persist(1, (0,))]


def test_no_time_out_once_all_have_arrived() -> None:
    b = barrier(1)
    b.arrive(0, call(0, mode=contract.UPLOAD_ASYNC, timeout_s=1))
    assert b.phase == ADMITTING
    assert b.deadline() is None and b.tick(100) == []


def test_who_waits_for_a_stopped_rank_is_refused_once_it_had_the_time_to_be_stopped_too() -> None:
    b = barrier(3, warn_s=4)
    b.arrive(0, call(0))
    assert b.stopped(1, (1,), "was stopped by its agent") == []
    b.arrive(2, call(2))
    assert b.deadline() == 1 + STOPPED_PATIENCE_S
    assert b.tick(1 + STOPPED_PATIENCE_S - 0.1) == [], "nor is anybody named as missing"
    (failed,) = b.tick(1 + STOPPED_PATIENCE_S)
    assert isinstance(failed, Fail)
    assert (failed.ranks, failed.reason, failed.about) == ((0, 2), contract.FAIL_RANK_GONE, (1,))
    assert failed.message.startswith("rank 1 was stopped by its agent, but ranks 0, 2 wait for it in report()")
    assert b.deadline() is None


def test_a_call_after_a_stop_waits_for_what_is_left_of_that_time() -> None:
    b = barrier(2)
    b.stopped(0, (1,), "was stopped by its agent")
    assert b.deadline() == STOPPED_PATIENCE_S, "also while nobody calls"
    assert b.arrive(3, call(0)) == []
    (failed,) = b.tick(STOPPED_PATIENCE_S)
    assert isinstance(failed, Fail) and (failed.ranks, failed.about) == ((0,), (1,))


def test_a_call_long_after_a_stop_is_refused_at_once() -> None:
    b = barrier(2)
    b.stopped(0, (1,), "was stopped by its agent")
    assert b.tick(STOPPED_PATIENCE_S) == [] and b.deadline() is None
    (failed,) = b.arrive(60, call(0))
    assert isinstance(failed, Fail) and failed.about == (1,)


def test_what_a_stopped_rank_had_called_counts() -> None:
    """Its agent tells of the call after its end, or again after a lost connection."""
    b = barrier(2)
    b.stopped(0, (1,), "was stopped by its agent")
    b.arrive(1, call(0))
    assert b.arrive(2, call(1)) == [Release(1, REPORT, stop=False, saved=False)]
    assert b.arrive(3, call(0, 2)) == []
    (failed,) = b.tick(STOPPED_PATIENCE_S)
    assert isinstance(failed, Fail) and (failed.n, failed.about) == (2, (1,))


def test_a_rank_that_is_stopped_while_it_waits_fails_the_others_that_wait() -> None:
    b = barrier(3)
    b.arrive(0, call(0))
    b.arrive(0, call(1))
    b.stopped(0, (1,), "was stopped by its agent")
    (failed,) = b.tick(STOPPED_PATIENCE_S)
    assert isinstance(failed, Fail) and (failed.ranks, failed.about) == ((0,), (1,))


def test_a_rank_that_is_stopped_while_it_waits_alone_leaves_a_clean_table() -> None:
    b = barrier(2)
    b.arrive(0, call(1))
    b.stopped(0, (1,), "was stopped by its agent")
    assert b.tick(STOPPED_PATIENCE_S) == [] and b.current == 0 and b.deadline() is None


def test_of_two_stopped_ranks_each_has_its_time_and_those_that_had_it_are_named_together() -> None:
    b = barrier(4)
    b.stopped(0, (1,), "was stopped by its agent")
    b.stopped(4, (2,), "was stopped by its agent")
    b.stopped(6, (1,), "was stopped by its agent")  # said again, after a lost connection
    b.arrive(7, call(0))
    (failed,) = b.tick(STOPPED_PATIENCE_S)
    assert isinstance(failed, Fail) and failed.about == (1,)
    b.tick(STOPPED_PATIENCE_S + 4)
    (later,) = b.arrive(60, call(3, 2))
    assert isinstance(later, Fail) and later.about == (1, 2)
    both = barrier(3)
    both.stopped(0, (1, 2), "was stopped by its agent")
    both.arrive(1, call(0))
    (failed,) = both.tick(STOPPED_PATIENCE_S)
    assert isinstance(failed, Fail) and failed.about == (1, 2)


def test_a_stop_spares_nobody_who_breaks() -> None:
    b = barrier(3)
    b.arrive(0, call(0))
    b.stopped(0, (1,), "was stopped by its agent")
    (failed,) = b.ended(2, "was killed by signal 9 (SIGKILL)")
    assert isinstance(failed, Fail) and failed.about == (2,)


def test_a_time_out_that_a_rank_gave_is_kept_for_a_stopped_rank_too() -> None:
    b = barrier(2)
    b.stopped(0, (1,), "was stopped by its agent")
    b.arrive(0, call(0, timeout_s=5))
    assert b.deadline() == 5
    (failed,) = b.tick(5)
    assert isinstance(failed, Fail) and failed.reason == contract.FAIL_TIMEOUT


def test_a_stop_does_not_undo_a_save() -> None:
    b = barrier(2)
    b.arrive(0, call(0, mode=contract.UPLOAD_ASYNC))
    b.arrive(0, call(1, mode=contract.UPLOAD_ASYNC))
    b.stopped(0, (1,), "was stopped by its agent")
    b.admitted(1)
    assert b.tick(STOPPED_PATIENCE_S) == []
    b.staged(0, 1)
    b.staged(1, 1)
    b.persisted(0, 1)
    (released,) = b.persisted(1, 1)
    assert isinstance(released, Release) and released.saved


def staging_with_a_stopped_rank() -> Barrier:
    b = barrier(2)
    b.arrive(0, call(0, mode=contract.UPLOAD_ASYNC))
    b.arrive(0, call(1, mode=contract.UPLOAD_ASYNC))
    b.admitted(1)
    b.stopped(0, (1,), "was stopped by its agent")
    return b


def test_what_a_stopped_rank_took_with_it_is_no_error_of_those_that_are_about_to_be_stopped_too() -> None:
    b = staging_with_a_stopped_rank()
    assert b.stage_failed(1, 1, "its folder is gone") == []
    b.staged(0, 1)
    assert b.tick(STOPPED_PATIENCE_S - 1) == []
    (failed,) = b.tick(STOPPED_PATIENCE_S)
    assert isinstance(failed, Fail)
    assert (failed.ranks, failed.reason, failed.about) == ((0,), contract.FAIL_RANK_GONE, (1,))
    assert "was stopped by its agent" in failed.message and failed.message.endswith("(its folder is gone)")
    assert b.deadline() is None and b.current == 0


def test_a_full_disk_beside_a_stopped_rank_is_told_at_once() -> None:
    b = staging_with_a_stopped_rank()
    (failed,) = b.stage_failed(1, 1, "the disk is full", full=True)
    assert isinstance(failed, Fail) and failed.reason == contract.FAIL_FULL


def test_what_another_agent_cannot_stage_is_told_at_once() -> None:
    b = staging_with_a_stopped_rank()
    (failed,) = b.stage_failed(0, 1, "it changes while it is read")
    assert isinstance(failed, Fail) and failed.reason == contract.FAIL_STAGING


KINDS = st.sampled_from([REPORT, BARRIER, contract.KIND_BROADCAST])
MODES = st.sampled_from([None, None, contract.UPLOAD_ASYNC, contract.UPLOAD_SYNC])


class World:
    """Ranks that run a program of calls against one barrier; every step is checked."""

    def __init__(self, programs: list[list[tuple[str, str | None]]], agents: int, timeout_s: float | None) -> None:
        self.programs = programs
        self.size = len(programs)
        self.each = self.size // agents
        self.barrier = Barrier(self.size, range(agents), 30.0)
        self.timeout_s = timeout_s
        self.now = 0.0
        self.at = [0] * self.size
        self.waiting: dict[int, int] = {}
        self.dead: set[int] = set()
        self.stopped: dict[int, float] = {}
        """Those that are dead because their agent ended them: until when nobody is refused for it."""
        self.staged: set[int] = set()
        self.persisted: set[int] = set()
        self.todo: list[tuple[str, int, int]] = []
        self.failed = False

    def step(self, rank: int) -> None:
        if rank in self.dead or rank in self.waiting or self.at[rank] >= len(self.programs[rank]):
            return
        kind, mode = self.programs[rank][self.at[rank]]
        n = self.at[rank] + 1
        self.waiting[rank] = n
        self.take(
            self.barrier.arrive(self.now, Arrival(rank, n, kind, self.timeout_s, mode if kind == REPORT else None))
        )

    def end(self, rank: int) -> None:
        if rank not in self.dead:
            self.dead.add(rank)
            self.waiting.pop(rank, None)
            self.take(self.barrier.ended(rank, "was killed"))

    def stop(self, rank: int) -> None:
        if rank not in self.dead:
            self.dead.add(rank)
            self.waiting.pop(rank, None)
            self.stopped[rank] = self.now + STOPPED_PATIENCE_S
            self.take(self.barrier.stopped(self.now, (rank,), "was stopped by its agent"))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.barrier.tick(self.now))

    def work(self) -> None:
        """One thing that the agents owe."""
        if not self.todo:
            return
        what, n, index = self.todo.pop(0)
        if what == "admit":
            self.take(self.barrier.admitted(n))
        elif what == "stage":
            self.staged.add(index)
            self.take(self.barrier.staged(index, n))
        elif what == "persist":
            assert len(self.staged) == self.size // self.each
            self.persisted.add(index)
            self.take(self.barrier.persisted(index, n))
        else:
            self.take(self.barrier.committed(n))

    def take(self, outputs: list[Any]) -> None:
        for output in outputs:
            if isinstance(output, Release):
                self.released(output)
            elif isinstance(output, Fail):
                self.failed = True
                for rank in output.ranks:
                    waited = self.waiting.pop(rank, None)
                    assert waited is not None or rank in self.stopped, "only who waits, or was stopped while it did"
                    self.at[rank] += 1
                assert output.message and output.reason
            elif isinstance(output, Warn):
                assert set(output.missing).isdisjoint(output.waiting)
            elif isinstance(output, Admit):
                self.staged, self.persisted = set(), set()
                self.todo.append(("admit", output.n, 0))
            elif isinstance(output, Stage):
                self.todo += [("stage", output.n, i) for i in output.indices]
            elif isinstance(output, Persist):
                self.todo += [("persist", output.n, i) for i in output.indices]
            else:
                self.todo.append(("commit", output.n, 0))

    def released(self, output: Release) -> None:
        assert output.ranks is None
        living = set(range(self.size)) - self.dead
        assert all(self.waiting.get(rank) == output.n for rank in living), "a release needs every living rank"
        assert {self.programs[rank][output.n - 1][0] for rank in living} <= {output.kind}
        if output.saved:
            assert len(self.persisted) == self.size // self.each, "no promise before every agent's disk has it"
        for rank in list(self.waiting):
            del self.waiting[rank]
            self.at[rank] += 1

    def check(self) -> None:
        if self.barrier.phase == ARRIVING:
            patient = {rank for rank, until in self.stopped.items() if until > self.now}
            gone = self.dead - patient
            assert not (gone and self.waiting), f"nobody waits for {gone}"
            deadline = self.barrier.deadline()
            assert not patient or (deadline is not None and deadline <= min(self.stopped[rank] for rank in patient))
            if self.timeout_s is not None and self.waiting:
                assert deadline is not None and deadline > self.now


@settings(max_examples=300, deadline=None)
@given(
    data=st.data(),
    agents=st.integers(1, 3),
    each=st.integers(1, 2),
    program=st.lists(st.tuples(KINDS, MODES), min_size=1, max_size=4),
    stray=st.integers(0, 9),
    timeout_s=st.sampled_from([None, 5.0]),
)
def test_any_order_answers_everyone_once_and_hangs_nobody(
    data: st.DataObject,
    agents: int,
    each: int,
    program: list[tuple[str, str | None]],
    stray: int,
    timeout_s: float | None,
) -> None:
    programs = [list(program) for _ in range(agents * each)]
    if stray < len(programs):
        programs[stray][-1] = (BARRIER, None)
    world = World(programs, agents, timeout_s)
    moves = st.one_of(
        st.tuples(st.just("step"), st.integers(0, world.size - 1)),
        st.tuples(st.just("step"), st.integers(0, world.size - 1)),
        st.tuples(st.just("work"), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 40)),
        st.tuples(st.just("end"), st.integers(0, world.size - 1)),
        st.tuples(st.just("stop"), st.integers(0, world.size - 1)),
    )
    inputs = {"step": world.step, "end": world.end, "stop": world.stop, "wait": world.wait}
    for what, value in data.draw(st.lists(moves, max_size=60)):
        inputs.get(what, lambda _: world.work())(value)
        world.check()
    world.wait(STOPPED_PATIENCE_S)
    # Whatever happened: if everyone goes on, nobody is left waiting.
    for _ in range(len(program) + 1):
        for rank in range(world.size):
            world.step(rank)
        while world.todo:
            world.work()
        world.check()
    finished = {rank for rank in range(world.size) if rank in world.dead or world.at[rank] == len(programs[rank])}
    assert len(finished) == world.size


CALLS = st.lists(
    st.tuples(
        st.sampled_from(["together", "ended", "stopped", "tick", "released"]),
        st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True).map(sorted),
        st.integers(1, 3),
        st.sampled_from(["report", "barrier"]),
        st.sampled_from([None, 5.0]),
        st.sampled_from([None, None, contract.UPLOAD_ASYNC]),
        st.booleans(),
        st.sampled_from([None, 7, 7, 8]),
    ),
    max_size=14,
)


@given(CALLS)
def test_ranks_that_arrive_together_are_ranks_that_arrive_one_by_one(calls: list[Any]) -> None:
    one, other = Barrier(4, range(2), 30.0), Barrier(4, range(2), 30.0)
    for now, (what, ranks, n, kind, timeout_s, mode, stop, step) in enumerate(calls):
        if what == "ended":
            assert one.ended(ranks[0], "ended") == other.ended(ranks[0], "ended")
        elif what == "stopped":
            assert one.stopped(float(now), ranks, "ended") == other.stopped(float(now), ranks, "ended")
        elif what == "tick":
            assert one.tick(float(now)) == other.tick(float(now))
        elif what == "released":
            assert one.admitted(one.current) == other.admitted(other.current)
        else:
            arrival = Arrival(ranks[0], n, kind, timeout_s, mode, stop, 0.25, step)
            alone = [out for r in ranks for out in one.arrive(float(now), arrival._replace(rank=r))]
            assert alone == other.arrive_together(float(now), tuple(ranks), arrival)
        assert (one.current, one.phase, one.missing(), one.deadline()) == (
            other.current,
            other.phase,
            other.missing(),
            other.deadline(),
        )
