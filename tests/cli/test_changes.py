"""Which lines a change of status is worth."""

from __future__ import annotations

import pytest

from support.jobs import NOW, at, attempt, checkpoint, condition, failure, job, progress
from trainjob.screen.changes import Change, Kind, changes, completed, freshest, metrics
from trainjob.screen.pace import Pace
from trainjob.screen.panel import Moment, panel
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob


def between(before: TrainJob | None, after: TrainJob, pace: Pace | None = None) -> list[Change]:
    return changes(before, after, pace or Pace(), NOW + 4)


def texts(before: TrainJob | None, after: TrainJob, pace: Pace | None = None) -> list[str]:
    return [change.text for change in between(before, after, pace)]


def test_nothing_new_is_no_line() -> None:
    state = {"attempt": attempt(), "progress": progress(), "checkpoint": checkpoint(), "lastFailure": failure()}
    assert texts(job(state), job(state)) == []


def test_what_a_start_waits_for_is_said_once() -> None:
    waiting = job(
        {
            "conditions": [
                condition("PodsScheduled", "True", "AllScheduled"),
                condition("WorkersReady", "False", "Waiting", "1 of 2 workers is up"),
            ]
        }
    )
    assert texts(None, waiting) == ["waiting: 1 of 2 workers is up"]
    assert texts(waiting, waiting) == []


def test_a_condition_without_a_sentence_shows_its_reason() -> None:
    assert texts(None, job({"conditions": [condition("PodsScheduled", "False", "Unschedulable")]})) == [
        "waiting: Unschedulable"
    ]


@pytest.mark.parametrize(
    "conditions",
    [
        [condition("ResourcesCreated", "False", "Creating", "0 of 2 pods exist")],
        [condition("Suspended", "True", "Suspended"), condition("WorkersReady", "False", "Suspended")],
    ],
)
def test_a_start_that_has_just_begun_and_a_stopped_job_say_nothing(conditions: list[dict[str, object]]) -> None:
    assert texts(None, job({"conditions": conditions})) == []


def test_a_running_job_waits_for_nothing() -> None:
    running = job({"attempt": attempt(), "conditions": [condition("WorkersReady", "False", "Waiting", "1 of 2")]})
    assert texts(None, running) == ["attempt 1 started: 2 workers, 2 ranks [Started]"]


def test_a_restart_tells_the_failure_first_and_then_what_comes() -> None:
    before = job({"attempt": attempt()})
    after = job(
        {
            "attempt": attempt(2, cause="UserCodeError", resumedFrom="1-1-4"),
            "lastFailure": failure(),
            "failures": {"counted": 1},
        }
    )
    assert texts(before, after) == [
        "attempt 1 failed: rank 1 on digits-1 raised ValueError: bad batch [UserCodeError; failure 1 of 3 allowed]",
        "attempt 2 started: 2 workers, 2 ranks [UserCodeError]",
        "attempt 2 resumes from checkpoint 1-1-4",
    ]


@pytest.mark.parametrize(
    ("counted", "most", "budget"),
    [
        (1, 3, "failure 1 of 3 allowed"),
        (4, 3, "more than the 3 allowed"),
        (2, -1, "2 failures so far"),
        (1, 0, "more than the 0 allowed"),
    ],
)
def test_the_budget_stands_beside_a_failure(counted: int, most: int, budget: str) -> None:
    after = job({"lastFailure": failure(), "failures": {"counted": counted}}, failurePolicy={"maxFailures": most})
    assert texts(None, after) == [
        f"attempt 1 failed: rank 1 on digits-1 raised ValueError: bad batch [UserCodeError; {budget}]"
    ]


def test_the_checkpoint_that_is_learnt_later_gets_its_own_line() -> None:
    before, after = job({"attempt": attempt(2)}), job({"attempt": attempt(2, resumedFrom="1-1-4")})
    assert texts(before, after) == ["attempt 2 resumes from checkpoint 1-1-4"]


def test_progress_has_step_share_metrics_pace_and_time_left() -> None:
    pace = Pace(1, ((NOW, 80), (NOW + 4, 180)))
    assert between(job({"attempt": attempt()}), job({"attempt": attempt(), "progress": progress()}), pace) == [
        Change(Kind.PROGRESS, "step 180/450 (40%)  loss=0.11 accuracy=0.975  40 ms/step  ETA 11s")
    ]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"step": None, "totalSteps": None, "position": 3}, "report 3"),
        ({"step": 7, "totalSteps": None}, "step 7"),
        ({"step": 7, "totalSteps": 10, "percent": 70}, "step 7/10 (70%)"),
        ({"step": 700, "totalSteps": 10}, "step 700/10 (100%)"),
    ],
)
def test_progress_says_only_what_the_script_told(given: dict[str, object], text: str) -> None:
    assert texts(None, job({"progress": {**progress(), "metrics": {}, **given}})) == [text]


def test_an_attempt_that_has_not_reported_is_no_progress() -> None:
    before, after = (
        job({"progress": progress(180)}),
        job({"progress": {"position": 4, "lastReportTime": at(6), "metrics": {}}}),
    )
    assert texts(before, after) == []


def test_a_checkpoint_is_a_line_of_its_own_kind() -> None:
    assert between(None, job({"checkpoint": checkpoint()})) == [
        Change(Kind.CHECKPOINT, "checkpoint 1-1-4 at step 180 saved (2.0 KiB)")
    ]


def test_trouble_that_does_not_stop_training_is_said_when_it_changes() -> None:
    fine, full = (
        job(),
        job({"conditions": [condition("Degraded", "True", "CheckpointFailing", "no space left on /ckpt")]}),
    )
    assert between(fine, full) == [Change(Kind.FAILURE, "warning: no space left on /ckpt")]
    assert between(full, full) == []


def test_the_end_has_the_final_numbers() -> None:
    after = job({"conditions": [condition("Complete", "True", "AllRanksSucceeded")], "progress": progress(450)})
    assert texts(job({"progress": progress(450)}), after) == ["complete  step 450/450 (100%)  loss=0.11 accuracy=0.975"]
    assert texts(after, after) == []


def test_a_committed_status_that_comes_late_takes_nothing_back() -> None:
    seen = job({"progress": progress(180, 4), "checkpoint": checkpoint("1-1-10")})
    late = job({"progress": progress(90, 2), "checkpoint": checkpoint("1-1-9"), "attempt": attempt()})
    merged = freshest(seen, late)
    assert (merged.status.progress, merged.status.checkpoint) == (seen.status.progress, seen.status.checkpoint)
    assert merged.status.attempt == late.status.attempt
    assert freshest(late, seen) is seen
    assert freshest(None, late) is late
    assert freshest(seen, job()).status.checkpoint == seen.status.checkpoint


def test_time_alone_is_no_progress() -> None:
    assert texts(job({"progress": progress(180, 4)}), job({"progress": progress(180, 9)})) == []


def test_a_loss_that_is_no_number_is_said_once_with_its_first_step() -> None:
    def at_count(count: int) -> TrainJob:
        seen = {"metric": "val.loss", "value": "NaN", "step": 3, "position": 2, "count": count}
        return job({"attempt": attempt(), "progress": {**progress(), "nonFinite": seen}})

    assert between(job({"attempt": attempt(), "progress": progress()}), at_count(1)) == [
        Change(Kind.FAILURE, "warning: val.loss became NaN at step 3 (1 value so far)")
    ]
    assert texts(at_count(1), at_count(12)) == []


@pytest.mark.parametrize(
    ("known", "word", "said"),
    [
        ({"accuracy": 0.5}, "NaN", "loss=nan accuracy=0.5"),
        ({}, "-Infinity", "loss=-inf"),
        ({"accuracy": 0.5, "loss": 0.25}, "NaN", "accuracy=0.5 loss=0.25"),
        ({f"m{at}": 0.0 for at in range(contract.METRICS_LIMIT)}, "NaN", "m0=0 m1=0 m2=0 m3=0 m4=0 m5=0 and 10 more"),
    ],
    ids=["it is none", "infinite", "it is one again", "it may be cut off"],
)
def test_a_loss_that_is_no_number_stands_among_the_metrics(known: dict[str, float], word: str, said: str) -> None:
    seen = {"metric": "loss", "value": word, "position": 2, "count": 1}
    done = [condition("Complete", "True", "AllRanksSucceeded")]
    nan = job({"attempt": attempt(), "progress": {**progress(), "metrics": known, "nonFinite": seen}})
    assert metrics(nan.status.progress) == said
    assert f"step 180/450 (40%)  {said}" in texts(None, nan)
    assert f"  {said}" in completed(job({**nan.status.to_json(), "conditions": done}), 1.0)
    assert panel(nan, Pace(), Moment(now=NOW, started=NOW))[2] == said


def test_a_planned_change_that_waits_is_said_once() -> None:
    def waits(**boundary: str) -> TrainJob:
        more = {"boundary": {"since": at(9), **boundary}} if boundary else {}
        return job({"attempt": attempt(), **more}, boundaryTimeoutSeconds=45)

    asked = "at the next report() with a checkpoint, at the latest after 45 s (spec.boundaryTimeoutSeconds)"
    said = Change(Kind.STATE, f"attempt 1 is to end [Scaled], {asked}")
    assert between(waits(), waits(cause="Scaled")) == [said]
    assert texts(waits(cause="Scaled"), waits(cause="Scaled")) == []
    assert texts(waits(cause="Scaled"), waits(cause="Suspended")) == [said.text.replace("Scaled", "Suspended")]
    assert texts(waits(cause="Scaled"), waits()) == []


def test_a_job_that_had_nothing_more_to_do_says_so() -> None:
    """`--resume-from` its own name, with the same number of epochs."""
    idle = job({"attempt": attempt(resumedFrom="1-1-6")})
    assert completed(idle, 6.9) == [
        "digits completed in 6.9s with 1 attempt",
        "  nothing new was saved; checkpoint 1-1-6 is there from before",
    ]
    plain = job({"attempt": attempt()}, runtime={"agent": "Disabled"})
    assert len(completed(plain, None)) == 1
    saved = job({"attempt": attempt(resumedFrom="1-1-6"), "checkpoint": checkpoint()})
    assert "from before" not in "\n".join(completed(saved, None))


def test_a_job_that_kept_nothing_is_told_what_would_have() -> None:
    silent, reported = job({"attempt": attempt()}), job({"attempt": attempt(), "progress": progress()})
    assert completed(silent, None)[-1].startswith("  report() was never called: trainjob.report(")
    assert completed(reported, None)[-1].startswith("  no checkpoint was reported: trainjob.report(")


ERROR = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: bad batch of pid {}'


@pytest.mark.parametrize(
    ("again", "said"),
    [
        ({"attempt": 2, "traceback": ERROR.format(74)}, True),
        ({"attempt": 2, "traceback": ERROR.format(74).replace("line 3", "line 4")}, False),
        ({"attempt": 3, "traceback": ERROR.format(74)}, False),
        ({"attempt": 2, "traceback": None}, False),
    ],
    ids=["the same", "elsewhere", "not in a row", "no exception"],
)
def test_an_error_that_comes_again_says_so_and_how_to_stop(again: dict[str, object], said: bool) -> None:
    first = failure(traceback=ERROR.format(9))
    many = {"failurePolicy": {"maxFailures": 9}}
    found = texts(job({"lastFailure": first}, **many), job({"lastFailure": {**first, **again}}, **many))
    assert found[0].startswith(f"attempt {again['attempt']} failed: ")
    assert found[1:] == (
        [
            "attempt 2 ended by the same cause as attempt 1. If a restart cannot mend that, `tj stop digits` ends the job; "
            "--max-failures (maxFailures) limits the restarts"
        ]
        if said
        else []
    )


def test_a_job_that_soon_ends_by_itself_is_not_told_to_be_stopped() -> None:
    """Of a killed process of a DataLoader too, whose pid differs."""
    lost = "rank 0 on digits-0 lost its DataLoader: process {} of it was killed by SIGKILL"
    first = failure(message=lost.format(7), reason=contract.REASON_SIGNAL, traceback=None)
    second = {**first, "attempt": 2, "message": lost.format(9)}
    counted = {"lastFailure": second, "failures": {"counted": 2}}
    found = texts(
        job({"lastFailure": first}, failurePolicy={"maxFailures": 3}), job(counted, failurePolicy={"maxFailures": 3})
    )
    assert found[1:] == ["attempt 2 ended by the same cause as attempt 1"]
    found = texts(
        job({"lastFailure": first}, failurePolicy={"maxFailures": -1}), job(counted, failurePolicy={"maxFailures": -1})
    )
    assert "`tj stop digits` ends the job" in found[1]


def test_a_worker_that_takes_the_place_of_another_is_named_with_why() -> None:
    broke = failure(pod="digits-1", message="rank 1 on digits-1 was killed by SIGKILL", reason=contract.REASON_SIGNAL)
    before = job({"attempt": attempt(state="Ended", members="0-1"), "lastFailure": broke})
    after = job({"attempt": attempt(2, members="0,2", cause="KilledBySignal"), "lastFailure": broke})
    said = "worker digits-2 takes the place of digits-1: rank 1 on digits-1 was killed by SIGKILL"
    assert said in texts(before, after)
    lost = job({"attempt": attempt(2, members="0,2", cause="PodLost")})
    assert "worker digits-2 takes the place of digits-1 [PodLost]" in texts(job({"attempt": attempt()}), lost)
    same = job({"attempt": attempt(2)})
    assert not [text for text in texts(job({"attempt": attempt()}), same) if "takes the place" in text]
    grown = job({"attempt": attempt(2, members="0-2", workers=3, worldSize=3)})
    assert not [text for text in texts(job({"attempt": attempt()}), grown) if "takes the place" in text]
