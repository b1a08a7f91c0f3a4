"""The live panel's text."""

from __future__ import annotations

import re
from dataclasses import replace

from support.jobs import NOW, at, attempt, checkpoint, condition, failure, job, progress
from trainjob.screen.pace import Pace
from trainjob.screen.panel import BAR_WIDTH, Moment, panel

MOMENT = Moment(now=NOW + 5, started=NOW - 7)
WORKERS = {"ready": 2, "desired": 2}


def test_before_anything_happens_it_says_so() -> None:
    assert panel(job(), Pace(), MOMENT) == ["Starting   0/2 workers   0 of 3 restarts used   12s"]


def test_it_says_what_a_start_waits_for() -> None:
    waiting = job(
        {"phase": "Pending", "conditions": [condition("WorkersReady", "False", "Waiting", "1 of 2 workers is up")]}
    )
    assert panel(waiting, Pace(), MOMENT)[-1] == "waiting: 1 of 2 workers is up"


def test_restarts_are_counted_as_far_as_they_are_allowed() -> None:
    def said(most: int, used: int) -> str:
        return panel(job({"failures": {"counted": used}}, failurePolicy={"maxFailures": most}), Pace(), MOMENT)[0]

    assert "1 of 1 restart used" in said(1, 2)
    assert "no restarts allowed" in said(0, 0)
    assert "1 restart " in said(-1, 1)


def test_the_failure_that_ends_a_job_is_no_restart() -> None:
    ended = {"attempt": attempt(2, state="Ended"), "failures": {"counted": 2}, "lastFailure": failure()}
    failed = {**ended, "conditions": [condition("Failed", "True", "UserCodeError", "twice the same")]}
    assert "1 of 3 restarts used" in panel(job(failed), Pace(), MOMENT)[0]
    assert "2 of 3 restarts used" in panel(job(ended), Pace(), MOMENT)[0], "another attempt follows"


def test_a_running_job_has_four_facts_on_three_lines() -> None:
    running = job(
        {
            "phase": "Running",
            "workers": WORKERS,
            "attempt": attempt(),
            "progress": progress(),
            "checkpoint": checkpoint(),
        }
    )
    lines = panel(running, Pace(1, ((NOW, 80), (NOW + 4, 180))), MOMENT)
    assert lines == [
        "Running   2/2 workers   2 ranks, attempt 1   0 of 3 restarts used   12s",
        "━" * 11 + "─" * 17 + "  step 180/450 (40%)  40 ms/step  ETA 9.8s",
        "loss=0.11 accuracy=0.975   checkpoint 1-1-4 at step 180, 1s ago",
    ]


def test_the_last_failure_stays_in_view() -> None:
    restarted = job({"phase": "Running", "attempt": attempt(2), "failures": {"counted": 1}, "lastFailure": failure()})
    lines = panel(restarted, Pace(), MOMENT)
    assert "1 of 3 restarts used" in lines[0]
    assert lines[-1] == "last failure: attempt 1, rank 1 on digits-1 raised ValueError: bad batch"


def test_a_terminal_without_box_characters_gets_plain_ones() -> None:
    lines = panel(job({"progress": progress(450)}), Pace(), Moment(now=NOW, started=NOW, ascii_only=True))
    assert lines[1].startswith("#" * BAR_WIDTH + " ")
    assert "\n".join(lines).isascii()


def test_no_bar_where_the_end_is_not_known() -> None:
    lines = panel(job({"progress": {"position": 3, "lastReportTime": at(4), "metrics": {}}}), Pace(), MOMENT)
    assert lines[1] == "report 3"


def test_a_finished_job_has_no_eta() -> None:
    done = job({"conditions": [condition("Complete", "True", "AllRanksSucceeded")], "progress": progress(180)})
    assert not re.search("ETA", "\n".join(panel(done, Pace(1, ((NOW, 80), (NOW + 4, 180))), MOMENT)))


def test_where_no_step_comes_no_end_is_promised() -> None:
    trains = job({"attempt": attempt(1), "progress": progress(totalSteps=100_000)})
    pace = Pace(1, ((NOW, 80), (NOW + 4, 180)))
    assert "ETA" in "\n".join(panel(trains, pace, MOMENT))
    assert "ETA" not in "\n".join(panel(trains, pace, replace(MOMENT, now=NOW + 4 + 60)))
