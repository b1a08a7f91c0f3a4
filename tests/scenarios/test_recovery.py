"""A job loses a rank in every way there is, and comes back or fails with the right cause."""

from __future__ import annotations

import signal

import pytest

from support.faults import IMPORT, REPORT, SAVE, Faults
from support.scenario import Stage, Told, acknowledged
from trainjob_api import contract

pytestmark = pytest.mark.slow


def assert_complete(told: Told, attempts: int) -> None:
    assert told.status.holds("Complete"), told.text()
    assert told.attempts == attempts, told.text()


def test_a_job_trains_and_completes(stage: Stage) -> None:
    told = stage.run(stage.job("--steps", "5"))
    assert_complete(told, attempts=1)
    assert acknowledged(told.notes) == {0: 4, 1: 4}
    assert stage.committed() == [f"1-1-{n}" for n in range(1, 6)]
    assert any("rank 0 evaluates" in line for line in told.lines), told.text()
    assert told.status.failures.counted == 0
    assert told.status.slots == "0-1"


def test_a_killed_rank_comes_back_in_the_same_pods_at_the_acknowledged_report(stage: Stage) -> None:
    stage.plan(Faults().kill(rank=1, at_step=4))
    told = stage.run(stage.job("--steps", "8"))
    assert_complete(told, attempts=2)
    assert told.starts(0) == told.starts(1) == [(1, 0), (2, 4)]
    assert told.status.slots == "0-1"
    assert told.pods(1) == told.pods(2)
    failure = told.status.last_failure
    assert failure is not None
    assert (failure.rank, failure.signal, failure.reason, failure.attempt) == (
        1,
        int(signal.SIGKILL),
        contract.REASON_SIGNAL,
        1,
    )
    assert told.status.failures.counted == 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Faults().kill(rank=0, at_step=3), contract.REASON_SIGNAL),
        (Faults().terminate(rank=1, at_step=3), contract.REASON_SIGNAL),
        (Faults().exits(17, rank=1, at_step=3), contract.REASON_EXIT),
        (Faults().segfaults(rank=0, at_step=3), contract.REASON_SIGNAL),
        (Faults().raises("boom", rank=1, at_step=3), contract.REASON_USER_ERROR),
        (Faults().kill(rank=1, at_step=3, at=REPORT), contract.REASON_SIGNAL),
        (Faults().kill(rank=0, at_step=3, at=REPORT), contract.REASON_SIGNAL),
        (Faults().kill(rank=1, at_step=3, at=SAVE), contract.REASON_SIGNAL),
        (Faults().raises("disk", rank=0, at_step=3, at=SAVE), contract.REASON_USER_ERROR),
    ],
    ids=lambda value: value.planned[0].whom.replace(" ", "-") if isinstance(value, Faults) else "",
)
def test_whatever_ends_a_rank_the_job_resumes_at_the_acknowledged_report(
    stage: Stage, fault: Faults, reason: str
) -> None:
    stage.plan(fault)
    told = stage.run(stage.job("--steps", "6"))
    assert_complete(told, attempts=2)
    # Who comes to report() a moment after the other was killed inside it may be acknowledged all the same.
    newest = max(acknowledged([note for note in told.notes if note.attempt == 1]).values())
    assert newest == 2 or (newest == 3 and fault.planned[0].at == REPORT), told.text()
    # What all agents held when it was killed counts, though no rank lived to hear of it.
    least, most = newest + 1, 4 if fault.planned[0].at == REPORT else newest + 1
    assert told.starts(0)[-1] == told.starts(1)[-1] in [(2, step) for step in range(least, most + 1)], told.text()
    failure = told.status.last_failure
    assert failure is not None
    assert (failure.rank, failure.reason) == (fault.planned[0].rank, reason), told.text()


def test_a_rank_that_dies_at_its_imports_is_started_again(stage: Stage) -> None:
    stage.plan(Faults().kill(rank=1, at=IMPORT))
    told = stage.run(stage.job("--steps", "3"))
    assert_complete(told, attempts=2)
    assert told.starts(1) == [(2, 0)]


def test_a_rank_that_leaves_while_others_wait_in_report_is_an_error_at_once(stage: Stage) -> None:
    stage.plan(Faults().leaves(rank=1, at_step=2))
    told = stage.run(stage.job("--steps", "4"))
    assert_complete(told, attempts=2)
    failure = told.status.last_failure
    assert failure is not None
    assert "rank 1" in failure.message, told.text()
    assert told.starts(0)[-1] == (2, 2)


def test_an_exception_fails_the_job_after_its_budget_with_everything_in_status(stage: Stage) -> None:
    plan = Faults()
    for n in range(3):
        plan = plan.raises(f"no luck {n}", rank=1, at_step=2 + n).in_attempt(n + 1)
    stage.plan(plan)
    told = stage.run(stage.job("--steps", "9", max_failures=2))
    status = told.status
    assert status.holds("Failed"), told.text()
    assert told.attempts == 3
    failed = status.condition("Failed")
    assert failed is not None and failed.reason == contract.REASON_LIMIT, told.text()
    failure = status.last_failure
    assert failure is not None
    assert (failure.rank, failure.reason) == (1, contract.REASON_USER_ERROR)
    assert "RuntimeError" in failure.message and "no luck 2" in failure.message
    assert failure.traceback is not None and "count.py" in failure.traceback.splitlines()[1], failure.traceback
    assert "trainjob/session" not in failure.traceback


def test_the_same_exception_in_two_workers_in_a_row_fails_a_job_that_gained_nothing_between(stage: Stage) -> None:
    plan = Faults().raises("no luck", rank=1, at_step=3).in_attempt(1)
    stage.plan(plan.raises("no luck", rank=0, at_step=3).in_attempt(2))
    told = stage.run(stage.job("--steps", "9", max_failures=9))
    assert told.attempts == 2, told.text()
    failed, history = told.status.condition("Failed"), told.status.history
    assert failed is not None and failed.reason == contract.REASON_USER_ERROR, told.text()
    assert "the attempt before ended by the same error on another worker" in failed.message
    assert [entry.message and "no luck" in entry.message for entry in history] == [True, True]


def test_without_a_budget_the_first_failure_fails_the_job(stage: Stage) -> None:
    stage.plan(Faults().exits(3, rank=0, at_step=1))
    told = stage.run(stage.job("--steps", "4", max_failures=0))
    assert told.status.holds("Failed"), told.text()
    assert told.attempts == 1
    assert told.status.last_failure is not None and told.status.last_failure.exit_code == 3


@pytest.mark.parametrize(("action", "attempts", "counted"), [("Fail", 1, 1), ("Ignore", 2, 0), ("Restart", 2, 1)])
def test_rules_by_exit_code_decide(stage: Stage, action: str, attempts: int, counted: int) -> None:
    stage.plan(Faults().exits(42, rank=1, at_step=2))
    job = stage.job("--steps", "4", max_failures=1)
    policy = job.spec.failure_policy.model_validate(
        {"maxFailures": 1, "rules": [{"exitCodes": [42], "action": action}]}
    )
    told = stage.run(job.model_copy(update={"spec": job.spec.model_copy(update={"failure_policy": policy})}))
    assert told.attempts == attempts, told.text()
    assert told.status.holds("Failed" if action == "Fail" else "Complete")
    assert told.status.failures.counted in (counted, 0 if action == "Fail" else counted)


def test_a_script_that_cannot_start_in_the_worker_fails_at_once(stage: Stage) -> None:
    (stage.root / "broken.py").write_text("import sys\nif True:\n    import no_such_module_at_all\n")
    told = stage.run(stage.job(script=stage.root / "broken.py"))
    assert told.status.holds("Failed") or told.attempts == 4, told.text()
    failure = told.status.last_failure
    assert failure is not None and "no_such_module_at_all" in failure.message, told.text()


def test_rank_zero_may_evaluate_while_the_others_have_returned(stage: Stage) -> None:
    told = stage.run(stage.job("--steps", "2", "--pause", "0.3"))
    assert_complete(told, attempts=1)
    assert any("rank 0 evaluates" in line for line in told.lines)
