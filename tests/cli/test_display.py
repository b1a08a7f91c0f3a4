"""Plain lines and the live panel: what is written where, and when."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from support.jobs import NOW, attempt, checkpoint, condition, failure, job, progress
from trainjob.screen.display import Once, PlainDisplay, SilentDisplay, wants_panel
from trainjob.screen.live import LiveDisplay
from trainjob.screen.story import RATION_S


class Clock:
    """Time that moves when it is told to."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_worker_lines_go_to_stdout_and_the_jobs_own_to_stderr(clock: Clock) -> None:
    out, err = io.StringIO(), io.StringIO()
    display = PlainDisplay(out, err, clock)
    display.line("r00 | hello")
    clock.now += 1.25
    display.status(job({"attempt": attempt()}))
    display.note("stopping")
    display.close()
    assert out.getvalue() == "r00 | hello\n"
    assert err.getvalue() == "tj  | +1.2s attempt 1 started: 2 workers, 2 ranks [Started]\ntj  | +1.2s stopping\n"


def test_progress_is_rationed_and_failures_are_not(clock: Clock) -> None:
    err = io.StringIO()
    display = PlainDisplay(io.StringIO(), err, clock)
    for step in range(1, 401):
        clock.now = NOW + step * RATION_S / 100
        display.status(job({"attempt": attempt(), "progress": progress(step, clock.now - NOW)}))
    display.status(
        job(
            {
                "attempt": attempt(),
                "progress": progress(400, clock.now - NOW),
                "lastFailure": failure(),
                "checkpoint": checkpoint(),
            }
        )
    )
    lines = err.getvalue().splitlines()
    assert sum("/450" in line for line in lines) == 4
    assert sum("failed: rank 1" in line for line in lines) == 1
    assert "20 ms/step" in err.getvalue()


def test_the_panel_is_for_terminals_that_can_show_it() -> None:
    able = {"TERM": "xterm-256color"}
    assert wants_panel(plain=False, terminal=True, environment=able)
    assert wants_panel(plain=False, terminal=True, environment={**able, "NO_COLOR": "1"})
    for plain, terminal, environment in [
        (True, True, able),
        (False, False, able),
        (False, True, {**able, "CI": "true"}),
        (False, True, {"TERM": "dumb"}),
        (False, True, {}),
    ]:
        assert not wants_panel(plain=plain, terminal=terminal, environment=environment)


def screen(clock: Clock, **options: object) -> tuple[LiveDisplay, io.StringIO]:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=100, highlight=False, **options)  # type: ignore[arg-type]
    return LiveDisplay(console, clock), written


def test_the_live_panel_scrolls_output_above_and_keeps_the_last_state(clock: Clock) -> None:
    display, written = screen(clock, no_color=True)
    try:
        display.line("r01 | \x1b[32mfine\x1b[0m [not markup]")
        display.status(
            job({"phase": "Running", "attempt": attempt(), "progress": progress(), "checkpoint": checkpoint()})
        )
        display.status(
            job(
                {
                    "phase": "Failed",
                    "attempt": attempt(),
                    "lastFailure": failure(),
                    "conditions": [condition("Failed", "True", "UserCodeError")],
                }
            )
        )
    finally:
        display.close()
    text = written.getvalue()
    assert "r01 | fine [not markup]" in text
    assert "last failure: attempt 1, rank 1 on digits-1 raised ValueError: bad batch" in text
    last = text[text.rindex("digits ─") :]
    assert "Failed   2 ranks, attempt 1" in last
    assert "last failure: attempt 1" in last


def test_a_worker_cannot_move_the_cursor(clock: Clock) -> None:
    display, written = screen(clock)
    try:
        display.line("r00 | a\x1b[2Jb\x1b]0;title\x07c")
    finally:
        display.close()
    assert "\x1b[2J" not in written.getvalue()
    assert "\x1b]0;" not in written.getvalue()
    assert "r00 | ab" in written.getvalue()


def test_checkpoints_that_have_no_line_are_counted_in_the_next_one(clock: Clock) -> None:
    err = io.StringIO()
    display = PlainDisplay(io.StringIO(), err, clock)

    def saved(id_: str, count: int) -> None:
        latest = {**checkpoint()["latest"], "id": id_}
        told = {"latest": latest, "count": count}
        display.status(job({"phase": "Running", "attempt": attempt(), "checkpoint": told}))
        clock.now += 1.5

    # Every tenth report has one; of 1-1-30 no status told by itself.
    for count, id_ in ((1, "1-1-10"), (2, "1-1-20"), (4, "1-1-40"), (5, "1-2-1"), (6, "1-2-2"), (7, "1-2-4")):
        saved(id_, count)
    lines = [line for line in err.getvalue().splitlines() if "saved" in line]
    assert [re.sub(r".*checkpoint (\S+) .*saved \([^)]*\)", r"\1", line) for line in lines] == [
        "1-1-10",
        "1-1-40 (2 others before it not shown)",
        "1-2-2 (1 other before it not shown)",
    ]


def test_trouble_of_storage_is_told_by_the_status_and_not_twice(clock: Clock) -> None:
    """Who has no status on the screen keeps the agent's line."""
    told = "Checkpoint 1-1-6 cannot be stored: worker 0: No space left on device"
    out, err = io.StringIO(), io.StringIO()
    display = Once(PlainDisplay(out, err, clock))
    display.line(f"agent | {told}")
    display.line("agent | no earlier run of this name: the job starts from the beginning")
    display.line(f"r00 | {told}")
    held = condition("Degraded", "True", "CheckpointFailing", told)
    display.status(job({"attempt": attempt(), "conditions": [held]}))
    assert out.getvalue().splitlines() == [
        "agent | no earlier run of this name: the job starts from the beginning",
        f"r00 | {told}",
    ]
    assert err.getvalue().count(told) == 1
    silent = io.StringIO()
    Once(SilentDisplay(silent)).line(f"agent | {told}")
    assert silent.getvalue() == f"agent | {told}\n"


def test_what_a_terminal_cannot_show_ends_no_job(clock: Clock) -> None:
    """A rank prints what it likes; a byte that is none of UTF-8 comes as U+FFFD, which Latin-1 has not."""
    for make in (
        lambda out: PlainDisplay(out, out, clock),
        lambda out: LiveDisplay(Console(file=out, force_terminal=True, width=80), clock),
    ):
        written = io.BytesIO()
        display = make(io.TextIOWrapper(written, encoding="latin-1"))
        display.line("r00 | caf\ufffd 1")
        display.note("attempt 1 failed: \u2713")
        display.status(job({"attempt": attempt(), "lastFailure": failure(message="no \u2713")}))
        display.close()
        shown = written.getvalue().decode("latin-1")
        assert "caf? 1" in shown and "attempt 1 failed: ?" in shown and "no ?" in shown


def test_the_traceback_of_an_attempt_stands_before_its_end_and_the_next_one(clock: Clock) -> None:
    """Also where it may turn out to be the same as one that was shown."""
    written = io.StringIO()
    display = Once(PlainDisplay(written, written, clock))
    lines = [
        "Traceback (most recent call last):",
        '  File "/w/train.py", line 80, in <module>',
        "ValueError: bad batch",
    ]
    for number in (1, 2):
        display.status(job({"attempt": attempt(number), **({"lastFailure": failure()} if number > 1 else {})}))
        for line in lines:
            display.line(f"r00 | {line}")
    display.status(job({"attempt": attempt(3), "lastFailure": failure(attempt=2)}))
    display.line("r00 | starts again")
    shown = [line.partition(" | ")[2] for line in written.getvalue().splitlines()]
    places = [
        next(place for place, line in enumerate(shown) if said in line)
        for said in (
            "attempt 2 started",
            "(the same ValueError",
            "attempt 2 failed",
            "attempt 3 started",
            "starts again",
        )
    ]
    assert places == sorted(places), shown
