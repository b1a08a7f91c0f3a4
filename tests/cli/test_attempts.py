"""The attempts of a job as a person asks for them."""

from __future__ import annotations

from support.jobs import NOW, at, attempt, job
from trainjob.screen import attempts

FIRST = {
    "attempt": 1,
    "cause": "Started",
    "endCause": "KilledBySignal",
    "startedAt": at(0),
    "endedAt": at(65),
    "worldSize": 2,
    "message": "rank 1 on digits-1 was killed by SIGKILL\nmore",
    "lostSeconds": 3.24,
    "partsMs": {"decided": 100, "firstStep": 1900},
}
SECOND = attempt(2, startedAt=at(66), cause="KilledBySignal", resumedFrom="1-1-3", fromSpares="3")


def test_each_says_how_long_it_took_and_ran_what_was_lost_and_why_it_ended_the_running_one_too() -> None:
    status = job({"attempt": SECOND, "history": [FIRST]}).status
    assert attempts.lines(status, NOW + 76) == [
        "ATTEMPT   BEGAN BY                   RANKS   FROM    FIRST REPORT   RAN     LOST   ENDED BY         WHY",
        "1         Started                    2               2.0s           1m05s   3.2s   KilledBySignal   "
        "rank 1 on digits-1 was killed by SIGKILL",
        "2         KilledBySignal (spare 3)   2       1-1-3                  10s            (runs)",
    ]


def test_an_attempt_that_is_in_the_history_stands_there_once() -> None:
    over = attempt(1, state="Ended", endedAt=at(65))
    assert len(attempts.lines(job({"attempt": over, "history": [FIRST]}).status, NOW)) == 2
    assert attempts.lines(job().status, NOW) == []


def test_an_attempt_that_never_reported_has_no_time_until_its_first_report() -> None:
    """How long it was until its ranks began says nothing of that."""
    early = {**FIRST, "partsMs": {"decided": 100, "group": 1800}, "downSeconds": 1.9}
    for status in ({"history": [early]}, {"history": [{**early, "partsMs": None}]}, {"attempt": attempt()}):
        assert "FIRST REPORT" not in attempts.lines(job(status).status, NOW + 76)[0]


def test_of_a_launcher_that_is_gone_the_attempt_does_not_run() -> None:
    (_, row) = attempts.lines(job({"attempt": attempt()}).status, NOW + 5, last="Killed")
    assert row.split() == ["1", "Started", "2", "Killed"], "for how long it ran nobody knows"
    (header, row) = attempts.lines(job({"attempt": attempt()}).status, NOW + 5, last="Killed", until=NOW + 3)
    assert "RAN" in header and "3.0s" in row and "Killed" in row


def test_on_this_machine_a_job_is_stopped_and_not_suspended() -> None:
    status = job({"history": [{**FIRST, "endCause": "Suspended", "message": None}]}).status
    assert "Stopped" in attempts.lines(status, NOW, here=True)[1]
    vanished = job({"history": [{**FIRST, "endCause": "PodFailed"}]}).status
    assert "WorkerFailed" in attempts.lines(vanished, NOW, here=True)[1], "nor is a worker in a pod"
    assert "PodFailed" in attempts.lines(vanished, NOW)[1]
    assert "Suspended" in attempts.lines(status, NOW)[1]


def test_a_cause_is_said_once_and_whole_below_where_the_terminal_is_narrow() -> None:
    long = "rank 0 raised ValueError: " + "the batch is odd, " * 8 + "pid {}"
    history = [
        {**FIRST, "attempt": 1 + number, "message": text}
        for number, text in enumerate(
            (long.format(41), long.format(42), "rank 1 was killed by SIGKILL", long.format(7))
        )
    ]
    wide = attempts.lines(job({"history": history}).status, NOW)
    ends = (" 41", "as attempt 1", "by SIGKILL", "as attempt 1")
    assert all(row.endswith(end) for row, end in zip(wide[1:], ends, strict=True)), wide
    narrow = attempts.lines(job({"history": history}).status, NOW, width=120)
    assert all(len(row) <= 120 for row in narrow[:5]) and narrow[1].endswith("...") and "as attempt 1" in narrow[2]
    assert narrow[5:] == [f"attempt 1: {long.format(41)}"]
    tiny = attempts.lines(job({"history": history}).status, NOW, width=20)
    assert "rank 0 raised" in tiny[1], "some words are always there"
